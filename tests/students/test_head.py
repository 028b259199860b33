"""The head on disk: the same answers after loading, whatever the task; prediction refuses what does not fit."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.task_head import TaskHead, TaskInfo
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
    with pytest.raises(DistilvecError, match=r"\[head\.json\]"):
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
