"""Single steps of a run, for tests of these steps."""

from __future__ import annotations

from distilvec.pipeline.caches import open_cache
from distilvec.pipeline.prepare import cached_teachers, fill_cache
from distilvec.pipeline.resolve import resolve


def opened(recipe, folder):
    """The cache of a recipe's teacher, opened or created."""
    job = resolve(recipe, folder)
    return open_cache(job, job.teacher)


def filled(recipe, folder):
    """The cache of a recipe's teacher, filled."""
    job = resolve(recipe, folder)
    for teacher in cached_teachers(job):
        fill_cache(job, teacher)
    return open_cache(job, cached_teachers(job)[0])
