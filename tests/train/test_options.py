"""A run says once what its method finds wrong with its options: on real methods with short texts, narrow cosines."""

from __future__ import annotations

import json

import architectures
import pytest
import torch
from interrupted import interrupt
from samples import make_texts

from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective
from distilvec.core.outputs import ModelOutputs
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.train.metrics import read_metrics
from distilvec.train.monitors import ENOUGH_BATCHES, OptionMonitor, take_snapshot

KEPT = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "max_position_embeddings")  # fmt: skip


class Judge(Objective):
    """Finds a problem where the mean of its one metric is above a half; keeps what it was asked."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.asked: list[dict[str, float]] = []

    def problem(self, metrics):
        self.asked.append(dict(metrics))
        return "too much" if metrics["share"] > 0.5 else ""


def snapshot(share: float, texts: int):
    ids = torch.arange(texts)[:, None]
    batch = TextBatch(torch.arange(texts), {"input_ids": ids}, torch.zeros(texts, dtype=torch.long))
    return take_snapshot(batch, ModelOutputs(), ModelOutputs(), {"share": torch.tensor(share)})


def test_the_method_is_asked_about_means_over_many_batches():
    """The texts of a batch are alike in length: a few of them say nothing about all."""
    judge = Judge()
    monitor = OptionMonitor(judge)
    for step in range(1, ENOUGH_BATCHES):
        monitor.observe(snapshot(float(step < 6), 100), step)
    assert not judge.asked and not monitor.warning()
    monitor.observe(snapshot(0.0, 200), ENOUGH_BATCHES)
    assert judge.asked == [{"share": pytest.approx(500 / 1300)}] and not monitor.warning()
    monitor.observe(snapshot(1.0, 1000), ENOUGH_BATCHES + 1)
    assert judge.asked[-1] == {"share": pytest.approx(1500 / 2300)}
    assert monitor.warning() == "too much" and not monitor.warning()
    monitor.observe(snapshot(1.0, 100), ENOUGH_BATCHES + 2)
    assert len(judge.asked) == 2, "a run warns once"

    resumed = OptionMonitor(Judge())
    resumed.state = dict(monitor.state)
    resumed.observe(snapshot(0.0, 200), ENOUGH_BATCHES + 3)
    assert resumed.objective.asked == [{"share": pytest.approx(1500 / 2500)}]


def test_batches_of_a_text_are_judged_once_there_are_enough_texts():
    monitor = OptionMonitor(Judge())
    for step in range(1, 64):
        monitor.observe(snapshot(1.0, 1), step)
    assert not monitor.objective.asked
    monitor.observe(snapshot(1.0, 1), 64)
    assert monitor.warning() == "too much"


def test_a_method_without_an_opinion_says_nothing():
    monitor = OptionMonitor(Objective.__new__(Objective))
    monitor.observe(snapshot(1.0, 100), 1)
    assert not monitor.warning()


@pytest.fixture
def across(tiny_recipe, tmp_path):
    """A recipe with another tokenizer on the student's side; call it with texts and dotted changes."""
    backbone = architectures.xlm_roberta(tmp_path / "student", num_hidden_layers=2)
    config = json.loads((backbone / "config.json").read_text())
    student = {"config": {key: config[key] for key in KEPT}, "tokenizer": str(backbone), "max_length": 64}

    def make(texts, **changes):
        path = tmp_path / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        fixed = {"corpus__sources": [{"path": str(path)}], "evaluation__columns": ["student"], "evaluation__parts": []}
        return tiny_recipe(**{"student": student, "train__logging_steps": 1, **fixed, **changes})

    return make


def said(folder):
    lines = read_metrics(RunFolder(folder).metrics)
    return [line["warning"] for line in lines if line.get("kind") == "options"]


def test_emo_on_short_texts(across, tmp_path, monkeypatch, capsys):
    texts = make_texts(400)
    words = sorted({word for text in texts for word in text.split()})
    short = [f"{one} {other}" for one in words[:12] for other in words[-12:]]
    recipe = across(
        short,
        method__name="emo",
        train__epochs=3,
        train__max_steps=16,
        train__logging_steps=1,
        train__checkpoint_steps=3,
    )
    interrupt(resolve(recipe, tmp_path / "short"), 9, monkeypatch)
    run(recipe, tmp_path / "short")
    (warning,) = said(tmp_path / "short")
    assert "ira teaches nothing on" in warning and "[method.options.divisor: 1]" in warning
    assert capsys.readouterr().err.count("ira teaches nothing") == 1

    long = [f"{one} {other}" for one, other in zip(texts, reversed(texts), strict=True)]
    run(across(long, method__name="emo", train__max_steps=16, train__logging_steps=1), tmp_path / "long")
    assert said(tmp_path / "long") == []


def test_distillmoe_with_a_margin_wider_than_the_teachers_cosines_vary(across, tmp_path):
    method = {"name": "distillmoe", "options": {"layers": 2, "manual": [0.3, 0.3, 0.3], "margin": 2.0}}
    run(across(make_texts(300), method=method, train__max_steps=16, train__logging_steps=1), tmp_path / "wide")
    (warning,) = said(tmp_path / "wide")
    assert "100% of the pairs" in warning and "[method.options.margin: 0]" in warning
    for name, options in {
        "none": {"margin": 0.0},
        "narrow": {"margin": 1e-4},
        "absent": {"facets": ["pointwise"]},
    }.items():
        chosen = {**method["options"], **options}
        chosen["manual"] = [0.3] * len(options.get("facets", "abc"))
        run(
            across(make_texts(300), method={**method, "options": chosen}, train__max_steps=16, train__logging_steps=1),
            tmp_path / name,
        )
        assert said(tmp_path / name) == []
