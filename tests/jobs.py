"""Single steps of a run, for tests of these steps."""

from __future__ import annotations

from distilvec.pipeline.caches import open_cache
from distilvec.pipeline.prepare import fill_caches
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.train import untrained_student


def opened(recipe, folder):
    """The cache of a recipe's teacher, opened or created."""
    job = resolve(recipe, folder)
    return open_cache(job, job.teacher)


def filled(recipe, folder):
    """The cache of a recipe's teacher, filled."""
    job = resolve(recipe, folder)
    return fill_caches(job, untrained_student(job))[0]
