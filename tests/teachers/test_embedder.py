"""One door for every source of vectors: the same vectors as the source's own, and errors with the caller's key."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from servers import FaultyApi
from test_vectors import unit

from distilvec.core.errors import about
from distilvec.formats.onnx import export_onnx
from distilvec.teachers.api_embedder import _PROBE
from distilvec.teachers.open import open_embedder, open_model
from distilvec.teachers.sources import source_kind
from distilvec.verbs.distill.recipe import make_recipe
from distilvec.verbs.distill.request import Request
from distilvec.verbs.evaluate.scores import score_models
from distilvec.verbs.serve.model import ServedModel

TEXTS = make_texts(40)


@pytest.fixture(scope="module")
def model(tiny_model):
    return SentenceTransformer(str(tiny_model), device="cpu")


@pytest.fixture(scope="module")
def vectors(model):
    return model.encode(TEXTS)


@pytest.fixture
def api():
    """A server whose vectors have 12 dimensions."""
    texts = [*TEXTS, *_PROBE]
    with FaultyApi(dict(zip(texts, unit(len(texts), 12, 0), strict=True))) as server:
        yield server


def write_table(path, vectors, texts=TEXTS):
    pq.write_table(pa.table({"text": texts, "embedding": list(vectors)}), path)
    return path


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("BAAI/bge-m3", "model"),
        ("runs/mine/student", "model"),
        (object(), "model"),
        ("student/onnx/model.onnx", "export"),
        ("student/openvino/openvino_model.xml", "export"),
        ("dump.parquet", "table"),
        ("db/docs.lance", "table"),
        ("qdrant://host/docs", "table"),
        ("postgresql://me@host/shop/products", "table"),
        ("openai:text-embedding-3-small", "api"),
        ("http://127.0.0.1:8000", "api"),
        ("https://host/v1#bge-m3", "api"),
    ],
)
def test_the_form_of_a_name_tells_the_kind(source, kind):
    assert source_kind(source) == kind


def test_a_folder_and_an_object_give_encode_s_vectors(tiny_model, model, vectors):
    for source in (tiny_model, str(tiny_model), model):
        embedder = open_embedder(source)
        assert embedder.dim == vectors.shape[1] and embedder.similarity == "cosine"
        np.testing.assert_allclose(embedder.embed(TEXTS), vectors, atol=1e-5)


def test_the_file_of_an_export(tiny_model, model, vectors, tmp_path):
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    embedder = open_embedder(export_onnx(model, folder / "onnx" / "model.onnx"))
    np.testing.assert_allclose(embedder.embed(TEXTS), vectors, atol=1e-4)
    assert embedder.dim == vectors.shape[1] and embedder.prompts == open_embedder(tiny_model).prompts


def test_an_export_embeds_empty_texts_as_the_model_does_without_special_tokens(tiny_model, tmp_path):
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    model = SentenceTransformer(str(folder), device="cpu")
    assert model[0].tokenizer("")["input_ids"] == []
    own = open_embedder(folder)
    exported = open_embedder(export_onnx(model, folder / "onnx" / "model.onnx"))
    for texts, role in ((["", *TEXTS[:3]], "document"), (["", ""], "document"), ([""], "query")):
        np.testing.assert_allclose(exported.embed(texts, role), own.embed(texts, role), atol=1e-4)


def test_a_table_gives_its_own_vectors_and_names_texts_that_it_lacks(vectors, tmp_path):
    embedder = open_embedder(write_table(tmp_path / "t.parquet", vectors))
    np.testing.assert_array_equal(embedder.embed(TEXTS[::-1], "query"), vectors[::-1])
    with refused(".vectors", "1 of 2 texts"):
        embedder.embed([TEXTS[0], "not there"])


@pytest.mark.usefixtures("loopback")
def test_a_server_with_one_model_needs_no_name(api):
    for address in (api.address, api.address.removesuffix("/v1")):
        embedder = open_embedder(address)
        assert embedder.name == "served" and embedder.dim == 12
        np.testing.assert_allclose(embedder.embed(TEXTS), [api.table[text] for text in TEXTS], atol=1e-6)
    assert {body["model"] for body in api.bodies} == {"served"}


@pytest.mark.usefixtures("loopback")
def test_a_server_with_several_models_is_asked_by_name(api):
    api.models = ["small", "large"]
    with refused("", "small, large"):
        open_embedder(api.address)
    assert open_embedder(f"{api.address}#large").name == "large"
    assert api.bodies[-1]["model"] == "large"


@pytest.mark.usefixtures("loopback")
def test_the_key_of_a_server_comes_from_the_environment(api, monkeypatch):
    open_embedder(api.address)
    monkeypatch.setenv("DISTILVEC_API_KEY", "sk-4711")
    open_embedder(api.address)
    assert api.keys == [None, "Bearer sk-4711"]


@pytest.mark.parametrize(
    "stated", [{"teacher.api.key_variable": "MY_KEY"}, {"teacher.api": {"key_variable": "MY_KEY"}}]
)
@pytest.mark.usefixtures("loopback")
def test_a_server_is_asked_for_its_model_with_the_key_that_a_command_states(api, stated, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_KEY", "sk-4711")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    recipe = make_recipe(Request(api.address, str(texts), overrides=stated), tmp_path)
    assert api.keys == ["Bearer sk-4711"]
    assert (recipe.teacher.model, recipe.teacher.api.key_variable) == ("served", "MY_KEY")


@pytest.mark.usefixtures("loopback")
def test_servers_that_cannot_be_used(api, monkeypatch):
    api.models = None
    with refused("", "status 404"):
        open_embedder(api.address)
    api.models = []
    with refused("", "0 models"):
        open_embedder(api.address)
    api.refusal = 400
    with refused("", "status 400"):
        open_embedder(f"{api.address}#served")
    with refused("", "refuses the connection"):
        open_embedder("http://127.0.0.1:9")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with refused("", "OPENAI_API_KEY"):
        open_embedder("openai:text-embedding-3-small")
    with refused("", "names no model"):
        open_embedder("openai:")
    for source in ("https://me:secret@host/v1#m", "https://me:secret@host", "http://[me:secret@host"):
        with refused("model") as caught, about("model"):
            open_embedder(source)
        assert "secret" not in str(caught.value)
        with refused("models") as caught, about("models"):
            open_model(source)
        assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("loopback")
def test_a_model_behind_an_api_is_scored_as_one_on_this_machine(api, tiny_model, tmp_path):
    lines = [f"{first},{second},{score}" for first, second, score in zip(TEXTS[:9], TEXTS[9:18], range(9), strict=True)]
    (tmp_path / "sts.csv").write_text("\n".join(["sentence1,sentence2,score", *lines]))
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    first = [api.table[text] for text in TEXTS[:9]]
    second = [api.table[text] for text in TEXTS[9:18]]
    from scipy.stats import spearmanr

    expected = spearmanr([a @ b for a, b in zip(first, second, strict=True)], range(9)).statistic
    scores = score_models(tiny_model, tmp_path / "suite.yaml", teacher=api.address)
    assert scores.columns["teacher"][0].value == pytest.approx(100 * expected, abs=0.01)
    assert list(scores.columns) == ["teacher", "student"] and not scores.problems  # 12 dimensions against 32


def test_what_cannot_be_opened_is_refused_with_the_key(tmp_path, tiny_model, vectors):
    for source, word in (
        (tmp_path / "nothing", "nothing"),
        (tmp_path / "nothing.onnx", "nothing.onnx"),
        (tmp_path / "nothing.parquet", "nothing.parquet"),
        ("qdrant://user:secret@host/docs", "password"),
        (3, "int"),
    ):
        with refused("--candidate", word), about("--candidate"):
            open_embedder(source)
    table = write_table(tmp_path / "t.parquet", vectors)
    with refused("", "t.parquet"):
        open_model(table)
    with refused("model", "t.parquet"):
        ServedModel(str(table))
    pq.write_table(pa.table({"words": TEXTS, "embedding": list(vectors)}), tmp_path / "other.parquet")
    with refused("", "words"):
        open_embedder(tmp_path / "other.parquet")
