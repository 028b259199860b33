"""The first screen of a run: what was decided, before the work begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distilvec.core.info import UNLIMITED
from distilvec.core.outputs import OutputSpec
from distilvec.evaluation.tasks import StoredTask
from distilvec.pipeline.caches import bytes_of_a_text
from distilvec.pipeline.estimate import time_line
from distilvec.pipeline.job import Job, Teacher
from distilvec.pipeline.rates import Lengths, sample_rows
from distilvec.teachers.model_embedder import CHARACTERS_A_TOKEN

MEGABYTE = 1e6
BYTES_A_PARAMETER = 4  # float32


def overview(job: Job) -> list[tuple[str, str]]:
    """Return the lines of the first screen as (name, text)."""
    lines = [("teacher", _teacher(teacher)) for teacher in job.teachers]
    lines.append(("student", _student(job)))
    lines.append(("texts", _texts(job)))
    if (missing := missing_role(job)) is not None:
        lines.append(("roles", missing))
    cached = [teacher for teacher in job.teachers if not teacher.live]
    if job.required != OutputSpec() and cached:
        lines.append(("disk", _disk(cached)))
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


def missing_role(job: Job) -> str | None:
    """Describe a prompt of the first teacher that no text has, so that the student does not learn it; None without one.

    A labelled task is embedded in the one role that its recipe states.
    """
    if not job.teachers or job.examples is not None:
        return None
    prompts = job.teachers[0].info.prompts
    query, document = prompts.get("query", ""), prompts.get("document", "")
    missing = {"query", "document"} - set(job.corpus.roles)
    if query == document or not missing:
        return None
    if "document" in missing:
        return f"all texts are queries ({query!r}), none is a document ({document!r}): role: document of a source"
    return f"all texts are documents ({document!r}), none is a query ({query!r}): --queries FILE, or role: query"


def _disk(teachers: Sequence[Teacher]) -> str:
    """Describe the size of the teachers' caches; that of token signals is estimated, since no text is tokenized yet."""
    size = 0.0
    for teacher in teachers:
        lengths = estimated_lengths(teacher) if teacher.manifest.tokens is not None else None
        size += len(teacher.corpus) * bytes_of_a_text(teacher, lengths)
    megabytes = f"{size / MEGABYTE:,.1f} MB"
    whose = "teacher's" if len(teachers) == 1 else "teachers'"
    if any(teacher.manifest.tokens is not None for teacher in teachers):
        return f"about {megabytes} for the {whose} vectors and outputs for each token, kept for later runs"
    return f"{megabytes} for the {whose} vectors, kept for later runs"


def estimated_lengths(teacher: Teacher) -> Lengths:
    """Estimate the teacher's tokens of a sample of texts [n] from their characters."""
    characters = []
    for text in teacher.corpus.prompted(sample_rows(teacher.corpus)):
        characters.append(len(text) if isinstance(text, str) else sum(map(len, text)))
    tokens = np.array(characters, dtype=np.int64) // CHARACTERS_A_TOKEN + sum(teacher.info.special_tokens or ())
    return np.clip(tokens, 1, teacher.info.max_length)


def _test(job: Job) -> str:
    parts = []
    if job.examples is not None:
        parts.append(f"the test split of {job.examples.name}")
    of_the_index = [task for task in job.tasks if isinstance(task, StoredTask)]
    if of_the_index:  # with fewer queries than `evaluation.stored` where that is more than a fifth of the index
        parts.append(f"{len(of_the_index[0].queries):,} texts of the index")
    elif job.required != OutputSpec():  # on labels alone there is no teacher to compare with
        parts.append("overlap@10 of held-out texts")
    if job.tasks:
        parts.append(", ".join(task.name for task in job.tasks))
    return "; ".join(parts)


def _size(parameters: int) -> str:
    megabytes = parameters * BYTES_A_PARAMETER / MEGABYTE
    return f"{parameters / 1e6:.1f}M parameters ({megabytes:,.0f} MB)"
