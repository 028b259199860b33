"""The verb `distilvec finetune`: it leaves a teacher with a head that a recipe takes."""

from __future__ import annotations

import json

import pytest
from labelled import write_task
from typer.testing import CliRunner

from distilvec.cli.app import app
from distilvec.config.recipe import load, recipe_from, validate
from distilvec.core.errors import DistilvecError, user_error
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.students.task_head import load_head
from distilvec.verbs.finetune import finetune_recipe


@pytest.mark.parametrize("words", [["--lora"], ["--no-lora"], ["student.lora=null"]], ids=" ".join)
def test_leaves_a_teacher_for_recipes(words, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    path, out = write_task(tmp_path / "task.jsonl", "classification", 64, 16), tmp_path / "teacher"
    arguments = [
        "finetune",
        str(tiny_model),
        "--task",
        str(path),
        "--type",
        "classification",
        "--epochs",
        "1",
        "--out",
        str(out),
    ]
    lora = words == ["--lora"]
    arguments += [
        *(["--r", "4"] if lora else []),
        *words,
        "--batch-size",
        "16",
        "train.device=cpu",
        "evaluation.parts=[]",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "% right on 16 test rows [" in done.output and "next: distilvec export" in done.output
    recipe = load(out / "recipe.yaml")
    assert (recipe.student.lora is not None) == lora and recipe.train.learning_rate == (2e-3 if lora else 2e-5)
    assert recipe.train.epochs == 1 and recipe.task.path == path
    head, classes = load_head(out / "student")
    assert classes == ["about desert", "about forest", "about ocean"] and head.task.classes == 3
    tree = recipe.model_copy(update={"teacher": recipe.teacher.model_copy(update={"model": str(out / "student")})})
    assert resolve(tree, tmp_path / "student").teacher.head is not None
    assert json.loads(RunFolder(out).report.read_text())["supervised"]["rows"] == 16


def test_a_relative_teacher_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "models" / "large").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    tree = finetune_recipe("models/large", tmp_path / "task.jsonl", "classification", "joint", None)
    assert recipe_from(tree, {}, "a test").teacher.model == str(tmp_path / "models" / "large")


@pytest.mark.parametrize(("folder", "name"), [(".hidden", "hidden"), ("...", "finetune"), ("my run", "my run")])
def test_a_run_folder_may_have_any_name(folder, name, tiny_model, tmp_path, monkeypatch):
    recipes = []
    monkeypatch.setattr("distilvec.pipeline.run.run", lambda recipe, *_: recipes.append(recipe))
    path = write_task(tmp_path / "task.jsonl", "classification", 8, 4)
    options = ["--task", str(path), "--type", "classification", "--out", str(tmp_path / folder), "--no-lora"]
    done = CliRunner().invoke(app, ["finetune", str(tiny_model), *options])
    assert done.exit_code == 0, done.output
    assert [recipe.name for recipe in recipes] == [name]


def test_takes_the_teachers_pooling_and_length(tmp_path):
    import architectures

    model = architectures.sentence_transformer(tmp_path / "model", architectures.bert(tmp_path / "backbone"), "cls")
    path = write_task(tmp_path / "task.jsonl", "pair", 32, 8)
    job = resolve(validate(finetune_recipe(str(model), path, "pair", "joint", None)), tmp_path / "run")
    student = untrained_student(job)
    assert student[1].pooling_mode == "cls" and student.max_seq_length == job.student_length == 128


@pytest.mark.parametrize(
    ("option", "value"), [("--type", "ranking"), ("--encode", "together"), ("--task", "absent.jsonl")]
)
def test_a_wrong_task_is_named_by_its_option(option, value, tiny_model, tmp_path):
    path = write_task(tmp_path / "task.jsonl", "pair", 8, 4)
    options = {"--task": str(path), "--type": "pair", "--out": str(tmp_path / "run")} | {option: value}
    words = [word for pair in options.items() for word in pair]
    done = CliRunner().invoke(app, ["finetune", str(tiny_model), "--no-lora", *words])
    problem = user_error(done.exception)
    assert problem is not None and problem.key == option


@pytest.mark.parametrize(("words", "key"), [(["--r", "4"], "--r"), (["student.lora.r=4"], "student.lora.r")])
def test_settings_of_adapters_contradict_no_adapters(words, key, tiny_model, tmp_path):
    path = write_task(tmp_path / "task.jsonl", "classification", 8, 4)
    options = ["--task", str(path), "--type", "classification", "--out", str(tmp_path / "run"), "--no-lora"]
    done = CliRunner().invoke(app, ["finetune", str(tiny_model), *options, *words])
    assert isinstance(done.exception, DistilvecError) and done.exception.key == key
