"""TaskModel: labels, probabilities and scores of a saved model; `predict` loads a model once until its files change."""

from __future__ import annotations

from functools import partial

import architectures
import numpy as np
import pytest
import torch
from refusals import refused
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.model_name import ModelName
from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.load import load_model
from distilvec.students import task_head
from distilvec.students.task_head import TaskModel, predict, predict_logits, save_head
from distilvec.teachers.model_embedder import ModelEmbedder

NAMES = ["x", "y", "z"]
KINDS = {"classification": TaskInfo("classification", 3), "pair": TaskInfo("pair", 3, 2), "sts": TaskInfo("sts", 1, 2)}


@pytest.fixture
def student(tiny_model, tmp_path):
    def make(kind="classification", name="student"):
        head, classes = TaskHead(32, KINDS[kind]), [] if kind == "sts" else NAMES
        scale = (1.0, 5.0) if kind == "sts" else None
        model = SentenceTransformer(str(tiny_model), device="cpu")
        save_student(
            model,
            tmp_path / name,
            {},
            "card",
            extra_files=lambda folder: save_head(folder, head, classes, scale, "p: "),
        )
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    ("kind", "texts"), [("classification", ["a text", "another"]), ("pair", [("a", "b"), ("river", "stone")])]
)
def test_probabilities_agree_with_labels(kind, texts, student):
    model = TaskModel(str(student(kind)))
    found = model.predict_proba(texts)
    assert isinstance(found, np.ndarray) and found.shape == (2, 3) and found.sum(1) == pytest.approx([1, 1])
    assert model.predict(texts) == [NAMES[number] for number in found.argmax(1)] == predict(model.folder, texts)
    assert model.classes == NAMES and model.predict([]) == [] and model.predict_proba([]).shape == (0, 3)
    assert repr(model) == f"TaskModel({str(model.folder)!r}, kind={kind!r}, classes=['x', 'y', 'z'])"


def test_a_damaged_model_is_named(student):
    folder = student()
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(DistilvecError, match=f"cannot use {folder}"):
        TaskModel(folder)


def test_white_space_around_a_text_counts_no_more_than_in_training(tmp_path):
    """A byte-level tokenizer has other tokens for it, and training rows are read without it."""
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.gpt2(tmp_path / "backbone"))
    model = SentenceTransformer(str(folder), device="cpu")
    assert np.abs(model.encode("a text") - model.encode(" a text\n")).max() > 1e-3
    width = model.get_embedding_dimension()
    for kind, task in {**KINDS, "joint pair": TaskInfo("pair", 3, 1)}.items():
        head, student = TaskHead(width, task), tmp_path / kind
        classes, scale = ([], (1.0, 5.0)) if kind == "sts" else (NAMES, None)
        save_student(
            model, student, {}, "card", extra_files=partial(save_head, head=head, classes=classes, scale=scale)
        )
        bare, padded = ("a text", " a text\n") if kind == "classification" else (("a", "b"), ("a ", "\n b"))
        found = TaskModel(student)._logits([bare, padded])
        assert found[0] == pytest.approx(found[1], abs=1e-5), kind


def test_an_empty_text_is_one_unknown_token_as_in_training(tmp_path):
    """Of a tokenizer that adds no special tokens, alone and beside others."""
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.gpt2(tmp_path / "backbone"), "mean")
    model = load_model(ModelName(str(folder)))
    expected = ModelEmbedder(model, "model").embed([""])[0]
    head = TaskHead(model.get_embedding_dimension(), KINDS["classification"]).eval()
    with torch.no_grad():
        logits = head(torch.from_numpy(expected)[None])
    for texts in ([""], ["", "a longer text"]):
        found = predict_logits(model, head, [(text,) for text in texts])[0]
        assert found.tolist() == pytest.approx(logits[0].tolist(), abs=1e-5)


def test_scores_have_no_probabilities(student):
    model = TaskModel(student("sts"))
    assert model.classes == [] and model.predict([["a", "a"]]) == pytest.approx([5.0], abs=1e-4), (
        "a list of two is a pair"
    )
    with pytest.raises(DistilvecError, match=r"^\[predict_proba\] .*sts"):
        model.predict_proba([("a", "b")])


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("classification", "one text"),
        ("classification", b"one text"),
        ("classification", None),
        ("classification", 3),
        ("classification", [None]),
        ("classification", ["a", 3.0]),
        ("classification", ["a", ("b", "c")]),
        ("pair", ["ab"]),
        ("pair", [("a", "b", "c")]),
        ("pair", [("a", None)]),
        ("pair", [()]),
        ("pair", ("a", "b")),
    ],
)
def test_texts_that_do_not_fit_the_task(kind, texts, student):
    with refused("texts"):
        TaskModel(student(kind)).predict(texts)


def test_folders_that_cannot_be_used(student, tiny_model, tmp_path):
    with pytest.raises(DistilvecError, match=r"^\[model\] .*absent is not a folder"):
        TaskModel(tmp_path / "absent")
    with refused("model", "head.json"):
        TaskModel(tiny_model)
    folder = student()
    next(folder.rglob("model.safetensors")).write_bytes(b"nothing")
    with refused("model"):
        TaskModel(folder)


def test_predict_loads_once_until_the_files_change(student, monkeypatch):
    loads, load = [], task_head.load_model
    monkeypatch.setattr(
        task_head, "load_model", lambda *arguments, **more: loads.append(arguments) or load(*arguments, **more)
    )
    folder, other = student(), student("sts", "other")
    first = predict(folder, ["a text"])
    assert predict(str(folder), ["a text"]) == first and len(loads) == 1
    predict(other, [("a", "b")])
    assert predict(folder, ["a text"]) == first and len(loads) == 2, "two models stay"
    save_head(folder, TaskHead(32, KINDS["classification"]), ["q", "r", "s"])
    assert predict(folder, ["a text"])[0] in "qrs" and len(loads) == 3
