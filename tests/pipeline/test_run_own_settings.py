"""Runs with a teacher that pools by its first token: the student keeps that, and plan, log, page and card tell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from architectures import bert, sentence_transformer
from labelled import write_task
from samples import make_texts
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.__main__ import run_command
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.train.metrics import read_metrics
from distilvec.verbs.plan.plan import make_plan

SMALL = {"train.max_steps": 2, "train.batch_size": 8, "train.device": "cpu", "train.precision": "fp32"}


@pytest.fixture(scope="module")
def cls_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cls")
    return sentence_transformer(folder / "model", bert(folder / "backbone"), "cls normalize")


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(60)))


def pooling_of(folder: Path) -> str:
    return str(SentenceTransformer(str(folder), device="cpu")[1].pooling_mode)


def first_distance(folder: Path) -> float:
    return float(read_metrics(RunFolder(folder).metrics)[0]["eval/distance"])


def test_in_python(cls_model: Path, tmp_path: Path) -> None:
    """With every layer the student begins as its teacher. By the mean it began at 0.8."""
    still = SMALL | {"student.dropout": 0.0, "teacher.dtype": "float32"}  # bf16 alone is 0.016 away
    student = distilvec.distill(str(cls_model), make_texts(60), layers=[0, 1, 2, 3], out="run", overrides=still).student
    assert student[1].pooling_mode == "cls" and first_distance(tmp_path / "run") < 1e-3
    other = distilvec.distill(
        str(cls_model), "texts.txt", student=str(cls_model), layers=2, out="named", overrides=SMALL
    ).student
    assert other[1].pooling_mode == "cls"


@pytest.mark.parametrize("name", ["redact", "talas", "baselines/rkd", "baselines/minilm", "api"])
def test_in_recipes_that_users_name(cls_model: Path, tmp_path: Path, name: str) -> None:
    """No recipe states the pooling of a student that its user chooses."""
    root = Path(__file__).parents[2] / "recipes"
    variant = [] if name == "api" else ["--variant", "local"]
    words = ["run", str(root / f"{name}.yaml"), *variant, f"teacher={{model: {cls_model}}}", "--out", "run"]
    words += [f"student.model={cls_model}", "student.layers=2", "student.reinitialize=null", "student.max_length=null"]
    words += ["corpus.sources=[{path: texts.txt}]", "evaluation={}", "train.device=cpu", "train.max_steps=2"]
    assert run_command(words) == 0
    assert pooling_of(tmp_path / "run" / "student") == "cls"


@pytest.mark.parametrize("kind", ["classification", "sts"])
def test_with_a_head(cls_model: Path, tmp_path: Path, kind: str) -> None:
    path = write_task(tmp_path / "task.jsonl", kind, 32, 8)
    words = ["run", "task", "--variant", "local", f"teacher={{model: {cls_model}}}", "--out", "run"]
    words += [f"task={{type: {kind}, path: {path}, encode: separate}}", "student={model: teacher, layers: 2}"]
    assert run_command([*words, "evaluation={}", "train.device=cpu", "train.max_steps=2"]) == 0
    assert pooling_of(tmp_path / "run" / "student") == "cls"
    assert len(distilvec.predict("run/student", ["a text"] if kind == "classification" else [("a", "b")])) == 1


def test_a_vocabulary_keeps_the_pooling(cls_model: Path, tmp_path: Path) -> None:
    trimmed = SMALL | {"student.vocabulary": {"kind": "trim"}}
    student = distilvec.distill(str(cls_model), "texts.txt", layers=2, out="run", overrides=trimmed).student
    assert student[1].pooling_mode == "cls"
    changed = distilvec.transplant(str(cls_model), "texts.txt", "changed")
    assert changed[1].pooling_mode == "cls"
    texts = make_texts(10)
    np.testing.assert_allclose(
        changed.encode(texts), SentenceTransformer(str(cls_model), device="cpu").encode(texts), atol=1e-5
    )


def test_plan_log_page_and_card_tell(cls_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pooling, prompts and maximum lengths are rows of the plan; a student that reads less than its teacher is told."""
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    tree = {
        "name": "told",
        "teacher": {"model": str(cls_model), "prompts": {"query": "q: ", "document": ""}, "max_length": 64},
        "student": {"model": str(bert(tmp_path / "plain")), "layers": 2, "max_length": 32},
        "corpus": {"sources": [{"path": str(tmp_path / "texts.txt")}]},
        "method": {"name": "redact"},
        "train": {"max_steps": 2, "device": "cpu", "precision": "fp32", "batch_size": 8},
        "evaluation": {"suite": str(tmp_path / "suite.yaml"), "parts": []},
    }
    recipe = distilvec.config.recipe.validate(tree)
    rows = make_plan(resolve(recipe, tmp_path / "run")).lines
    names = [name for name, _ in rows]
    teacher, student = names.index("teacher"), names.index("student")
    assert rows[teacher + 1 : teacher + 4] == [
        ["  pooling", "cls"], ["  prompts", "query 'q: '"], ["  maximum length", "64 tokens"]
    ]  # fmt: skip
    shorter, note = "32 tokens, fewer than the teacher's 64", f"pooling mean: {tmp_path / 'plain'} states none"
    assert rows[student + 1 : student + 5] == [
        ["  pooling", "mean"], ["  prompts", "query 'q: '"], ["  maximum length", shorter], ["  note", note]
    ]  # fmt: skip
    log = capsys.readouterr().err
    assert f"student: {note}\n" in log and f"student: reads {shorter}\n" in log
    result = distilvec.run(recipe, out="run")
    assert f"| maximum length | {shorter} |" in (tmp_path / "run" / "student" / "README.md").read_text()
    assert f"The student reads {shorter}." in result.page.read_text().replace("&#39;", "'")
    record = json.loads(RunFolder(tmp_path / "run").record.read_text())
    assert (record["teacher"]["pooling"], record["teacher"]["max_length"]) == ("cls", 64)
    equal = tree | {"student": {"model": "teacher", "layers": 2}}
    capsys.readouterr()
    resolve(distilvec.config.recipe.validate(equal), tmp_path / "equal")
    assert "student:" not in capsys.readouterr().err
