"""The phases of a run, for its log: which there are follows from the job."""

from __future__ import annotations

from distilvec.core.outputs import OutputSpec
from distilvec.pipeline.job import Job

TEXTS = "texts"
TEACHER = "teacher"
START = "start"
TRAINING = "training"
EVALUATION = "evaluation"


def run_phases(job: Job, is_trained: bool) -> list[str]:
    """Return the phases of a run in order; only the evaluation is left of one that `is_trained`."""
    if is_trained:
        return [EVALUATION]
    if job.required == OutputSpec():  # on labels alone
        return [TEXTS, START, TRAINING, EVALUATION]
    return [TEXTS, TEACHER, START, TRAINING, EVALUATION]
