"""Published settings of known teachers, each on a small random model of its architecture; large models' loading."""

from __future__ import annotations

import architectures
import numpy as np
import pytest
import torch
from architectures import TEXTS
from refusals import refused
from transformers import AutoModel, AutoTokenizer

from distilvec.config import recipe
from distilvec.config.presets import PRESETS, find_preset
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.models.settings import is_placed
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.open import load_teacher

SEARCH = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
PASSAGES = "Represent this sentence for searching relevant passages: "
GEMMA = ("task: search result | query: ", "title: none | text: ")
PUBLISHED = {  # of model cards: id, architecture, query prompt, document prompt, pooling, unit length, tokens
    "e5-mistral": ("intfloat/e5-mistral-7b-instruct", "mistral", f"{SEARCH} ", "", "last", True, 4096),
    "qwen3-embedding": ("Qwen/Qwen3-Embedding-8B", "qwen3", SEARCH, "", "last", True, 8192),
    "embeddinggemma": ("google/embeddinggemma-300m", "gemma3", *GEMMA, None, True, None),
    "bge-m3": ("BAAI/bge-m3", "xlm_roberta", "", "", "cls", True, 8192),
    "arctic-embed": ("Snowflake/snowflake-arctic-embed-m-v1.5", "bert", PASSAGES, "", "cls", True, 512),
    "arctic-embed-v2": ("Snowflake/snowflake-arctic-embed-l-v2.0", "xlm_roberta", "query: ", "", "cls", True, 8192),
    "mxbai": ("mixedbread-ai/mxbai-embed-large-v1", "bert", PASSAGES, "", "cls", False, 512),
}


def section(folder, **changes):
    return TeacherSection(model=str(folder), **changes)


def by_hand(folder, texts, pooling, unit):
    """The usage section of the cards: a text at a time, with transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=128)).last_hidden_state[0]
        row = states[0 if pooling == "cls" else -1].double()
        rows.append(row / row.norm() if unit else row)
    return torch.stack(rows).numpy()


def test_every_preset_is_published():
    assert {*PUBLISHED} == {*PRESETS}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_belongs_to_its_model_s_id(name):
    model, _, query, document, *_ = PUBLISHED[name]
    assert find_preset(None, model) == find_preset(None, model.upper()) == name
    found = TeacherSection(model=model).stated_prompts or {}
    assert (found.get("query", ""), found.get("document", "")) == (query, document)
    assert find_preset("none", model) is None and TeacherSection(model=model, preset="none").stated_prompts is None
    assert find_preset(None, f"other/{model.split('/')[1]}") is None and find_preset(None, "/models/other") is None
    own = TeacherSection(model=model, prompts={"query": "mine: "}).stated_prompts
    assert own["query"] == "mine: " and own.get("document", "") == document


@pytest.mark.parametrize(
    "relative",
    [
        "google/embeddinggemma-2",
        "Qwen/Qwen3-Embedding-8B-GGUF",
        "Snowflake/snowflake-arctic-embed-x-v2.0",
        "intfloat/e5-mistral-7b-instruct-v2",
    ],
)
def test_a_relative_has_no_preset(relative):
    assert find_preset(None, relative) is None and TeacherSection(model=relative).stated_prompts is None


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "embeddinggemma"])
def test_a_plain_checkpoint_gives_the_vectors_of_the_card(name, tmp_path):
    _, kind, query, document, pooling, unit, tokens = PUBLISHED[name]
    folder = architectures.ARCHITECTURES[kind](tmp_path / "model")
    with load_teacher(section(folder, preset=name), "cpu") as teacher:
        assert teacher.normalized == unit and teacher.prompts == {"query": query, "document": document}
        assert teacher.max_length == (tokens if kind in ("mistral", "qwen3") else min(tokens, 128))  # of 128 positions
        for role, prompt in teacher.prompts.items():
            expected = by_hand(folder, [prompt + text for text in TEXTS[:4]], pooling, unit)
            np.testing.assert_allclose(teacher.embed(TEXTS[:4], role), expected, atol=2e-5)
    with load_teacher(section(folder, preset=name, pooling="mean", normalize=False, max_length=32), "cpu") as teacher:
        found = teacher.embed(TEXTS[:2])
        assert teacher.max_length == 32 and not teacher.normalized
        assert teacher.manifest().pooling == "mean" and np.abs(np.linalg.norm(found, axis=1) - 1).min() > 0.01


def test_embeddinggemma_has_prompts_and_its_own_layers(tmp_path):
    plain = architectures.gemma3(tmp_path / "plain")
    folder = architectures.sentence_transformer(tmp_path / "model", plain, "mean dense:48 dense:32 normalize")
    with (
        load_teacher(section(folder, preset="embeddinggemma"), "cpu") as teacher,
        load_teacher(section(folder), "cpu") as bare,
    ):
        assert teacher.pre_dense_dim == 32 and bare.prompts == {"query": "", "document": ""}
        expected = bare.embed([f"title: none | text: {text}" for text in TEXTS])
        np.testing.assert_allclose(teacher.embed(TEXTS), expected, atol=1e-6)
        expected = bare.embed([f"task: search result | query: {text}" for text in TEXTS])
        np.testing.assert_allclose(teacher.embed(TEXTS, "query"), expected, atol=1e-6)
    with refused(".pooling", "plain Hugging Face model"):
        load_teacher(section(plain, preset="embeddinggemma"), "cpu")


def test_prompts_of_a_preset_are_sent_to_a_server():
    assert ApiEmbedder(TeacherSection(model="Snowflake/snowflake-arctic-embed-l-v2.0", api={})).prompts == {
        "query": "query: ",
        "document": "",
    }


# -- large models ------------------------------------------------------------------------------------------------------


def qwen(folder):
    return architectures.qwen3(folder, hidden_size=64, head_dim=16, intermediate_size=128)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A folder, and its vectors in full precision."""
    folder = qwen(tmp_path_factory.mktemp("large") / "model")
    with load_teacher(section(folder, preset="qwen3-embedding"), "cpu") as teacher:
        return folder, teacher.embed(TEXTS), teacher.manifest().fingerprint


@pytest.mark.parametrize(("quantize", "least"), [("8bit", 0.98), ("4bit", 0.6)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantized_weights_give_nearly_the_same_vectors(quantize, least, dtype, large):
    pytest.importorskip("bitsandbytes")
    folder, expected, fingerprint = large
    with load_teacher(section(folder, preset="qwen3-embedding", quantize=quantize, dtype=dtype), "cpu") as teacher:
        layer = teacher.model[0].auto_model.layers[0].mlp.up_proj
        assert type(layer).__name__ == {"8bit": "Linear8bitLt", "4bit": "Linear4bit"}[quantize]
        assert layer.weight.nbytes == 64 * 128 // (1 if quantize == "8bit" else 2)
        found, manifest = teacher.embed(TEXTS), teacher.manifest()
    cosines = (found * expected).sum(1)
    assert cosines.min() > least and not np.allclose(found, expected, atol=1e-4)
    assert manifest.compute_dtype == f"{dtype} {quantize}" and manifest.fingerprint != fingerprint


def test_layers_on_disk_give_the_same_vectors(large):
    folder, expected, fingerprint = large
    spread = {"embed_tokens": "cpu", "rotary_emb": "cpu", "norm": "cpu", "layers.0": "cpu", "layers.1": "disk",
              "layers.2": "disk", "layers.3": "cpu"}  # fmt: skip
    for plan in ("auto", spread):
        with load_teacher(section(folder, preset="qwen3-embedding", device_map=plan), "cpu") as teacher:
            offloaded = [weights.is_meta for weights in teacher.model[0].auto_model.layers[1].parameters()]
            assert all(offloaded) if plan == spread else not any(offloaded)
            np.testing.assert_allclose(teacher.embed(TEXTS), expected, atol=1e-6)
            assert teacher.manifest().fingerprint == fingerprint
            assert is_placed(teacher.model) == (plan == spread)


def test_a_saved_model_of_several_modules_is_placed_as_a_whole(tmp_path):
    folder = architectures.sentence_transformer(tmp_path / "m", qwen(tmp_path / "b"), "lasttoken normalize")
    with load_teacher(section(folder), "cpu") as teacher:
        expected = teacher.embed(TEXTS)
    with load_teacher(section(folder, device_map="auto"), "cpu") as teacher:
        np.testing.assert_allclose(teacher.embed(TEXTS), expected, atol=1e-6)


def test_a_missing_package_and_settings_that_do_not_go_together_are_named(large, monkeypatch):
    monkeypatch.setattr("distilvec.core.extras._is_there", lambda name: name != "bitsandbytes")
    with refused(".quantize", "bitsandbytes"):
        load_teacher(section(large[0], preset="qwen3-embedding", quantize="4bit"), "cpu")
    for teacher, words in [
        ({"model": "m", "quantize": "4bit", "adapters": ["a"]}, r"^\[teacher.quantize\] adapters cannot be merged"),
        ({"model": "m", "quantize": "3bit"}, r"^\[teacher.quantize\]"),
        ({"model": "m", "api": {}, "quantize": "8bit"}, r"^\[teacher.quantize\] .* behind teacher.api"),
        ({"model": "m", "api": {}, "device_map": "auto"}, r"^\[teacher.device_map\]"),
        ({"model": "m", "preset": "e5"}, r"^\[teacher.preset\]"),
    ]:
        tree = {"name": "x", "teacher": teacher, "student": {"model": "m"}, "method": {"name": "redact"}}
        with pytest.raises(DistilvecError, match=words):
            recipe.validate({**tree, "corpus": {"sources": [{"path": "texts.txt"}]}})
