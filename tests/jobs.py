"""Single steps of a run, for tests of these steps."""

from __future__ import annotations

from distilvec.pipeline import train as training
from distilvec.pipeline.caches import open_cache
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import cached_teachers, fill_whole_cache, prepare, prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student


def opened(recipe, folder):
    """The cache of a recipe's teacher, opened or created."""
    job = resolve(recipe, folder)
    return open_cache(job, job.teacher)


def filled(recipe, folder):
    """The cache of a recipe's teacher, filled."""
    job = resolve(recipe, folder)
    caches = [fill_whole_cache(job, teacher) for teacher in cached_teachers(job)]
    return caches[0]


def train(job, callbacks=()):
    """Prepare and train a job, as `run` does; a finished training is read."""
    return training.finished_training(job) or training.train(job, prepare(job), callbacks)


def training_data(job, model=None):
    """The data of the last stage."""
    objective = make_objective(job.stages[-1], job.context)
    return prepare_data(job, model or untrained_student(job)).training_data(required_outputs(objective, job.examples))


def answering(job):
    """The teachers of the last stage, as one."""
    return training_data(job).teacher
