"""A variant that begins from the student of another one: one command runs both."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import make_texts

import distilvec
from distilvec.__main__ import run_command

RECIPE = """
name: small
teacher: {model: TEACHER}
student: {model: teacher, layers: 2}
corpus: {sources: texts.txt, validation_rows: 16}
method: {name: redact}
train: {epochs: 1, max_steps: 3, batch_size: 8, learning_rate: 1e-3, precision: fp32, device: cpu}
evaluation: {parts: []}
variants:
  first: {}
  second:
    after: first
    student.model: runs/small-first/student
    student.layers: null
"""


@pytest.fixture
def recipe(tmp_path, tiny_model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(make_texts(60)))
    Path("small.yaml").write_text(RECIPE.replace("TEACHER", str(tiny_model)))
    return "small.yaml"


def test_one_command_runs_both(recipe, capsys, no_pages):
    words = ["run", recipe, "--variant", "second", "--out", "runs/mine", "train.max_steps=2"]
    assert run_command(words) == 0
    assert "first the variant first" in capsys.readouterr().err
    first, second = distilvec.result("runs/small-first"), distilvec.result("runs/mine")
    assert first.recipe.train.max_steps == second.recipe.train.max_steps == 2
    assert second.recipe.student.model == "runs/small-first/student" and second.recipe.after == "first"
    before = Path("runs/small-first/details/record.json").stat().st_mtime_ns
    assert run_command([*words, "--restart"]) == 0
    assert Path("runs/small-first/details/record.json").stat().st_mtime_ns == before, "the student is there"


def test_a_variant_that_is_not_there_is_named(recipe, capsys):
    text = Path(recipe).read_text().replace("after: first", "after: frist")
    Path(recipe).write_text(text)
    assert run_command(["run", recipe, "--variant", "second"]) == 2
    assert "[variant]" in capsys.readouterr().err
