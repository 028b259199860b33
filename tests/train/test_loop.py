"""The loop on a real tiny student: learns, resumes exactly, survives kill -9, accumulates, refuses what cannot work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import Command
from jobs import train
from loops import make_loop, stop_after
from refusals import refused
from safetensors.torch import load_file
from several import finish, start

from benchmarks import kills
from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shared_cache")


def weights(loop: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loop.module.state_dict().items()}


def assert_same_weights(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_learns_and_writes_metrics(tiny_recipe, tmp_path):
    loop = make_loop(tiny_recipe(train__epochs=4), tmp_path / "run")
    state = loop.run()
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    distances = [line["eval/distance"] for line in lines if "eval/distance" in line]
    assert len(distances) == 5 and distances[-1] < 0.8 * distances[0]
    assert state.finished and state.best.metric.value == pytest.approx(min(distances[1:]), abs=1e-7)
    logged = [line for line in lines if "train/loss" in line]
    assert logged[0]["train/loss"] == logged[0]["train/loss_l2"] and logged[0]["train/texts_per_second"] > 0
    assert state.texts == 4 * len(loop.data.train_rows)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_interrupted_equals_uninterrupted(tiny_recipe, tmp_path, optimizer):
    recipe = tiny_recipe(train__epochs=3, train__optimizer=optimizer)
    whole = make_loop(recipe, tmp_path / "whole")
    whole.run()
    parts = tmp_path / "parts"
    for stop in (3, 13, 14, 29):
        assert not stop_after(make_loop(recipe, parts), stop).run().finished
    last = make_loop(recipe, parts)
    assert last.state.step == 29
    last.run()
    assert_same_weights(weights(whole), weights(last))
    keys = ("step", "train/loss", "eval/distance")
    first, second = (
        [{k: line.get(k) for k in keys} for line in read_metrics(RunFolder(f).metrics)]
        for f in (tmp_path / "whole", parts)
    )
    assert [line for line in first if line["eval/distance"]] == [line for line in second if line["eval/distance"]]


def test_kept_students_are_the_same_after_an_interruption(tiny_recipe, tmp_path):
    recipe = tiny_recipe(train__epochs=2, train__keep_students=4)

    def trained(folder: Path, stop: int | None = None) -> dict[str, bytes]:
        job = resolve(recipe, folder)
        if stop is not None:
            with pytest.MonkeyPatch.context() as patch:
                step = Trainer._step

                def stopping(loop, batches, index):
                    step(loop, batches, index)
                    loop.stop_asked = loop.state.step + 1 >= stop

                patch.setattr(Trainer, "_step", stopping)
                with pytest.raises(DistilvecError, match="stopped at step"):
                    train(job)
        train(resolve(recipe, folder))
        return {
            path.parent.name: path.read_bytes() for path in sorted((folder / "students").glob("*/model.safetensors"))
        }

    whole = trained(tmp_path / "whole")
    assert len(whole) == 4 and len(set(whole.values())) == 4
    assert trained(tmp_path / "parts", stop=7) == whole


def test_the_last_student_is_kept_after_a_kill_behind_the_last_checkpoint(tiny_recipe, tmp_path):
    train(resolve(tiny_recipe(), tmp_path / "run"))
    weights_file = RunFolder(tmp_path / "run").last / "model.safetensors"
    before = weights_file.read_bytes()
    shutil.rmtree(weights_file.parent)
    RunFolder(tmp_path / "run").training_result.unlink()  # written after the last student
    train(resolve(tiny_recipe(), tmp_path / "run"))
    assert weights_file.read_bytes() == before


def test_accumulation_gives_the_gradients_of_one_large_batch(tiny_recipe, tmp_path):
    """16 rows at once and 4 x 4 rows have the same gradients (no dropout, so that both see the same network)."""
    found = []
    for size, steps in ((16, 1), (4, 4)):
        changes = {"train__batch_size": size, "train__gradient_accumulation_steps": steps}
        recipe = tiny_recipe(student__dropout=0.0, train__max_steps=1, corpus__validation_rows=16, **changes)
        loop = make_loop(recipe, tmp_path / str(size))
        rows = torch.arange(16).numpy()
        loop._batches = lambda epoch, rows=rows, size=size: [rows[i : i + size] for i in range(0, 16, size)]
        loop.optimizer.step = lambda: None
        loop.run()
        found.append({name: p.grad for name, p in loop.module.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() and len(found[0]) > 20
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-6, rtol=1e-4)


def test_token_budget(tiny_recipe, tmp_path):
    loop = make_loop(tiny_recipe(train__max_tokens=80), tmp_path / "run")
    batches = loop._batches(0)
    sizes = [len(batches[i]) * loop.data.tokens.lengths[batches[i]].max() for i in range(len(batches))]
    assert max(sizes) <= 80 and loop.run().finished


def test_gradient_checkpointing_changes_nothing_without_dropout(tiny_recipe, tmp_path):
    found = []
    for on in (False, True):
        loop = make_loop(
            tiny_recipe(student__dropout=0.0, train__max_steps=3, train__gradient_checkpointing=on), tmp_path / str(on)
        )
        loop.run()
        found.append(weights(loop))
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-5, rtol=1e-4)


def test_bf16_keeps_fp32_weights_and_learns(tiny_recipe, tmp_path, monkeypatch):
    loop = make_loop(tiny_recipe(train__precision="bf16", train__epochs=3), tmp_path / "run")
    cast = []
    monkeypatch.setattr(
        loop.module.objective, "metrics", lambda *snapshot: cast.append(torch.is_autocast_enabled("cpu")) or {}
    )
    loop.run()
    assert cast and not any(cast), "metrics are computed as the terms are, not under autocast"
    assert all(p.dtype == torch.float32 for p in loop.module.parameters())
    assert loop.module.objective.matmul_dtype == torch.bfloat16
    distances = [
        line["eval/distance"] for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "eval/distance" in line
    ]
    assert distances[-1] < distances[0]


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_checkpoint(tiny_recipe, tmp_path):
    loop = make_loop(tiny_recipe(train__epochs=2, train__checkpoint_steps=1), tmp_path / "run")
    read = loop.data.teacher.read

    def poisoned(batch):
        finish = read(batch)

        def answer(batch):
            found = finish(batch)
            if loop.state.epoch == 1 and loop.module.training:
                found.embedding.fill_(float("nan"))
            return found

        return answer

    loop.data.teacher.read = poisoned
    with refused("train", "l2 nan"):
        loop.run()
    kept = load_file(loop.checkpoint)
    assert all(torch.isfinite(value).all() for value in kept.values())
    assert_same_weights(weights(loop), {name.removeprefix("model/"): t for name, t in kept.items() if "model/" in name})


def test_trackers_get_the_same_figures(tiny_recipe, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    make_loop(tiny_recipe(train__trackers=["tensorboard"]), tmp_path / "run").run()
    events = EventAccumulator(str(next((tmp_path / "run").rglob("events.out*")).parent))
    events.Reload()
    lines = [line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/loss" in line]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(
        [line["train/loss"] for line in lines], abs=1e-5
    )


def test_trackers_end_with_a_training_that_fails(tiny_recipe, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    loop = make_loop(tiny_recipe(train__trackers=["tensorboard"]), tmp_path / "run")
    finished = []
    (tracker,) = loop.accelerator.trackers
    monkeypatch.setattr(tracker, "finish", lambda: finished.append("tensorboard"))

    def fail(batches, index):
        raise DistilvecError("the loss is not finite.", key="train")

    monkeypatch.setattr(loop, "_step", fail)
    with refused("train", "not finite"):
        loop.run()
    assert finished == ["tensorboard"]


def test_refusals(tiny_recipe, tmp_path):
    if not torch.cuda.is_available():
        with refused("train.device", "no GPU"):
            make_loop(tiny_recipe(train__device="cuda"), tmp_path / "gpu")
    with pytest.raises(DistilvecError, match=r"learning_rate_factors"):
        make_loop(tiny_recipe(train__learning_rate_factors={"nonsense": 2.0}), tmp_path / "factors")


def test_a_checkpoint_of_another_recipe_or_a_damaged_one_is_refused(tiny_recipe, tmp_path):
    recipe = tiny_recipe()
    loop = make_loop(recipe, tmp_path / "run")
    loop.run()
    loop.fingerprint = "other"
    with pytest.raises(DistilvecError, match=r"^\[checkpoint\] .*--restart"):
        Trainer(loop.module.encoder, loop.module.objective, loop.data, recipe.train, loop.folder, "other")
    loop.checkpoint.write_bytes(loop.checkpoint.read_bytes()[:1000])
    with pytest.raises(DistilvecError, match="damaged"):
        make_loop(recipe, tmp_path / "run")


def test_full_disk_while_saving_keeps_the_previous_checkpoint(tiny_recipe, tmp_path, monkeypatch):
    from distilvec.train import checkpoint

    loop = make_loop(tiny_recipe(), tmp_path / "run")
    loop.run()
    before = loop.checkpoint.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with refused("checkpoint", "no space left"):
        loop._checkpoint()
    assert loop.checkpoint.read_bytes() == before and [path.name for path in loop.checkpoint.parent.iterdir()] == [
        "state.safetensors"
    ]


@pytest.mark.slow
def test_two_processes_train_one_student(tiny_recipe, tmp_path):
    """A whole run of two processes: it starts, learns and counts every text once; one process evaluates and writes."""
    file = tmp_path / "tiny.yaml"
    changes = {"student__layers": {"count": 2, "choose": "best"}, "train__batch_size": 8, "corpus__validation_rows": 16}
    file.write_text(recipes.dump(tiny_recipe(train__epochs=3, **changes)))
    first, second = finish(start("run", file, "--out", tmp_path / "run", module="distilvec"))
    assert "student" in first and not second
    state = json.loads(RunFolder(tmp_path / "run").record.read_text())["training"]
    assert state["steps"] == 3 * 23 and state["texts"] == 3 * 184
    distances = [
        line["eval/distance"] for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "eval/distance" in line
    ]
    assert len(distances) >= 4 and distances[-1] < distances[0]  # the start, and the end of each epoch


@pytest.mark.slow
def test_killed_while_caching_and_training_ends_the_same(tiny_model, tmp_path, monkeypatch):
    """Two kills each; `python -m benchmarks.kills` does many with a real teacher, and kills other work, too."""
    monkeypatch.setattr(kills, "start", lambda line, cache: Command(*line, DISTILVEC_CACHE=str(cache)))
    caching = kills.kill(kills.caching(tmp_path, str(tiny_model), 1000), tmp_path / "caching", kills=2, seed=1)
    assert caching["same"] and caching["files"] > 15 and caching["kills"] == 2
    training = kills.kill(kills.training(tmp_path, str(tiny_model), 400), tmp_path / "training", kills=2, seed=1)
    assert training["same"] and training["kills"] == 2 and training["files"] >= 3
