"""The head on disk: the same answers after loading, whatever the task; prediction refuses what does not fit."""

from __future__ import annotations

import pytest
import torch
from refusals import refused
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.task_head import HeadInfo, TaskHead, TaskInfo
from distilvec.formats.sentence_transformers import save_student
from distilvec.students.task_head import load_head, predict, save_head

TASKS = [TaskInfo("classification", 3), TaskInfo("pair", 2, 2), TaskInfo("sts", 1), TaskInfo("sts", 1, 2)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.kind}-{task.texts_per_example}")
def test_loads_as_it_was_saved(task, tmp_path):
    head, pooled = TaskHead(8, task), torch.randn(6, 8)
    classes = [f"class {number}" for number in range(task.classes)] if task.kind != "sts" else []
    save_head(tmp_path, head, classes, (0.0, 5.0) if task.kind == "sts" else None)
    again, names = load_head(tmp_path)
    assert names == classes and again.task == task and not again.training
    assert torch.equal(again(pooled), head(pooled)) and again(pooled).shape == (
        6 // task.texts_per_example,
        task.classes,
    )
    assert not [path for path in tmp_path.iterdir() if path.suffix not in (".json", ".safetensors")]


def test_no_head_is_none_and_a_damaged_one_an_error(tmp_path):
    assert load_head(tmp_path) is None
    save_head(tmp_path, TaskHead(8, TASKS[0]), ["a", "b", "c"])
    (tmp_path / "head.safetensors").write_bytes(b"nothing")
    with pytest.raises(DistilvecError, match=r"head\.safetensors"):
        load_head(tmp_path)


def test_predicts_from_a_folder_behind_the_prompt(tiny_model, tmp_path):
    model = SentenceTransformer(str(tiny_model), device="cpu")
    pooled = model[1](model[0](model.preprocess(["p: a text", "p: another"])))["sentence_embedding"]
    head = TaskHead(32, TASKS[0])
    save_student(
        model,
        tmp_path / "student",
        {},
        "card",
        extra_files=lambda folder: save_head(folder, head, ["x", "y", "z"], prompt="p: "),
    )
    expected = [["x", "y", "z"][number] for number in head(pooled).argmax(1).tolist()]
    assert predict(tmp_path / "student", ["a text", "another"]) == expected
    assert SentenceTransformer(str(tmp_path / "student"), device="cpu").encode("a text").shape == (32,)
    with pytest.raises(DistilvecError, match="single texts"):
        predict(tmp_path / "student", [("a", "b")])
    with refused("model", "head.json"):
        predict(tiny_model, ["a"])


@pytest.mark.parametrize("members", [1, 2])
def test_predicts_scores_of_pairs_on_the_tasks_scale(members, tiny_model, tmp_path):
    model, head = SentenceTransformer(str(tiny_model), device="cpu"), TaskHead(32, TaskInfo("sts", 1, members))
    save_student(
        model, tmp_path / "student", {}, "card", extra_files=lambda folder: save_head(folder, head, [], (1.0, 5.0))
    )
    same, other = predict(tmp_path / "student", [("a text", "a text"), ("a text", "rows of documents")])
    assert (same == pytest.approx(5.0, abs=1e-4) and other < 5) if members == 2 else 1 < same < 5
    with pytest.raises(DistilvecError, match="pairs of texts"):
        predict(tmp_path / "student", ["a text"])


def test_the_authors_head_of_scores_and_dropout_before_a_head_of_classes(tmp_path):
    """5 sigmoid(w' tanh(W v + b) + c) of a vector; dropout in training alone."""
    head, pooled = TaskHead(8, TaskInfo("sts", 1), HeadInfo(hidden=5)), torch.randn(6, 8)
    save_head(tmp_path, head, [], (0.0, 5.0))
    one, two = (tensor.detach() for tensor in (head.hidden.weight, head.linear.weight))
    score = 5 / (1 + (-((pooled @ one.T + head.hidden.bias).tanh() @ two.T + head.linear.bias)).exp())
    torch.testing.assert_close(5 * load_head(tmp_path)[0](pooled), score)
    drops = TaskHead(8, TASKS[0], HeadInfo(dropout=0.5))
    assert set(drops.state_dict()) == {"linear.weight", "linear.bias"} == set(TaskHead(8, TASKS[0]).state_dict())
    assert not torch.equal(drops(pooled), drops(pooled))
    drops.eval()
    torch.testing.assert_close(drops(pooled), pooled @ drops.linear.weight.T + drops.linear.bias)
    assert TaskHead(8, TASKS[3], HeadInfo(0.1, 5)).linear is None
