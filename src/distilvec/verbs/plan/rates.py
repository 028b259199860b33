"""How fast a model embeds texts, measured on long and on short ones, and what the evaluation takes: for the plan.

A token of a long text takes longer than one of a short text (attention), and texts differ in length by a factor of 50.
So seconds are added up token by token; the seconds of a token are interpolated between both measured lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import TEACHER_COLUMNS, Role
from distilvec.core.duration import duration
from distilvec.evaluation.tasks import Task, embedded_texts
from distilvec.pipeline.job import Job
from distilvec.pipeline.projected import trains_projection
from distilvec.teachers.cache.evaluation_vectors import PromptedTexts, evaluation_folder
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder

SAMPLE_TEXTS = 2048  # whose lengths are looked at
MEASURED_TOKENS = 1024  # that are embedded to measure a rate
SHORT_QUANTILE = 0.25
LONGER = 1.5  # a rate holds for texts up to so many times as long
Lengths = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PerToken:
    """A quantity for each token (seconds, bytes) of texts of two lengths, the shorter first."""

    lengths: tuple[int, int]
    values: tuple[float, float]

    def total(self, lengths: Lengths) -> float:
        """The quantity for texts of these lengths; beyond both measured lengths a token counts as at the nearer one."""
        return float((lengths * np.interp(lengths, self.lengths, self.values)).sum())

    def mean(self, lengths: Lengths) -> float:
        """The quantity for one text, on average over a sample of lengths."""
        return self.total(lengths) / max(1, len(lengths))


def measured_rows(lengths: Lengths) -> tuple[Rows, Rows]:
    """Rows of short and of long texts with about MEASURED_TOKENS tokens each, out of a sample's lengths."""
    by_length = np.argsort(lengths, kind="stable")
    from_a_quarter = by_length[int(SHORT_QUANTILE * len(by_length)) :]
    return _first_rows(from_a_quarter, lengths), _first_rows(by_length[::-1], lengths)


def _first_rows(rows: Rows, lengths: Lengths) -> Rows:
    """The first rows with at most MEASURED_TOKENS tokens together, at least one row."""
    tokens = np.cumsum(lengths[rows])
    count = int(np.searchsorted(tokens, MEASURED_TOKENS, side="right"))
    return rows[: max(1, count)]


def measure_rate(compute: Callable[[Rows], Any], lengths: Lengths) -> tuple[PerToken, list[Any]]:
    """Seconds for each token, from two calls of `compute` on rows of a sample; and what the calls returned."""
    groups = measured_rows(lengths)
    compute(groups[0][:8])  # warm-up
    results = []
    seconds = []
    for rows in groups:
        began = time.perf_counter()
        results.append(compute(rows))
        seconds.append((time.perf_counter() - began) / int(lengths[rows].sum()))
    return PerToken(mean_lengths(lengths, groups), (seconds[0], seconds[1])), results


def mean_lengths(lengths: Lengths, groups: tuple[Rows, Rows]) -> tuple[int, int]:
    """The mean length of the short and of the long texts, the first never above the second."""
    short_rows, long_rows = groups
    short = round(float(lengths[short_rows].mean()))
    long = round(float(lengths[long_rows].mean()))
    return min(short, long), long


def embedding_rate(model: ModelEmbedder, texts: Sequence[str]) -> tuple[PerToken, Lengths]:
    """Seconds for each token of texts with their prompts, and the lengths of a sample of them."""
    sample = spread(texts)
    lengths = model.lengths(sample)
    rate, _ = measure_rate(lambda rows: model.signals([sample[row] for row in rows]), lengths)
    return rate, lengths


def rate_text(rate: PerToken, lengths: Lengths) -> str:
    """A rate in words: texts a second on average, and tokens a second on short and on long texts."""
    short, long = rate.lengths
    short_seconds, long_seconds = rate.values
    by_length = f"{1 / short_seconds:,.0f} tokens/s on texts of {short} tokens"
    if short != long:
        by_length += f", {1 / long_seconds:,.0f} on texts of {long}"
    return f"{1 / max(rate.mean(lengths), 1e-9):,.1f} texts/s on average ({by_length})"


def spread(texts: Sequence[str]) -> list[str]:
    """At most SAMPLE_TEXTS of the texts, evenly spread."""
    rows = np.linspace(0, len(texts) - 1, min(SAMPLE_TEXTS, len(texts))).round().astype(int)
    return [texts[row] for row in rows]


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluation_texts(tasks: Sequence[Task]) -> dict[Role, list[str]]:
    """Distinct texts that a model embeds for all tasks, by role."""
    by_role: dict[Role, dict[str, None]] = {}
    for task in tasks:
        for role, texts in embedded_texts(task):
            by_role.setdefault(role, {}).update(dict.fromkeys(texts))
    return {role: list(texts) for role, texts in by_role.items()}


def teacher_evaluation(job: Job, model: ModelEmbedder, rate: PerToken | None) -> str:
    """What the teacher has to embed for the evaluation, and how long that takes.

    `rate` is that of the training texts; it is measured again if there is none, or if these texts are longer.
    """
    folder = evaluation_folder(job.store.root, job.teacher.embeddings)
    cache = TeacherCache.open(folder) if (folder / MANIFEST).exists() else None
    count = 0
    missing: list[str] = []
    for role, texts in evaluation_texts(job.tasks).items():
        count += len(texts)
        prompted = PromptedTexts(texts, job.teacher.info.prompts.get(role, ""))
        rows = np.arange(len(texts))
        if cache is not None:
            rows = np.flatnonzero(cache.positions(prompted.keys) < 0)
        missing += prompted.prompted(rows)
    if not missing:
        return f"the vectors of all {count:,} texts are stored: {folder}"
    lengths = model.lengths(spread(missing))
    if rate is None or lengths.max() > LONGER * rate.lengths[1]:
        rate, _ = embedding_rate(model, missing)
    return f"{len(missing):,} of {count:,} texts: about {duration(len(missing) * rate.mean(lengths))}; then stored"


def student_evaluation(job: Job, student: SentenceTransformer) -> str:
    """What models of the student's size embed for the evaluation, and how long that takes."""
    section = job.recipe.evaluation
    model = ModelEmbedder(student, "student", section.batch_tokens, job.teacher.info.prompts)
    prompted_texts = []
    for role, texts in evaluation_texts(job.tasks).items():
        prompt = model.prompts.get(role, "")
        prompted_texts += [prompt + text for text in texts]
    rate, lengths = embedding_rate(model, prompted_texts)

    models: list[str] = [name for name in ("untrained", "student") if name in section.columns]
    if "projected" in section.columns and trains_projection(job):
        models.append("projected")
    times = len(models)
    checkpoints = job.recipe.train.keep_students
    if checkpoints and "margin" in section.parts:
        models.append(f"{checkpoints} saved checkpoints")
        times += checkpoints
    count = len(prompted_texts)
    time = duration(times * count * rate.mean(lengths))
    return f"{count:,} texts, {times} times ({', '.join(models)}): about {time}"


def evaluation_lines(job: Job, student: SentenceTransformer, teacher: str | None) -> list[list[str]]:
    """Rows of the plan about the evaluation; `teacher` is the teacher's, None if it embeds nothing."""
    if not job.tasks:
        return []
    section = job.recipe.evaluation
    names = ", ".join(task.name for task in job.tasks)
    count = "1 task" if len(job.tasks) == 1 else f"{len(job.tasks)} tasks"
    lines = [["evaluation", f"{count}: {names}"]]
    if teacher is not None and TEACHER_COLUMNS & {*section.columns}:
        lines.append(["  with the teacher", teacher])
    lines.append(["  with the student", student_evaluation(job, student)])
    if "speed" in section.parts:
        lines.append(["  table of speed", f"at most {duration(section.speed_seconds)} (evaluation.speed_seconds)"])
    return lines
