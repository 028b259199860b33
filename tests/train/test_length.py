"""The length of a training: passes, minutes, and an early end where validation is flat."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from interrupted import interrupt
from jobs import train
from refusals import refused
from safetensors.torch import load_file

from distilvec.config.training import TrainSection
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.overview import time_line
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.train import SAMPLE_STEPS, measure_pace
from distilvec.train import trainer, validation
from distilvec.train.length import Pace, automatic_passes, decay_steps, read_steps, steps_within
from distilvec.train.metrics import read_metrics
from distilvec.train.optimizer import build_schedule, with_early_decay
from distilvec.train.validation import padded_tokens

AUTO = {"train__epochs": "auto"}
MINUTES = {**AUTO, "train__minutes": 0.05}
# Rates so low that nothing improves, validated so often that a short training is judged
FLAT = {**AUTO, "train__learning_rate": 1e-7, "train__validation_steps": 10, "train__checkpoint_steps": 7}


# -- passes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "labelled", "passes"),
    [
        (28_500, False, 3),
        (250_000, False, 1),
        (100_000, False, 1),
        (50_000, False, 2),
        (160, False, 30),
        (10_000, True, 5),
        (400_000, True, 3),
        (100, True, 30),
    ],
)
def test_passes_until_a_stated_number_of_texts_is_seen(rows, labelled, passes):
    assert automatic_passes(rows, labelled).count == passes


def test_passes_in_words():
    assert str(automatic_passes(28_500, False)) == "3 passes of 28,500 texts"
    assert str(automatic_passes(250_000, False)) == "1 pass of 250,000 texts"


def test_a_recipe_that_states_no_length_gets_passes_in_log_and_record(tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("distilvec.train.length.TEXTS_SEEN", 2 * 168)
    assert TrainSection().epochs == "auto"
    result = run(tiny_recipe(**AUTO), tmp_path / "run")
    training = result.record.training
    assert (training.epochs, training.length) == (2, "2 passes of 168 texts")
    assert training.texts == 2 * 168
    assert "2 passes of 168 texts" in capsys.readouterr().err


def test_stages_decide_for_themselves(tiny_recipe, tmp_path):
    stages = [{"name": "first", "set": {"train.epochs": 2}}, {"name": "second"}]
    job = resolve(tiny_recipe(**AUTO, stages=stages), tmp_path / "run")
    assert [stage.recipe.train.epochs for stage in job.stages] == [2, 30]
    assert [stage.automatic is not None for stage in job.stages] == [False, True]


def test_max_steps_alone_state_the_length(tiny_recipe, tmp_path):
    job = resolve(tiny_recipe(**AUTO, train__max_steps=3), tmp_path / "run")
    assert job.stages[0].automatic is None
    assert train(job).state.step == 3


def test_max_steps_are_all_trained_however_many_passes_they_are(tiny_recipe, tmp_path):
    recipe = tiny_recipe(**AUTO, train__max_steps=40, train__batch_size=168)
    assert train(resolve(recipe, tmp_path / "run")).state.step == 40


def test_a_pass_alone_is_no_reason_for_a_checkpoint(tiny_recipe, tmp_path, monkeypatch):
    """Of few texts a pass takes less time than a checkpoint."""
    saved = []
    save = trainer.save_checkpoint
    monkeypatch.setattr(trainer, "save_checkpoint", lambda *parts: saved.append(save(*parts)))
    train(resolve(tiny_recipe(train__epochs=6), tmp_path / "run"))
    assert len(saved) == 1, "at the end"


# -- minutes -----------------------------------------------------------------------------------------------------------


def test_steps_fill_the_time_that_validations_leave():
    pace = Pace(step_seconds=0.5, validation_seconds=10.0, texts_a_step=32, steps_an_epoch=100)
    # 600 s: 5 s a step of a tenth of validations; 1 at the start, 1 after each of 9 epochs, 2 between
    steps = steps_within(600, pace, lambda total: 2 if total > 50 else 0)
    seconds = steps * 0.5 + 10 * (1 + -(-steps // 100) + 2)
    assert seconds <= 600 < seconds + 0.5 + 10
    assert steps_within(600, Pace(0.5, 0.0, 32, 100), lambda total: 0) == 1200
    assert steps_within(0.1, pace, lambda total: 0) == 1, "no training without a step"


def test_minutes_end_and_a_resumed_run_has_the_same_steps(tiny_recipe, tmp_path, monkeypatch, capsys):
    recipe = tiny_recipe(**MINUTES, train__checkpoint_steps=1)
    job = resolve(recipe, tmp_path / "run")
    interrupt(job, SAMPLE_STEPS + 1, monkeypatch)  # the measured steps have smaller numbers
    steps = read_steps(job.files.training, job.fingerprint)
    assert steps is not None and steps > SAMPLE_STEPS + 1
    monkeypatch.setattr("distilvec.pipeline.train.measure_pace", lambda *args: pytest.fail("measured again"))
    result = run(recipe, tmp_path / "run")
    assert result.record.training.steps == steps
    assert result.record.training.length == "0.05 minutes"
    assert f"0.05 minutes: {steps:,} steps of 16 texts at " in capsys.readouterr().err


def test_a_training_of_minutes_is_evaluated(tiny_recipe, tmp_path):
    result = run(tiny_recipe(**MINUTES, train__keep_students=2, evaluation__parts=["texts"]), tmp_path / "run")
    assert result.record.training.length == "0.05 minutes" and "texts" in result.report.measured
    assert (tmp_path / "run" / "report.html").exists()


def test_a_stage_of_minutes_beside_one_of_passes_has_an_estimate(tiny_recipe, tmp_path):
    stages = [{"name": "first", "set": {"train.minutes": 1}}, {"name": "second", "set": {"train.epochs": 500}}]
    job = resolve(tiny_recipe(**AUTO, stages=stages, train__device="cpu"), tmp_path / "run")
    assert "for the training" in time_line(job)


def test_measuring_changes_no_weight(tiny_recipe, tmp_path, monkeypatch):
    pace = Pace(step_seconds=0.1, validation_seconds=0.0, texts_a_step=16, steps_an_epoch=11)
    measured = resolve(tiny_recipe(**AUTO, train__minutes=0.5 / 60), tmp_path / "measured")

    def known_pace(*args):
        measure_pace(*args)
        return pace

    monkeypatch.setattr("distilvec.pipeline.train.measure_pace", known_pace)
    assert train(measured).state.step == 5
    stated = resolve(tiny_recipe(train__max_steps=5), tmp_path / "stated")
    train(stated)
    assert weights(measured) == weights(stated)


def test_the_tokens_of_a_validation_count_the_padding():
    data = SimpleNamespace(lengths=np.array([9, 2, 99, 3, 8]), holdout_rows=np.array([0, 1, 3, 4]))
    assert padded_tokens(data, 2) == 2 * 3 + 2 * 9, "2 beside 3, 8 beside 9; row 2 is not for validation"
    assert padded_tokens(data, 100) == 4 * 9


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 3}, {"max_steps": 10}, {"schedule": {"name": "cycles"}}],
)
def test_minutes_and_another_length_are_refused(tiny_recipe, changes):
    keys = {"epochs": "auto"} | changes
    with refused("train.minutes"):
        tiny_recipe(train={"minutes": 5, **keys})


# -- an early end ------------------------------------------------------------------------------------------------------


def test_the_rate_falls_from_where_the_decay_begins():
    train_section = TrainSection(epochs=1, learning_rate=1e-3, schedule={"name": "constant", "warmup": 0})
    schedule = build_schedule(train_section, 1000, 1e-3, passes=1)
    early = with_early_decay(schedule, 200, decay_steps(200), 1e-5)
    assert decay_steps(200) == 20 and decay_steps(1000) == 100 and decay_steps(3) == 20
    assert early(199, 0) == 1e-3
    assert early(209, 0) == pytest.approx((1e-3 + 1e-5) / 2)
    assert early(219, 0) == pytest.approx(1e-5)


def test_a_flat_validation_ends_the_training_early(tiny_recipe, tmp_path, capsys):
    job = resolve(tiny_recipe(**FLAT, train__logging_steps=1), tmp_path / "run")
    state = train(job).state
    # 30 passes of 11 steps: validations that count are at least 17 steps apart
    assert state.finished and 0 < state.decay_step < 150
    assert state.step == state.decay_step + decay_steps(state.decay_step)
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    rates = {line["step"]: line["train/learning_rate"] for line in lines if "train/loss" in line}
    assert rates[state.step] == 0.0 < rates[state.decay_step]
    assert f"training ends at step {state.step} instead of 330" in capsys.readouterr().err


def test_a_student_of_higher_overlap_is_trained_on(tiny_recipe, tmp_path, monkeypatch):
    """Its distance stays where it is: the share of the teacher's overlap decides which student is saved."""
    shares = iter(np.arange(0.1, 3, 0.03))
    measure = validation.teacher_distance

    def found(*arguments):
        return {**measure(*arguments), "distance": 0.5, "overlap_of_validation_texts": next(shares)}

    monkeypatch.setattr(validation, "teacher_distance", found)
    monkeypatch.setattr("distilvec.train.length.TEXTS_SEEN", 10 * 168)
    state = train(resolve(tiny_recipe(**FLAT), tmp_path / "run")).state
    assert state.decay_step == -1 and state.step == 110


def test_a_killed_run_ends_at_the_same_step_with_the_same_bits(tiny_recipe, tmp_path, monkeypatch):
    whole, halved = (resolve(tiny_recipe(**FLAT), tmp_path / name) for name in ("whole", "halved"))
    state = train(whole).state
    interrupt(halved, state.decay_step + 9, monkeypatch, execute=train)
    assert train(halved).state.step == state.step
    assert weights(whole) == weights(halved)


@pytest.mark.parametrize("changes", [{"train__epochs": 15}, {"train__epochs": "auto", "train__max_steps": 160}])
def test_a_stated_length_is_trained_to_its_end(tiny_recipe, tmp_path, changes):
    state = train(resolve(tiny_recipe(**{**FLAT, **changes}), tmp_path / "run")).state
    assert state.decay_step == -1 and state.step >= 160


def test_a_student_in_a_space_of_its_own_is_trained_to_the_end(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.train.length.TEXTS_SEEN", 10 * 168)
    state = train(resolve(tiny_recipe(**FLAT, method__name="simcse"), tmp_path / "run")).state
    assert state.decay_step == -1 and state.step == 100  # the last batch of a pass is too small


def weights(job):
    """The last weights of a training, as bytes by name."""
    tensors = load_file(job.files.checkpoint)
    return {name: value.numpy().tobytes() for name, value in tensors.items() if name.startswith("model/")}
