"""Ctrl-C and SIGTERM in the loop: the number is kept, a second one leaves at once."""

from __future__ import annotations

import errno
import os
import signal

import pytest
from loops import make_loop

from distilvec.core.errors import Interrupted, Stopped
from distilvec.pipeline.run import run
from distilvec.train.checkpoint import read_checkpoint
from distilvec.train.signals import stop_on_signals
from distilvec.train.trainer import Trainer
from distilvec.verbs.run.sweep import expand_sweep, run_sweep

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_the_signals_number(tiny_recipe, tmp_path, monkeypatch, number):
    step = Trainer._step

    def stepped(self, *arguments):
        if self.state.step == 4:
            os.kill(os.getpid(), number)
        step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", stepped)
    message = r"^\[train\] stopped at step 5 of 11\. Run the same command again to go on\.$"
    with pytest.raises(Stopped, match=message) as stopped:
        run(tiny_recipe(), tmp_path / "run")
    assert stopped.value.number == number
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    tree = tiny_recipe().model_dump(mode="json") | {"sweep": {"seeds": [0, 1]}}
    with pytest.raises(Stopped):
        run_sweep(expand_sweep(tree), tmp_path / "sweep")
    assert not (tmp_path / "sweep" / "seed=1").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_leaves_at_once(tiny_recipe, tmp_path):
    loop = make_loop(tiny_recipe(train__checkpoint_steps=2), tmp_path / "run")
    one = loop._step

    def step(batches, index):
        if loop.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            assert loop.stop_asked
            os.kill(os.getpid(), signal.SIGINT)
            pytest.fail("went on")
        one(batches, index)

    loop._step = step
    with pytest.raises(Interrupted) as left:
        loop.run()
    assert left.value.number == signal.SIGINT and read_checkpoint(loop.checkpoint, "mark", ())[1].step == 4


def test_a_sweep_ends_where_a_signal_came_and_the_checkpoint_failed(tiny_recipe, tmp_path, monkeypatch):
    step = Trainer._step

    def stepped(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        step(self, *arguments)

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device", "checkpoint")

    monkeypatch.setattr(Trainer, "_step", stepped)
    monkeypatch.setattr(Trainer, "_checkpoint", full)
    tree = tiny_recipe().model_dump(mode="json") | {"sweep": {"seeds": [0, 1]}}
    with pytest.raises(Stopped, match="space") as stopped:
        run_sweep(expand_sweep(tree), tmp_path / "sweep")
    assert stopped.value.number == signal.SIGTERM
    assert not (tmp_path / "sweep" / "seed=1").exists()


def test_handlers_are_put_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="inside"), stop_on_signals(lambda number: None):
        assert signal.getsignal(signal.SIGTERM) is not before
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGTERM) is before
