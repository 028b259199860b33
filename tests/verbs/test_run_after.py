"""A variant that begins from the student of another one: one command runs both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from samples import make_texts

import distilvec
from distilvec.__main__ import run_command
from distilvec.config.yaml_dialect import dump_yaml

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
    assert "first small-first" in capsys.readouterr().err
    first, second = distilvec.result("runs/small-first"), distilvec.result("runs/mine")
    assert first.recipe.train.max_steps == second.recipe.train.max_steps == 2
    student = str(Path("runs/small-first/student").absolute())
    assert second.recipe.student.model == student and second.recipe.after == "first"
    assert dump_yaml({"model": student}).strip() in Path("runs/mine/recipe.yaml").read_text(), "from anywhere"
    assert run_command(words) == 0, "the same command goes on, though that folder was not there before"
    before = Path("runs/small-first/details/record.json").stat().st_mtime_ns
    assert run_command([*words, "--restart"]) == 0
    assert Path("runs/small-first/details/record.json").stat().st_mtime_ns == before, "the student is there"


def test_the_plan_names_the_variant_that_is_run_first(recipe, capsys, no_pages):
    assert run_command(["plan", recipe, "--variant", "second"]) == 2
    problem = capsys.readouterr().err
    assert "small-first" in problem and "--variant first" in problem
    assert run_command(["plan", recipe, "--variant", "first"]) == 0
    assert run_command(["run", recipe, "--variant", "first"]) == 0
    assert run_command(["plan", recipe, "--variant", "second"]) == 0


def test_a_variant_that_is_not_there_is_named(recipe, capsys):
    text = Path(recipe).read_text().replace("after: first", "after: frist")
    Path(recipe).write_text(text)
    assert run_command(["run", recipe, "--variant", "second"]) == 2
    assert "[--variant]" in capsys.readouterr().err


class Killed(BaseException):
    """What ends a run without any of its own handling."""


@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_an_unfinished_first_variant_is_run_to_its_end(recipe, step, capsys, no_pages, monkeypatch):
    """Its student is there from the first step on, and is not the one that the second variant should begin with."""

    def kill(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patched:
        where = "distilvec.train.trainer.Trainer._epoch" if step == "train" else "distilvec.pipeline.run.evaluate"
        patched.setattr(where, kill)
        with pytest.raises(Killed):
            run_command(["run", recipe, "--variant", "first"])
    assert Path("runs/small-first/student/modules.json").exists()
    assert not Path("runs/small-first/details/record.json").exists()
    capsys.readouterr()
    assert run_command(["run", recipe, "--variant", "second"]) == 0
    assert "first small-first" in capsys.readouterr().err
    assert distilvec.result("runs/small-first").record.training.steps == 3


def test_a_model_that_is_in_no_run_folder_is_taken_as_it_is(recipe, capsys, no_pages):
    assert run_command(["run", recipe, "--variant", "first"]) == 0
    shutil.copytree("runs/small-first/student", "copied/student")
    shutil.rmtree("runs/small-first")
    capsys.readouterr()
    assert run_command(["run", recipe, "--variant", "second", "student.model=copied/student"]) == 0
    assert "first the variant" not in capsys.readouterr().err


def test_every_run_of_a_sweep_finds_the_student_that_it_begins_with(recipe, capsys, no_pages):
    words = ["run", recipe, "sweep.variants=[first,second]", "--out", "runs/sweep"]
    assert run_command(words) == 0
    assert "first small-first" in capsys.readouterr().err
    assert distilvec.result("runs/small-first").record.training.steps == 3
    names = {row.run for row in distilvec.compare(["runs/sweep"]).rows}
    assert {"first", "second"} <= names
    assert run_command(words) == 0
    assert "first small-first" not in capsys.readouterr().err, "it is finished"
