"""Any one input of a run is changed: the run of before is refused, and a new one has the values of an empty cache."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import architectures
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from labelled import write_task
from refusals import refused
from safetensors.torch import load_file, save_file
from samples import make_texts

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_pages")]

TRAIN = {"max_steps": 2, "batch_size": 8, "precision": "fp32", "device": "cpu", "keep_checkpoint": True}
Change = Callable[[Any], Any]
TEXTS = 36  # few, since each is a batch of its own
FRESH = {"model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 128}
METHOD = """from beside import SCALE
from distilvec.core.objective import Objective

class Mine(Objective):
    def __init__(self, context, weights):
        super().__init__(context, weights, {'mine': SCALE})

    def forward(self, batch, student, teacher):
        return {'mine': (student.embedding - teacher.embedding).abs().sum(-1)}
"""


@dataclass
class World:
    """A folder with the inputs of a run, and its recipe as plain data."""

    root: Path
    tree: dict[str, Any] = field(default_factory=dict)

    def json(self, name: str, **changes: Any) -> None:
        """Change keys of a JSON file."""
        path = self.root / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def weights(self, name: str) -> None:
        """Change one matrix of a file of weights; size and time of the file stay."""
        path = self.root / name
        about = path.stat()
        tensors = load_file(path)
        largest = max(tensors, key=lambda key: tensors[key].numel())
        tensors[largest] = tensors[largest].flip(0).contiguous()
        save_file(tensors, path, {"format": "pt"})
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace text in a file; size and time of the file stay if the texts are as long."""
        path = self.root / name
        about = path.stat()
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))

    def set(self, key: str, value: Any) -> None:
        """Change a dotted key of the recipe."""
        recipes.set_key(self.tree, key, value)

    def result(self, name: str, cache: str) -> dict[str, Any]:
        """Run the recipe in a folder with a cache: the student's weights, hashed, and the scores."""
        self.set("cache.root", str(self.root / cache))
        folder = RunFolder(self.root / name)
        run(recipes.validate(json.loads(json.dumps(self.tree, default=str))), folder.path)
        report = json.loads(folder.report.read_text())
        results = {key: without_times(report.get(key)) for key in ("scores", "overlap", "supervised", "intervals")}
        return {"weights": hash((folder.last / "model.safetensors").read_bytes()), **results}


def without_times(value: Any) -> Any:
    """Nested values without the seconds that their computation took."""
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name != "seconds"}
    return [without_times(part) for part in value] if isinstance(value, list) else value


# -- worlds ------------------------------------------------------------------------------------------------------------


def models(world: World) -> None:
    """A teacher and a student of other weights, a corpus of two sources, a suite, a method file."""
    root = world.root
    model(root / "teacher", seed=0)
    model(root / "student", seed=1)
    world.json("teacher/config_sentence_transformers.json", prompts={"query": "find: ", "document": "read: "})
    texts = [text.capitalize() for text in make_texts(TEXTS)]
    (root / "texts" / "more").mkdir(parents=True)
    (root / "texts" / "a.txt").write_text("\n".join(texts[:12]))
    (root / "texts" / "more" / "b.txt").write_text("\n".join(texts[12:24]))
    (root / "others").mkdir()
    (root / "others" / "c.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts[24:]))
    suite(root)
    world.tree = {
        "name": "identity",
        # Texts are embedded one by one: a batch of others pads them to another length, which changes the last digits
        "teacher": {"model": root / "teacher", "dtype": "float32", "batch_tokens": 1},
        "student": {"model": root / "student", "layers": 2},
        "corpus": {
            "sources": [{"path": root / "texts"}, {"path": root / "others", "role": "query"}],
            "validation_rows": 6,
        },
        "method": {"name": "redact"},
        "train": dict(TRAIN),
        "evaluation": {"suite": root / "suite.yaml", "parts": [], "batch_tokens": 1},
    }


def pruned(world: World) -> None:
    """A student cut from the teacher."""
    models(world)
    world.tree["student"]["model"] = "teacher"


def two(world: World) -> None:
    """A second teacher."""
    models(world)
    model(world.root / "second", seed=2)
    world.tree["more_teachers"] = [{"model": world.root / "second", "dtype": "float32", "batch_tokens": 1}]


def live(world: World) -> None:
    """A teacher that runs in every step, without a cache."""
    models(world)
    world.tree["teacher"]["live"] = True


def addressed(world: World) -> None:
    """Texts behind an address."""
    models(world)
    world.tree["corpus"]["sources"][0] = {"url": f"file://{world.root / 'texts'}"}


def linked(world: World) -> None:
    """As `models`; the teacher's files, one of its folders and a folder of the corpus lie behind links."""
    models(world)
    root = world.root
    (root / "behind").mkdir()
    for name in ("teacher/model.safetensors", "teacher/1_Pooling", "texts/more", "student"):
        target = root / "behind" / name.replace("/", "-")
        (root / name).rename(target)
        (root / name).symlink_to(target)


def table(world: World) -> None:
    """A table of vectors instead of the teacher."""
    models(world)
    texts = [text.capitalize() for text in make_texts(TEXTS)]
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(TEXTS, 32, generator=generator)).numpy()
    write_table(world.root / "vectors.parquet", texts, vectors)
    world.tree["teacher"] = {"vectors": world.root / "vectors.parquet"}


def surgery(world: World) -> None:
    """A vocabulary chosen on the corpus for a student with a factorized table."""
    models(world)
    world.tree["student"] |= {"vocabulary": {"kind": "trim"}, "embedding": {"rank": 8}}


def tokenizers(world: World) -> None:
    """A fresh student with a tokenizer of its own; the tokens of another one are texts."""
    models(world)
    root = world.root
    architectures.unigram().save_pretrained(root / "tokens")
    architectures.wordpiece({"model_max_length": 128}).save_pretrained(root / "fresh")
    world.tree["student"] = {"config": FRESH, "tokenizer": root / "fresh"}
    world.tree["corpus"]["sources"].append({"tokenizer": root / "tokens"})


def existing(world: World) -> None:
    """A student with an existing tokenizer in a file."""
    models(world)
    root = world.root
    architectures.wordpiece({"model_max_length": 128}).save_pretrained(root / "saved")
    (root / "saved" / "tokenizer.json").rename(root / "given.json")
    world.tree["student"] |= {"vocabulary": {"tokenizer": root / "given.json"}}


def method(world: World) -> None:
    """A method in a file, with a module beside it."""
    models(world)
    (world.root / "mine.py").write_text(METHOD)
    (world.root / "beside.py").write_text("SCALE = 2.0\n")
    world.tree["method"] = {"name": world.root / "mine.py"}


def adapted(world: World) -> None:
    """A teacher that is an adapter on another model's weights, given to a student as well."""
    peft = pytest.importorskip("peft")
    models(world)
    root = world.root
    architectures.bert(root / "base")
    backbone = transformers.AutoModel.from_pretrained(root / "base")
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    peft.get_peft_model(backbone, settings).save_pretrained(root / "adapter")
    world.tree["teacher"] = {
        "model": root / "base",
        "adapters": [root / "adapter"],
        "pooling": "mean",
        "batch_tokens": 1,
    }


def labels(world: World) -> None:
    """A labelled task instead of a corpus."""
    models(world)
    write_task(world.root / "task.jsonl", "classification", 48, 12)
    del world.tree["corpus"]
    world.tree |= {
        "task": {"type": "classification", "path": world.root / "task.jsonl"},
        "method": {"name": "task"},
        "evaluation": {"parts": []},
    }


def model(folder: Path, seed: int) -> None:
    backbone = architectures.bert(folder.with_name(f"{folder.name}-backbone"), seed)
    architectures.sentence_transformer(folder, backbone, "mean dense:32 normalize", seed)
    shutil.rmtree(backbone)


def suite(root: Path) -> None:
    texts = make_texts(12, seed=5)
    rows = [{"sentence1": texts[row], "sentence2": texts[row + 6], "score": row} for row in range(6)]
    (root / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (root / "suite.yaml").write_text("- {name: sts, type: sts, path: sts.jsonl}\n")


def write_table(path: Path, texts: list[str], vectors: Any) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({"text": texts, "teacher_embedding_final": column}), path)


# -- changes -----------------------------------------------------------------------------------------------------------


def moved(world: World) -> None:
    (world.root / "texts" / "more" / "b.txt").rename(world.root / "others" / "b.txt")


def extra(world: World) -> None:
    (world.root / "texts" / "more" / "d.txt").write_text("one more text\n")


def shuffled(world: World) -> None:
    path = world.root / "texts" / "a.txt"
    path.write_text("\n".join(reversed(path.read_text().split("\n"))))


def other_row(world: World) -> None:
    path = world.root / "vectors.parquet"
    rows = pq.read_table(path)
    vectors = torch.tensor(rows.column(1).to_pylist())
    vectors[5] = vectors[6]
    write_table(path, rows.column(0).to_pylist(), vectors.numpy())


def other_token(world: World) -> None:
    path = world.root / "tokens" / "tokenizer.json"
    state = json.loads(path.read_text())
    state["model"]["vocab"][-1][0] += "new"
    path.write_text(json.dumps(state))


def relinked(name: str) -> Change:
    """Another folder behind a link, as the first one but for its weights."""

    def change(world: World) -> None:
        link = world.root / name
        other = link.resolve().with_name("other")
        if link.resolve().is_dir():
            shutil.copytree(link.resolve(), other)
            world.weights(f"{other.relative_to(world.root)}/model.safetensors")
        else:
            shutil.copy(link.resolve(), other)
            world.weights(str(other.relative_to(world.root)))
        link.unlink()
        link.symlink_to(other)

    return change


def key(name: str, value: Any) -> Change:
    return lambda world: world.set(name, value)


def weights(name: str) -> Change:
    return lambda world: world.weights(name)


def replaced(name: str, old: str, new: str) -> Change:
    return lambda world: world.replace(name, old, new)


def settings(name: str, **changes: Any) -> Change:
    return lambda world: world.json(name, **changes)


CASED = ('"lowercase": true', '"lowercase": false')
PROMPTS = {"query": "ask: ", "document": "say: "}
SUITE = "- {name: sts, type: sts, path: sts.jsonl}\n- {name: again, type: sts, path: sts.jsonl}\n"
CHANGES = {
    "teacher: weights": (models, weights("teacher/model.safetensors")),
    "teacher: a Dense layer's weights": (models, weights("teacher/2_Dense/model.safetensors")),
    "teacher: pooling": (models, replaced("teacher/1_Pooling/config.json", '"mean"', '"cls"')),
    "teacher: activation": (models, replaced("teacher/2_Dense/config.json", "linear.Identity", "activation.Tanh")),
    "teacher: heads": (models, settings("teacher/config.json", num_attention_heads=2)),
    "teacher: prompts": (models, settings("teacher/config_sentence_transformers.json", prompts=PROMPTS)),
    "teacher: tokens": (models, replaced("teacher/tokenizer.json", *CASED)),
    "teacher: length": (models, settings("teacher/tokenizer_config.json", model_max_length=6)),
    "teacher.prompts": (models, key("teacher.prompts", PROMPTS)),
    "teacher.max_length": (models, key("teacher.max_length", 6)),
    "teacher.truncate_dim": (models, key("teacher.truncate_dim", 16)),
    "student: weights": (models, weights("student/model.safetensors")),
    "student: pooling": (models, replaced("student/1_Pooling/config.json", '"mean"', '"cls"')),
    "student: heads": (models, settings("student/config.json", num_attention_heads=2)),
    "student: length": (models, settings("student/tokenizer_config.json", model_max_length=6)),
    "student.layers": (models, key("student.layers", [0, 1])),
    "student.dropout": (models, key("student.dropout", 0.3)),
    "student.model": (models, lambda world: world.set("student.model", world.root / "teacher")),
    "corpus: a text": (models, replaced("texts/a.txt", "river", "zebra")),
    "corpus: the order": (models, shuffled),
    "corpus: one more file": (models, extra),
    "corpus: a file of another source": (models, moved),
    "corpus.sources.0.role": (models, key("corpus.sources.0.role", "query")),
    "corpus.sources.0.limit": (models, key("corpus.sources.0.limit", 15)),
    "corpus.validation_rows": (models, key("corpus.validation_rows", 9)),
    "corpus.seed": (models, key("corpus.seed", 1)),
    "method.name": (models, key("method.name", "offline_cosine")),
    "cache.dtype": (models, key("cache.dtype", "float32")),
    "suite: a text": (models, replaced("sts.jsonl", "river", "zebra")),
    "suite: a score": (models, replaced("sts.jsonl", '"score": 5', '"score": 0')),
    "suite: a task": (models, lambda world: (world.root / "suite.yaml").write_text(SUITE)),
    "student: the teacher's weights": (pruned, weights("teacher/model.safetensors")),
    "second teacher: weights": (two, weights("second/model.safetensors")),
    "second teacher: pooling": (two, replaced("second/1_Pooling/config.json", '"mean"', '"cls"')),
    "more_teachers.0.weight": (two, key("more_teachers.0.weight", 0.5)),
    "live teacher: weights": (live, weights("teacher/model.safetensors")),
    "source by address: a text": (addressed, replaced("texts/a.txt", "river", "zebra")),
    "link to a file": (linked, weights("behind/teacher-model.safetensors")),
    "link to a folder": (linked, replaced("behind/teacher-1_Pooling/config.json", '"mean"', '"cls"')),
    "link to a folder of texts": (linked, replaced("behind/texts-more/b.txt", "river", "zebra")),
    "link's target": (linked, relinked("teacher/model.safetensors")),
    "student's link's target": (linked, relinked("student")),
    "table: a row": (table, other_row),
    "vocabulary: the corpus": (surgery, replaced("texts/a.txt", "river", "zebra")),
    "vocabulary.kind": (surgery, key("student.vocabulary", {"kind": "bpe", "size": 120})),
    "source: a tokenizer": (tokenizers, other_token),
    "fresh student: tokenizer": (
        tokenizers,
        replaced("fresh/tokenizer.json", *CASED),
    ),
    "fresh student: config": (tokenizers, key("student.config.num_attention_heads", 2)),
    "vocabulary.tokenizer": (existing, replaced("given.json", *CASED)),
    "method: the file": (method, replaced("mine.py", ".abs().sum(-1)", ".pow(2).sum(-1)")),
    "method: a module beside it": (method, replaced("beside.py", "2.0", "3.0")),
    "adapter": (adapted, weights("adapter/adapter_model.safetensors")),
    "adapter's base": (adapted, weights("base/model.safetensors")),
    "task: a label": (labels, replaced("task.jsonl", "river", "zebra")),
    "task.labels": (labels, key("task.labels", 10)),
}
KEYS = {
    "max_steps": 3, "batch_size": 4, "window": 1, "fixed_batches": True, "gradient_accumulation_steps": 2,
    "optimizer": "muon",
    "learning_rate": 1e-2, "final_learning_rate": 1e-3, "trainable": ["encoder.model.0"],
    "learning_rate_factors": {"encoder.model.0": 0.5},
    "schedule": {"name": "constant"}, "weight_decay": 0.5, "betas": (0.8, 0.9), "max_grad_norm": 1e-3,
    "update": {"name": "sam"}, "seed": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """One path for all worlds, since a recipe names its files."""
    return tmp_path_factory.mktemp("identity") / "world"


@pytest.fixture(scope="module")
def begun(root, tmp_path_factory):
    """A copy of each world in which a run has finished, its recipe and its result; made when it is asked for."""
    made: dict[Any, tuple[Path, dict[str, Any], dict[str, Any]]] = {}

    def give(build: Any) -> tuple[World, dict[str, Any]]:
        shutil.rmtree(root, ignore_errors=True)
        if build not in made:
            root.mkdir()
            world = World(root)
            build(world)
            tree = copy.deepcopy(world.tree)
            before = world.result("run", "warm")
            kept = tmp_path_factory.mktemp("begun") / "world"
            root.rename(kept)
            made[build] = kept, tree, before
        kept, tree, before = made[build]
        shutil.copytree(kept, root, symlinks=True)
        for path in [path for path in root.rglob("*") if path.is_symlink()]:
            target = path.readlink()
            path.unlink()
            path.symlink_to(target)
        return World(root, copy.deepcopy(tree)), before

    return give


@pytest.mark.parametrize(("build", "change"), CHANGES.values(), ids=CHANGES)
def test_a_changed_input_gives_what_an_empty_cache_gives(begun, build, change):
    world, before = begun(build)
    change(world)
    try:
        again = world.result("run", "warm")
    except DistilvecError as error:
        assert error.key == "--out"
        again = None
    warm, cold = world.result("new", "warm"), world.result("cold", "empty")
    assert cold != before, "the change has no effect: it tests nothing"
    assert warm == cold
    assert again is None or again == cold


def test_unchanged_inputs_give_the_same_result_without_work(begun, monkeypatch):
    monkeypatch.setattr("distilvec.train.trainer.Trainer._step", lambda *a: pytest.fail("trained again"))
    world, before = begun(models)
    assert world.result("run", "warm") == before


@pytest.mark.parametrize("name", KEYS)
def test_a_trained_run_is_refused_with_another_setting_of_the_training(begun, name):
    world, _ = begun(models)
    world.set(f"train.{name}", KEYS[name])
    with refused("--out", f"train.{name}"):
        world.result("run", "warm")


@pytest.mark.parametrize("build", [models, table])
def test_a_teacher_that_changes_after_it_was_described_is_refused(begun, build):
    """Its vectors would be stored under the name of another one's."""
    world, _ = begun(build)
    world.set("cache.root", str(world.root / "warm"))
    job = resolve(recipes.validate(json.loads(json.dumps(world.tree, default=str))), world.root / "later")
    job.loaded.release_untaken()
    other_row(world) if build is table else world.weights("teacher/model.safetensors")
    with refused("teacher.vectors" if build is table else "teacher.model"):
        job.teacher.load("cpu")
