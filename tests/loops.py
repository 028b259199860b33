"""Training loops on tiny recipes, whole or stopped on the way."""

from __future__ import annotations

from pathlib import Path

from distilvec.core.objective import Objective
from distilvec.pipeline.run import Run
from distilvec.students.encoder import Encoder
from distilvec.train.trainer import Trainer


def make_loop(recipe, folder: Path, objective: Objective | None = None) -> Trainer:
    """The loop of a recipe in a folder; with the recipe's own objective, or another one on the same data."""
    run = Run(recipe, folder)
    model = run.student()
    encoder = Encoder(model)
    own = run.objective(encoder)
    return Trainer(encoder, objective or own, run.data(model, own), recipe.train, folder, "mark")


def stop_after(loop: Trainer, count: int) -> Trainer:
    """Make the loop stop as if asked to, after its step number `count`."""
    step = loop._step

    def stopping(batches, index):
        step(batches, index)
        loop.stop_asked = loop.state.step + 1 >= count

    loop._step = stopping
    return loop
