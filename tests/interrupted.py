"""Work that is interrupted in the middle: a training, the copy of an index."""

from __future__ import annotations

import pytest

from distilvec.pipeline.run import run
from distilvec.teachers.indexes import copy
from distilvec.teachers.indexes.copy import local_table
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


def kill_copy(section, folder, monkeypatch, parts=1):
    """Kill the copy of an index into `folder` when it writes another part after so many; return the written ones."""
    write, written = copy._write, []

    def killed(path, table):
        if len(written) == parts:
            raise KeyboardInterrupt
        written.append(path)
        write(path, table)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(copy, "_write", killed)
        local_table(section, folder)
    return written
