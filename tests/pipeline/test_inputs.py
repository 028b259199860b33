"""Objects as inputs of a recipe: what names their stored copies."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling

from distilvec.pipeline.inputs import saved_model_name, source_keys

TEXTS = ["one text", "two texts", "three\ntexts"]


def with_cls_pooling(model):
    model[1] = Pooling(model[0].get_embedding_dimension(), "cls")


def with_fewer_heads(model):
    model[0].auto_model.config.num_attention_heads //= 2


def with_lower_case_off(model):
    model.tokenizer.backend_tokenizer.normalizer = None


def with_prompt(model):
    model.prompts = {"query": "find: "}


def with_length(model):
    model.max_seq_length = 7


def with_other_activation(model):
    model[2].activation_function = torch.nn.Identity()


@pytest.mark.parametrize(
    "change",
    [with_cls_pooling, with_fewer_heads, with_lower_case_off, with_prompt, with_length, with_other_activation],
)
def test_a_model_in_memory_is_named_by_what_it_saves(tiny_model, tmp_path, change):
    def build():
        model = SentenceTransformer(str(tiny_model), device="cpu")
        torch.manual_seed(0)
        dim = model[0].get_embedding_dimension()
        return SentenceTransformer(modules=[model[0], model[1], Dense(dim, dim)], device="cpu")

    before = saved_model_name(build(), tmp_path, "teacher")
    assert saved_model_name(build(), tmp_path, "teacher") == before
    changed = build()
    change(changed)
    assert saved_model_name(changed, tmp_path, "teacher") != before
    assert len([path for path in (tmp_path / "inputs").iterdir() if path.name != ".lock"]) == 2  # nothing unfinished


def a_list():
    return [*TEXTS]


def a_frame():
    return pytest.importorskip("pandas").DataFrame({"text": TEXTS})


def a_data_set():
    return pytest.importorskip("datasets").Dataset.from_dict({"text": TEXTS})


def put(texts, row, text):
    """The texts with another one in a row; in place where they can be changed."""
    if isinstance(texts, list):
        texts[row] = text
    elif hasattr(texts, "loc"):
        texts.loc[row, "text"] = text
    else:
        return texts.map(lambda _, number: {"text": text if number == row else TEXTS[number]}, with_indices=True)
    return texts


def stored_texts(path):
    if path.endswith(".parquet"):
        return pq.read_table(path).column("text").to_pylist()
    return [json.loads(line)["text"] for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("make", [a_list, a_frame, a_data_set])
def test_texts_in_memory_are_named_by_their_content_and_stored_again_where_they_are_damaged(tmp_path, make):
    texts = make()
    first = source_keys(texts, tmp_path)[0]["path"]
    assert source_keys(make(), tmp_path)[0]["path"] == first
    second = source_keys(put(texts, 1, "other"), tmp_path)[0]["path"]
    assert second != first and stored_texts(first) == TEXTS and stored_texts(second) == [TEXTS[0], "other", *TEXTS[2:]]
    content = Path(first).read_bytes()
    Path(first).write_bytes(content[: len(content) // 2])
    assert source_keys(make(), tmp_path)[0]["path"] == first and Path(first).read_bytes() == content


def test_a_damaged_copy_of_a_model_is_made_again(tiny_model, tmp_path):
    name = saved_model_name(SentenceTransformer(str(tiny_model), device="cpu"), tmp_path, "teacher")
    files = {path: path.read_bytes() for path in Path(name).rglob("*") if path.is_file()}
    (Path(name) / "config.json").write_text("{}")
    (Path(name) / "tokenizer.json").unlink()
    assert saved_model_name(SentenceTransformer(str(tiny_model), device="cpu"), tmp_path, "teacher") == name
    assert {path: path.read_bytes() for path in Path(name).rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("texts", [{"text": TEXTS}, {"train": None}, [b"bytes"], 5, []])
def test_what_is_no_list_of_texts_is_refused(tmp_path, texts):
    with refused("texts"):
        source_keys(texts, tmp_path)


def test_threads_do_not_share_what_they_have_not_finished(tmp_path):
    lists = [[f"text {number} of {size}" for number in range(size)] for size in range(2000, 2008)]
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda texts: source_keys(texts, tmp_path)[0]["path"], lists))
    assert [stored_texts(path) for path in paths] == lists
