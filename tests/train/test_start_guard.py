"""A training that falls behind its start: the start is a candidate, the rate is lowered, the sentence is shown."""

from __future__ import annotations

import math

import pytest
import torch
from interrupted import interrupt
from jobs import train
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.start import read_start
from distilvec.train.metrics import read_metrics
from distilvec.train.start import suitable_rate, validation_steps

pytestmark = pytest.mark.usefixtures("shared_cache")
WHOLE = {"student__layers": None}  # the teacher itself: a perfect start
DESTROYS = {**WHOLE, "train__learning_rate": 0.03, "train__epochs": 4}


def test_the_start_ships_where_training_ends_further_from_the_teacher(tiny_recipe, tmp_path):
    result = run(tiny_recipe(**DESTROYS), tmp_path / "run")
    texts = ["rain on the roof", "a train to Ankara"]
    start = read_start(resolve(tiny_recipe(**DESTROYS), tmp_path / "run")).student(
        resolve(tiny_recipe(**DESTROYS), tmp_path / "run")
    )
    shipped = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    torch.testing.assert_close(shipped.encode(texts), start.encode(texts))
    assert result.record.training.best_step == 0
    assert result.validation["distance"] == result.validation["untrained_distance"]
    sentence = "ships as it was before training"
    assert sentence in repr(result)
    assert sentence in (tmp_path / "run" / "student" / "README.md").read_text()


def test_the_rate_is_lowered_at_every_return_and_training_ends_after_the_last(tiny_recipe, tmp_path, capsys):
    job = resolve(tiny_recipe(**DESTROYS, train__logging_steps=1), tmp_path / "run")
    state = train(job).state
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    warnings = [line for line in lines if line.get("kind") == "start"]
    assert len(warnings) == 3 and state.finished and state.returns == 2
    first, second, _ = (line["step"] for line in warnings)
    before = [line["train/learning_rate"] for line in lines if "train/loss" in line and line["step"] <= first]
    after = [line["train/learning_rate"] for line in lines if "train/loss" in line and first < line["step"] <= second]
    assert max(after) < 0.3 * max(before)
    assert "back to its start" in capsys.readouterr().err


def test_a_return_is_judged_after_some_steps_of_its_own(tiny_recipe, tmp_path, monkeypatch):
    """A validation one step behind a return would spend the next one on a student that has hardly moved."""
    monkeypatch.setattr("distilvec.train.trainer.SHARE_OF_A_RETURN", 0.5)
    recipe = tiny_recipe(**DESTROYS, train__validation_steps=1)
    job = resolve(recipe, tmp_path / "run")
    train(job)
    returns = [line["step"] for line in read_metrics(job.files.metrics) if line.get("kind") == "start"]
    all_steps = math.ceil(len(job.corpus.train_rows) / recipe.train.batch_size) * recipe.train.epochs
    assert len(returns) > 1 and returns[1] - returns[0] >= all_steps / 2


def test_a_killed_run_returns_to_the_same_start(tiny_recipe, tmp_path, monkeypatch):
    recipe = tiny_recipe(**DESTROYS, train__checkpoint_steps=2, train__validation_steps=3)
    whole, halved = (resolve(recipe, tmp_path / name) for name in ("whole", "halved"))
    train(whole)
    interrupt(halved, 5, monkeypatch, execute=train)
    train(halved)
    first, second = (load_file(job.files.checkpoint) for job in (whole, halved))
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("model/"))
    assert validations(whole.folder) == validations(halved.folder)


def validations(folder):
    return [line for line in read_metrics(RunFolder(folder).metrics) if "eval/distance" in line]


def test_training_that_helps_is_left_alone(tiny_recipe, tmp_path):
    state = train(resolve(tiny_recipe(train__epochs=3), tmp_path / "run")).state
    assert state.returns == 0 and state.best_step > 0 and state.best_distance < state.start_distance


def test_a_student_that_knows_its_texts_is_not_trained(tiny_recipe, tmp_path, capsys):
    """All layers, and all tokens of the texts: nothing can be learned from them. Stated epochs train all the same."""
    trimmed = {**WHOLE, "student__vocabulary": {"kind": "trim"}}
    result = run(tiny_recipe(train__epochs="auto", **trimmed), tmp_path / "run")
    record = result.record
    assert record.training.steps == 0 and record.training.best_step == 0
    assert "nothing to learn" in record.training.shipped and "nothing to learn" in capsys.readouterr().err
    assert record.neighbors.student == record.neighbors.start and record.neighbors.student.among.mean > 0.9
    again = run(tiny_recipe(train__epochs="auto", **trimmed), tmp_path / "run")
    assert again.record.training.steps == 0 and "nothing to learn" not in capsys.readouterr().err
    stated = run(tiny_recipe(train__epochs=1, **trimmed), tmp_path / "stated")
    assert stated.record.training.steps > 0


def test_the_rate_follows_from_the_start(tiny_recipe, tmp_path):
    rates = {}
    for name, changes in {"near": WHOLE, "far": {"student__layers": 1}, "apart": {"method__name": "simcse"}}.items():
        result = run(tiny_recipe(train__learning_rate=None, train__max_steps=2, **changes), tmp_path / name)
        rates[name] = result.record.training.learning_rate
    assert rates["near"] == suitable_rate(1.0) < rates["far"]
    assert rates["apart"] == suitable_rate(None)


def test_validations_cost_a_twentieth_of_training():
    steps = validation_steps(total_steps=3000, validation_rows=1500, rows_a_step=32)
    regular = [step for step in sorted(steps) if step >= 313]
    assert regular == list(range(313, 3000, 313))
    assert {78, 156} < steps and len(steps) == len(regular) + 2
    assert validation_steps(total_steps=10, validation_rows=1500, rows_a_step=32) == frozenset()
    assert sorted(validation_steps(500, 1, 32)) == [50, 100, 200, 400], "no closer than 200 steps"
