"""What a run says of itself: its phases, and how long it is going to take."""

from __future__ import annotations

import re

from samples import make_texts

from distilvec.config import recipe as recipes
from distilvec.core.log import begin_phase, phases
from distilvec.pipeline.run import run

PHASE = re.compile(r"^\d/\d \w+$", re.MULTILINE)


def logged(capsys, recipe, folder):
    run(recipe, folder)
    return capsys.readouterr().err


def test_a_run_counts_its_phases_and_estimates_its_time(tiny_recipe, tmp_path, capsys, monkeypatch, no_pages):
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("distilvec.pipeline.overview.LEAST_TOKENS", 0)
    recipe = tiny_recipe(train__device="cpu", cache={"root": str(tmp_path / "cache")})
    text = logged(capsys, recipe, tmp_path / "run")
    assert PHASE.findall(text) == ["1/5 texts", "2/5 teacher", "3/5 start", "4/5 training", "5/5 evaluation"]
    assert re.search(r"^time +about \d+ s for the teacher's vectors, about \d+ s for the training$", text, re.MULTILINE)
    assert re.search(r"^disk +\d", text, re.MULTILINE)
    assert text.index("time  ") < text.index("1/5 texts")
    text = logged(capsys, recipe, tmp_path / "run")
    assert PHASE.findall(text) == ["1/1 evaluation"] and "time  " not in text


def test_little_work_has_no_estimate(tiny_recipe, tmp_path, capsys, no_pages):
    """Its measurement would be a good part of the work."""
    recipe = tiny_recipe(train__device="cpu", cache={"root": str(tmp_path / "cache")})
    assert "time  " not in logged(capsys, recipe, tmp_path / "run")


def test_minutes_are_the_time_of_the_training(tiny_recipe, tmp_path, capsys, no_pages):
    text = logged(capsys, tiny_recipe(train__epochs="auto", train__minutes=0.02), tmp_path / "run")
    assert "0.02 min for the training" in text


def test_a_run_on_labels_has_no_teacher(tiny_model, tmp_path, capsys, no_pages):
    rows = "\n".join(f'{{"split": "{"test" if n % 4 == 0 else "train"}", "text": "{text[:20]}", "label": "{n % 2}"}}'
                     for n, text in enumerate(make_texts(60)))  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(rows)
    tree = {
        "name": "labels",
        "teacher": {"model": str(tiny_model)},
        "student": {"model": "teacher", "layers": 2},
        "task": {"type": "classification", "path": str(tmp_path / "rows.jsonl")},
        "method": {"name": "task"},
        "train": {"max_steps": 2, "batch_size": 8, "device": "cpu"},
        "evaluation": {"parts": []},
    }
    text = logged(capsys, recipes.validate(tree), tmp_path / "run")
    assert PHASE.findall(text) == ["1/4 texts", "2/4 start", "3/4 training", "4/4 evaluation"]


def test_work_without_phases_counts_none(capsys):
    begin_phase("teacher")
    with phases(["texts", "teacher"]):
        begin_phase("teacher")
        begin_phase("training")
    begin_phase("texts")
    assert capsys.readouterr().err.splitlines() == ["2/2 teacher"]
