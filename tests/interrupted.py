"""A run that is interrupted in the middle of training."""

from __future__ import annotations

import pytest

from distilvec.pipeline.run import run
from distilvec.train.trainer import Trainer


def interrupt(job, at, monkeypatch, look=lambda loop: None, execute=lambda job: run(job.recipe, job.folder)):
    """Execute the job until Ctrl-C comes in the step numbered `at`; `look` sees the loop before every step."""
    step = Trainer._step

    def stepped(self, batches, index):
        if self.state.step == at:
            raise KeyboardInterrupt
        look(self)
        step(self, batches, index)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "_step", stepped)
        execute(job)
