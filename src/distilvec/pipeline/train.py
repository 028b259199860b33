"""Training of a job, stage by stage; every student is saved as a folder that loads without distilvec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sentence_transformers import SentenceTransformer

from distilvec.core.log import log
from distilvec.core.objective import Objective
from distilvec.core.processes import main_first
from distilvec.core.task_head import TaskHead
from distilvec.formats.sentence_transformers import save_student
from distilvec.pipeline.job import Job
from distilvec.pipeline.prepare import (
    check_shards,
    fitting_texts,
    prepare,
    shard_teachers,
    trainable,
    untrained_student,
)
from distilvec.pipeline.record import best_distance
from distilvec.pipeline.resolve import make_objective, required_outputs
from distilvec.pipeline.start import Start, check_start, find_start, has_new_layer
from distilvec.students.encoder import Encoder
from distilvec.students.factorize import expanded
from distilvec.students.lora import merged
from distilvec.students.task_head import save_head
from distilvec.train.checkpoint import Progress, checkpoint_file, objective_file, read_checkpoint, save_objective
from distilvec.train.metrics import Callback
from distilvec.train.stages import Stage, check_parameters, train_stages
from distilvec.train.start import BEHIND_LAYER_RATE, HIGHEST_RATE


@dataclass(frozen=True)
class Training:
    """A finished training: the last stage's progress, and the validation metrics of its best student."""

    state: Progress
    distance: dict[str, float]


def train(job: Job, callbacks: Sequence[Callback] = ()) -> Training:
    """Train all stages from their checkpoints on. A finished training is not prepared again."""
    found = read_checkpoint(checkpoint_file(job.stages[-1].folder), job.fingerprint)  # whole: damage shows
    state = found[1] if found else Progress()
    if not state.finished or not all((job.folder / name).exists() for name in ("student", "last")):
        state = _train(job, callbacks)
    return Training(state, best_distance([stage.folder / "metrics.jsonl" for stage in job.stages]))


def _train(job: Job, callbacks: Sequence[Callback]) -> Progress:
    check_shards(job)
    plain = untrained_student(job)
    check_start(job, plain)
    encoder = trainable(job, plain)
    for stage in job.stages:
        check_parameters(stage, encoder, make_objective(stage, job.context))
    data = prepare(job, encoder.model)
    with main_first():
        start = find_start(job, data)
    data = shard_teachers(data)
    waiting = [encoder] if start == Start() else []

    def build(stage: Stage) -> tuple[Encoder, Objective]:
        own = waiting.pop() if waiting else trainable(job, start.student(job))
        objective = make_objective(stage, job.context)
        if stage == job.stages[0]:
            start.set_objective(objective)
        return own, objective

    return train_stages(
        job.stages,
        build,
        lambda objective: data.training_data(required_outputs(objective, job.examples)),
        job.fingerprint,
        partial(save, job),
        callbacks,
        BEHIND_LAYER_RATE if has_new_layer(job) else HIGHEST_RATE,
    )


def save(job: Job, model: SentenceTransformer, objective: Objective, name: str) -> None:
    """Save a student of the last stage in the run folder, with the parameters and the head that its objective has
    learned.
    """
    info = {"method": job.stages[-1].recipe.method.name, "teacher": job.teacher.info.name}
    folder = job.folder / name
    card = f"# {job.recipe.name}\n\n{about_saved(name)}\n"
    model, section = merged(model), job.recipe.student.embedding
    if section is not None and section.expand:
        model, distance = expanded(model, fitting_texts(job))
        log(f"{name}: the full table's vectors differ from the factorized table's by {distance:.3f} on average")
    save_student(model, folder, info, card, extra_files=head_writer(job, objective))
    save_objective(objective_file(folder), objective)


def about_saved(name: str) -> str:
    """Say what a saved student is; the card of `student` is replaced when the run is published."""
    if name == "student":
        return "The best student so far. Training has not finished."
    if name == "last":
        return "The weights after the last step of a finished training. The student to use is `../student`."
    step = name.removeprefix("students/step-")
    return f"The weights after step {step} (train.keep_students). The student to use is `../../student`."


def head_writer(job: Job, objective: Objective) -> Callable[[Path], None]:
    """Return a function that writes the objective's head into a student's folder; without a task it writes nothing."""

    def write(folder: Path) -> None:
        examples = job.examples
        if examples is not None and isinstance(objective.head, TaskHead):
            prompt = examples.corpus.prompts.get(examples.corpus.roles[0], "")
            save_head(folder, objective.head, examples.classes, examples.scale, prompt)

    return write
