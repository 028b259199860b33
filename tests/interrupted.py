"""A run that is interrupted in the middle of training."""

from __future__ import annotations

import pytest

from distilvec.train.trainer import Trainer


def interrupt(run, at, monkeypatch, look=lambda loop: None):
    """Execute the run until Ctrl-C comes in the step numbered `at`; `look` sees the loop before every step."""
    step = Trainer._step

    def stepped(self, batches, index):
        if self.state.step == at:
            raise KeyboardInterrupt
        look(self)
        step(self, batches, index)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "_step", stepped)
        run.execute()
