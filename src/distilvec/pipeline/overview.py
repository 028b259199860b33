"""The first screen of a run: what was decided, before the work begins."""

from __future__ import annotations

from distilvec.core.info import UNLIMITED
from distilvec.core.outputs import OutputSpec
from distilvec.pipeline.estimate import time_line
from distilvec.pipeline.job import Job, Teacher

MEGABYTE = 1e6
BYTES_A_PARAMETER = 4  # float32


def overview(job: Job) -> list[tuple[str, str]]:
    """Return the lines of the first screen as (name, text)."""
    lines = [("teacher", _teacher(teacher)) for teacher in job.teachers]
    lines.append(("student", _student(job)))
    lines.append(("texts", _texts(job)))
    if job.required != OutputSpec() and not job.teacher.live:
        size = len(job.corpus) * sum(signal.width for signal in job.teacher.manifest.signals.values())
        megabytes = size * (2 if job.recipe.cache.dtype == "float16" else 4) / MEGABYTE
        lines.append(("disk", f"{megabytes:,.1f} MB for the teacher's vectors, kept for later runs"))
    if (time := time_line(job)) is not None:
        lines.append(("time", time))
    lines.append(("test", _test(job)))
    lines.append(("folder", str(job.folder)))
    return lines


def _teacher(teacher: Teacher) -> str:
    info = teacher.info
    parts = [info.name]
    if teacher.parameters is not None:
        parts.append(_size(teacher.parameters))
    parts.append(f"{info.dim} dimensions")
    if info.max_length < UNLIMITED:
        parts.append(f"reads {info.max_length:,} tokens")
    return ", ".join(parts)


def _student(job: Job) -> str:
    info = job.student
    parts = []
    if info.parameters is not None:
        parts.append(_size(info.parameters))
    layers = "layer" if info.layers == 1 else "layers"
    parts.append(f"{info.layers} {layers}")
    parts.append(f"reads {job.student_length:,} tokens")
    return ", ".join(parts)


def _texts(job: Job) -> str:
    if job.examples is not None:
        return f"{len(job.corpus):,} in labelled examples"
    return f"{len(job.corpus):,}, {len(job.corpus.holdout_rows):,} of them for validation"


def _test(job: Job) -> str:
    parts = []
    if job.examples is not None:
        parts.append(f"the test split of {job.examples.name}")
    if job.recipe.evaluation.stored is not None:
        parts.append(f"{job.recipe.evaluation.stored:,} texts of the index")
    elif job.required != OutputSpec():  # on labels alone there is no teacher whose neighbours could be found
        parts.append("neighbours of held-out texts")
    if job.tasks:
        parts.append(", ".join(task.name for task in job.tasks))
    return "; ".join(parts)


def _size(parameters: int) -> str:
    megabytes = parameters * BYTES_A_PARAMETER / MEGABYTE
    return f"{parameters / 1e6:.1f}M parameters ({megabytes:,.0f} MB)"
