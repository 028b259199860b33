"""A training that falls behind its start: the start is a candidate, the rate is lowered, the sentence is shown."""

from __future__ import annotations

import math
import re
from pathlib import Path

import architectures
import numpy as np
import pytest
import torch
from interrupted import interrupt
from jobs import train
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.start import read_start
from distilvec.train.metrics import Metric, read_metrics
from distilvec.train.start import BEHIND_LAYER_RATE, Standing, suitable_rate, validation_steps

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
    sentence = result.record.training.shipped
    assert result.verdict.advice[0] == sentence and result.verdict.reason == "brought nothing"
    assert sentence in (tmp_path / "run" / "student" / "README.md").read_text()


def test_the_rate_is_lowered_twice_and_the_third_time_training_goes_on_with_the_first_one(
    tiny_recipe, tmp_path, capsys
):
    constant = {"train__schedule": {"name": "constant"}, "train__epochs": 5}
    recipe = tiny_recipe(**{**DESTROYS, **constant}, train__logging_steps=1)
    job = resolve(recipe, tmp_path / "run")
    state = train(job).state
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    returns = [line["step"] for line in lines if line.get("kind") == "start"]
    rates = {line["step"]: line["train/learning_rate"] for line in lines if "train/loss" in line}
    assert len(returns) == state.returns == 3
    assert [rates[step + 1] for step in returns] == pytest.approx([0.03 / 4, 0.03 / 16, 0.03])
    assert state.finished and state.step == max(rates) > returns[-1] and state.best_step == 0
    said = capsys.readouterr().err
    assert said.count("back to its start") == 3 and "lower ones did not help" in said


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


TOWARDS_THE_MEAN = """
from distilvec.core.objective import Objective
from distilvec.losses.distance import l2_distance


class TowardsTheMean(Objective):
    \"\"\"Every text is trained towards the mean of the teacher's vectors.\"\"\"

    default_weights = {"mean": 1.0}

    def forward(self, batch, student, teacher):
        mean = teacher.embedding.mean(0, keepdim=True).expand_as(teacher.embedding)
        return {"mean": l2_distance(student.embedding, mean)}
"""


def shifted(model, texts, folder):
    """The model behind a layer that adds one vector to all others, in a direction in which the texts do not differ."""
    student = SentenceTransformer(str(model), device="cpu")
    vectors = student.encode(texts)
    shift = torch.from_numpy(np.linalg.svd(vectors, full_matrices=False)[2][-1]).float()
    layer = Dense(len(shift), len(shift), activation_function=torch.nn.Identity())
    with torch.no_grad():
        layer.linear.weight.copy_(torch.eye(len(shift)))
        layer.linear.bias.copy_(np.linalg.norm(vectors, axis=1).mean() * shift)
    SentenceTransformer(modules=[*student, layer], device="cpu").save(str(folder))
    return str(folder)


def test_the_start_ships_where_a_nearer_student_has_a_lower_overlap(tiny_recipe, tmp_path):
    """All vectors come nearer to the teacher's, on average, and lose what sets them apart."""
    method = tmp_path / "towards_the_mean.py"
    method.write_text(TOWARDS_THE_MEAN)
    recipe = tiny_recipe(method__name=str(method), **WHOLE, train__learning_rate=3e-3, train__epochs=3)
    texts = Path(recipe.corpus.sources[0].path).read_text(encoding="utf-8").splitlines()
    student = shifted(recipe.teacher.model, texts, tmp_path / "shifted")
    recipe = recipe.model_copy(
        update={"student": recipe.student.model_copy(update={"model": student, "dense": "keep"})}
    )
    result = run(recipe, tmp_path / "run")
    lines = validations(tmp_path / "run")
    first, last = lines[0], lines[-1]
    assert (
        last["eval/distance"] < first["eval/distance"]
        and last["eval/overlap_of_validation_texts"] < first["eval/overlap_of_validation_texts"] - 0.02
    )
    assert result.record.training.best_step == 0
    before, after = re.search(r"overlap@10 ([\d.]+) before, ([\d.]+) after", result.record.training.shipped).groups()
    assert float(after) < float(before) - 0.02
    assert result.record.overlap.student == result.record.overlap.start


@pytest.mark.parametrize(
    ("ours", "theirs", "better"),
    [
        ((0.5, 0.60), (0.6, 0.60), True),
        ((0.6, 0.60), (0.5, 0.60), False),
        ((0.5, 0.50), (0.6, 0.60), False),
        ((0.7, 0.70), (0.5, 0.60), True),
        ((0.5, 0.59), (0.6, 0.60), True),
        ((0.5, 0.60), (0.5, 0.60), False),
    ],
)
def test_the_overlap_counts_first_and_then_the_distance(ours, theirs, better):
    standings = [Standing(Metric("distance", distance, False), overlap) for distance, overlap in (ours, theirs)]
    assert standings[0].is_better_than(standings[1]) is better


def test_every_student_is_better_than_none():
    assert Standing(Metric("distance", 9.0, False), 0.0).is_better_than(None)
    assert not Standing(Metric("distance", math.nan, False), 0.0).is_better_than(None)


def test_a_metric_says_which_way_is_better():
    near, far = (Metric("distance", value, False) for value in (0.9, 1.0))
    assert near.is_better_than(far) and far.is_worse_than(near) and not far.is_better_than(near)
    assert near.is_better_than(far, 0.09) and not near.is_better_than(far, 0.11) and not far.is_worse_than(near, 0.12)
    good, bad = (Metric("accuracy", value, True) for value in (0.9, 0.8))
    assert good.is_better_than(bad) and bad.is_worse_than(good) and not bad.is_better_than(good)
    assert not good.is_better_than(good) and not good.is_worse_than(good)
    broken = Metric("distance", math.nan, False)
    assert broken.is_worse_than(near, 0.05) and not broken.is_better_than(near)


def test_training_that_helps_is_left_alone(tiny_recipe, tmp_path):
    state = train(resolve(tiny_recipe(train__epochs=3), tmp_path / "run")).state
    assert state.returns == 0 and state.best_step > 0 and state.best.metric.value < state.start.metric.value


def test_a_student_that_knows_its_texts_is_not_trained(tiny_recipe, tmp_path, capsys):
    """All layers, and all tokens of the texts: nothing can be learned from them. Stated epochs train all the same."""
    trimmed = {**WHOLE, "student__vocabulary": {"kind": "trim"}}
    result = run(tiny_recipe(train__epochs="auto", **trimmed), tmp_path / "run")
    record = result.record
    assert record.training.steps == 0 and record.training.best_step == 0
    assert (
        "already equals the teacher" in record.training.shipped
        and "already equals the teacher" in capsys.readouterr().err
    )
    assert record.overlap.student == record.overlap.start and record.overlap.student.among.mean > 0.9
    again = run(tiny_recipe(train__epochs="auto", **trimmed), tmp_path / "run")
    assert again.record.training.steps == 0 and "already equals the teacher" not in capsys.readouterr().err
    stated = run(tiny_recipe(train__epochs=1, **trimmed), tmp_path / "stated")
    assert stated.record.training.steps > 0


def test_the_rate_follows_from_the_start(tiny_recipe, tmp_path):
    rates = {}
    for name, changes in {"near": WHOLE, "far": {"student__layers": 1}, "apart": {"method__name": "simcse"}}.items():
        result = run(tiny_recipe(train__learning_rate=None, train__max_steps=2, **changes), tmp_path / name)
        rates[name] = result.record.training.learning_rate
    assert rates["near"] == suitable_rate(1.0) < rates["far"]
    assert rates["apart"] == suitable_rate(None)


def test_deep_and_wide_students_get_a_lower_rate(tiny_recipe, tiny_model, tmp_path):
    """Rates that suit all-MiniLM-L6-v2's layers lead other students away from a start near their teacher
    (results/rates.json). Here all begin far away, so that they differ in their shape alone.
    """
    rates = {}
    for layers, width in ((6, 32), (12, 32), (1, 768)):
        config = {"model_type": "bert", "num_hidden_layers": layers, "num_attention_heads": 4, "hidden_size": width}
        student = {"config": config, "tokenizer": str(tiny_model), "dense": "always", "start": "random"}
        recipe = tiny_recipe(student=student, train__learning_rate=None, train__max_steps=2)
        rates[layers] = run(recipe, tmp_path / str(layers)).record.training.learning_rate
    assert rates[12] == pytest.approx(rates[6] / 4, rel=0.2)  # they begin at other distances
    assert rates[1] == pytest.approx(rates[6] / 2, rel=0.2)


def test_depth_and_width_count_where_all_layers_are_trained(tiny_recipe, tmp_path):
    """Not in adapters, in the layer behind the pooling alone, or in a static student's table."""
    model = str(architectures.bert(tmp_path / "wide", num_hidden_layers=12, hidden_size=768))
    whole = {"model": model, "dense": "always", "start": "random"}
    parts = {
        "whole": {"student": whole},
        "adapters": {"student": {**whole, "lora": {"r": 2}}},
        "layer": {"student": whole, "train__trainable": ["encoder.model.2"]},
        "table": {"student": {**whole, "layers": 0}},
    }
    rates = {}
    for name, changes in parts.items():
        result = run(tiny_recipe(train__learning_rate=None, train__max_steps=1, **changes), tmp_path / name)
        rates[name] = result.record.training.learning_rate
    assert rates["whole"] == pytest.approx(BEHIND_LAYER_RATE / 8)
    assert rates["adapters"] == rates["layer"] == rates["table"] == pytest.approx(BEHIND_LAYER_RATE)


def test_validations_cost_a_twentieth_of_training():
    steps = validation_steps(total_steps=3000, validation_rows=1500, rows_a_step=32)
    regular = [step for step in sorted(steps) if step >= 313]
    assert regular == list(range(313, 3000, 313))
    assert {78, 156} < steps and len(steps) == len(regular) + 2
    assert validation_steps(total_steps=10, validation_rows=1500, rows_a_step=32) == frozenset()
    assert sorted(validation_steps(500, 1, 32)) == [50, 100, 200, 400], "no closer than 200 steps"
