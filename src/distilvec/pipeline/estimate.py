"""How long a run is going to take, measured in seconds on the models that are in memory before the work begins."""

from __future__ import annotations

import numpy as np

from distilvec.core.device import pick_device
from distilvec.core.duration import duration
from distilvec.core.level import Level, level
from distilvec.core.outputs import OutputSpec
from distilvec.pipeline.caches import missing_rows, reads_tokens
from distilvec.pipeline.job import Job
from distilvec.pipeline.rates import MEASURED_TOKENS, embedding_rate, sample_rows
from distilvec.teachers.model_embedder import CHARACTERS_A_TOKEN, ModelEmbedder

STEP_FORWARDS = 3  # a step's forward and backward pass take as long as so many forward passes
# The rate is measured on short and on long texts. Work of fewer tokens has no estimate: it is over soon, and the
# measurement would be more than a twentieth of it.
LEAST_TOKENS = 20 * 2 * MEASURED_TOKENS


def time_line(job: Job) -> str | None:
    """Return the estimated time of teacher and training; None where nothing can be said without loading a model.

    Models are in memory where they had to be loaded for their description: in the first run with them. The rate of the
    student is that of the CPU, so a training on a GPU has no estimate.
    """
    if level() is Level.QUIET:
        return None
    parts = [_teacher_time(job), _training_time(job)]
    known = [part for part in parts if part is not None]
    return ", ".join(known) if known else None


def _teacher_time(job: Job) -> str | None:
    model = job.loaded.teacher
    if model is None or job.required == OutputSpec() or job.teacher.live or reads_tokens(job.teacher):
        return None
    missing = missing_rows(job, job.teacher)[1]
    if not missing:
        return None
    seconds = _seconds_of(job, model, missing)
    return None if seconds is None else f"about {duration(seconds)} for the teacher's vectors"


def _training_time(job: Job) -> str | None:
    stated = [stage.recipe.train.minutes for stage in job.stages if stage.recipe.train.minutes is not None]
    if len(stated) == len(job.stages):
        return f"{sum(stated):g} min for the training"
    student = job.loaded.untrained
    if student is None or pick_device(job.recipe.train.device) != "cpu":
        return None
    texts = 0
    for stage in job.stages:
        train = stage.recipe.train
        if train.minutes is not None:
            continue
        seen = train.passes * len(job.corpus.train_rows)
        texts += seen if train.max_steps is None else min(seen, train.max_steps * train.batch_size)
    embedder = ModelEmbedder(student, "student", job.recipe.evaluation.batch_tokens, job.teacher.info.prompts)
    seconds = _seconds_of(job, embedder, texts)
    if seconds is None:
        return None
    unless = " unless the student knows its texts from the start" if _may_know_its_texts(job) else ""
    return f"about {duration(STEP_FORWARDS * seconds + 60 * sum(stated))} for the training{unless}"


def _may_know_its_texts(job: Job) -> bool:
    """Whether the student has all of the teacher's layers, so that a training may end at once (train/trainer.py)."""
    section = job.recipe.student
    is_whole = section.intermediate_size is None and section.embedding is None
    takes_all_layers = section.model == "teacher" and job.student.layers == job.teacher.info.layers
    return is_whole and takes_all_layers and job.stages[-1].automatic is not None


def _seconds_of(job: Job, model: ModelEmbedder, texts: int) -> float | None:
    """Return the seconds that the model needs for so many of the corpus's texts; None for little work."""
    sample = job.corpus.prompted(sample_rows(job.corpus))
    characters = float(np.mean([len(text) for text in sample]))
    if texts * characters < CHARACTERS_A_TOKEN * LEAST_TOKENS:  # roughly: counting the tokens takes time as well
        return None
    rate, lengths = embedding_rate(model, sample)
    return texts * rate.mean(lengths)
