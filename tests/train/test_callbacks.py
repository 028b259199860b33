"""Callbacks get every logged line of training and validation, change nothing, and stop the run where they fail."""

from __future__ import annotations

import pytest
from jobs import train
from loops import make_loop
from refusals import refused

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.train.metrics import TEXTS, read_metrics

pytestmark = pytest.mark.usefixtures("shared_cache")


def test_every_logged_line(tiny_recipe, tmp_path):
    recipe, calls, steps = tiny_recipe(train__max_steps=6), [], []

    class Counter:
        def __call__(self, step, metrics):
            steps.append(step)

    def collect(step, metrics):
        calls.append((step, dict(metrics)))
        metrics.clear()  # a copy: neither the log nor the next callback sees this

    with_callbacks = resolve(recipe, tmp_path / "run")
    train(with_callbacks, [collect, Counter()])
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    assert [step for step, _ in calls] == steps == [line["step"] for line in lines] == [0, 2, 4, 6, 6]
    for (_, metrics), line in zip(calls, lines, strict=True):
        numbers = {name: value for name, value in line.items() if name not in ("step", *TEXTS)}
        assert metrics == pytest.approx(numbers, abs=1e-7)
    assert "eval/distance" in calls[0][1] and "train/loss" in calls[1][1] and "epoch" in calls[1][1]
    plain = resolve(recipe, tmp_path / "plain")
    train(plain)
    assert with_callbacks.fingerprint == plain.fingerprint
    strip = [
        {k: v for k, v in line.items() if not k.endswith(("per_second", "/wait"))}
        for line in read_metrics(RunFolder(tmp_path / "plain").metrics)
    ]
    assert strip == [{k: v for k, v in line.items() if not k.endswith(("per_second", "/wait"))} for line in lines]


def test_stages_call_them_too(tiny_recipe, tmp_path):
    stages, calls = (
        [{"name": "short", "set": {"train.max_steps": 2}}, {"name": "rest", "set": {"train.max_steps": 4}}],
        [],
    )
    train(resolve(tiny_recipe(stages=stages), tmp_path / "run"), [lambda step, metrics: calls.append(step)])
    assert calls == [0, 2, 2, 0, 2, 4, 4]


@pytest.mark.parametrize("at", [0, 4])
def test_one_that_fails_stops_the_run(at, tiny_recipe, tmp_path):
    recipe = tiny_recipe(train__max_steps=6, train__checkpoint_steps=2)

    def broken(step, metrics):
        if step == at:
            raise ValueError("no such key\nmore")

    with refused("callbacks", f"step {at} with ValueError") as found:
        run(recipe, tmp_path / "run", callbacks=(broken,))
    assert isinstance(found.value.__cause__, ValueError)
    later = []
    finished = run(recipe, tmp_path / "run", callbacks=[lambda step, metrics: later.append(step)])
    assert finished.record.training.steps == 6
    assert later == ([0, 2, 4, 6, 6] if at == 0 else [4, 6, 6]), "training goes on from the checkpoint"


@pytest.mark.parametrize("callbacks", [print, "print", [3], [print, None], None])
def test_what_cannot_be_called(callbacks, tiny_recipe, tmp_path):
    with refused("callbacks"):
        run(tiny_recipe(), tmp_path / "run", callbacks=callbacks)


def test_only_the_main_process_calls(tiny_recipe, tmp_path, monkeypatch):
    from distilvec.train.metrics import MetricsLog

    calls, loop = [], make_loop(tiny_recipe(train__max_steps=1), tmp_path / "run")

    with monkeypatch.context() as patch:
        patch.setattr("distilvec.core.processes.rank", lambda: 1)
        other = MetricsLog(tmp_path / "other.jsonl", loop.accelerator, [lambda *call: calls.append(call)])
        other.write(1, 0.1, "train", {"loss": 1.0})
    assert calls == [] and not (tmp_path / "other.jsonl").exists()
    log = MetricsLog(tmp_path / "main.jsonl", loop.accelerator, [lambda *call: calls.append(call)])
    log.write(1, 0.1, "train", {"loss": 1.0})
    assert calls == [(1, {"epoch": 0.1, "train/loss": 1.0})]
