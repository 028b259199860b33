"""Training loops on tiny recipes, whole or stopped on the way."""

from __future__ import annotations

from pathlib import Path

from distilvec.core.objective import Objective
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data, shard_teachers
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import trainable, untrained_student
from distilvec.train.trainer import Trainer


def make_loop(recipe, folder: Path, objective: Objective | None = None) -> Trainer:
    """The loop of a recipe in a folder; with the recipe's own objective, or another one on the same data."""
    job = resolve(recipe, folder)
    model = untrained_student(job)
    encoder = trainable(job, model)
    own = make_objective(job.stages[-1], job.context)
    return Trainer(
        encoder,
        objective or own,
        shard_teachers(prepare_data(job, model)).training_data(required_outputs(own, job.examples)),
        recipe.train,
        RunFolder(folder).training,
        "mark",
    )


def stop_after(loop: Trainer, count: int) -> Trainer:
    """Make the loop stop as if asked to, after its step number `count`."""
    step = loop._step

    def stopping(batches, index):
        step(batches, index)
        loop.stop_asked = loop.state.step + 1 >= count

    loop._step = stopping
    return loop
