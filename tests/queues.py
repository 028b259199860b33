"""What tests of methods with a queue share: texts with vectors of their own, and a run that is stopped halfway."""

from __future__ import annotations

import torch

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.train.trainer import Trainer


def vectors_of(rows):
    """Each corpus row's own teacher vector, exact in float16."""
    return torch.stack(
        [torch.randn(4, generator=torch.Generator().manual_seed(int(row))).half().float() for row in rows]
    )


def terms(objective, rows, student=None, teacher=None):
    """The objective's terms for a batch of these corpus rows."""
    rows = torch.as_tensor(rows)
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    teacher = vectors_of(rows) if teacher is None else teacher
    student = teacher.flip(-1) if student is None else student
    return objective(batch, ModelOutputs(embedding=student), ModelOutputs(embedding=teacher))


def queued(objective):
    """The corpus rows in the queue, by place; every vector there is checked to be its row's."""
    rows = objective.queue_rows.tolist()
    for place, row in enumerate(rows):
        if row >= 0:
            assert torch.equal(objective.queue_vectors[place].float(), vectors_of([row])[0])
    return rows


def interrupted_equals_whole(recipe, tmp_path):
    """Train to the end and, in another folder, with a stop after step 5; returns the objective, the same in both."""

    def loop(folder):
        job = resolve(recipe, folder)
        encoder = Encoder(untrained_student(job))
        objective = make_objective(job.stages[-1], job.context)
        return Trainer(
            encoder,
            objective,
            prepare_data(job, encoder.model).training_data(required_outputs(objective, job.examples)),
            job.recipe.train,
            RunFolder(folder).training,
            "mark",
        )

    whole = loop(tmp_path / "whole")
    whole.run()
    stopped = loop(tmp_path / "stopped")
    one = stopped._step

    def step(batches, index):
        one(batches, index)
        stopped.stop_asked = stopped.state.step == 4

    stopped._step = step
    assert not stopped.run().finished
    resumed = loop(tmp_path / "stopped")
    assert resumed.state.step == 5 and resumed.run().finished
    for name, value in whole.module.state_dict().items():
        assert torch.equal(value, resumed.module.state_dict()[name]), name
    return whole.module.objective
