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

from distilvec.config.schema import TEACHER_COLUMNS
from distilvec.core.duration import duration
from distilvec.evaluation.tasks import Task, embedded_texts
from distilvec.pipeline.job import Job
from distilvec.pipeline.projected import trains_projection
from distilvec.teachers.cache.kept import PromptedTexts, kept_folder
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
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order[::-1]])
    long_rows = order[::-1][: max(1, int(np.searchsorted(ends, MEASURED_TOKENS, side="right")))]
    rising = order[int(SHORT_QUANTILE * len(order)) :]
    ends = np.cumsum(lengths[rising])
    return rising[: max(1, int(np.searchsorted(ends, MEASURED_TOKENS, side="right")))], long_rows


def measure_rate(compute: Callable[[Rows], Any], lengths: Lengths) -> tuple[PerToken, list[Any]]:
    """Seconds for each token, from two calls of `compute` on rows of a sample; and what the calls returned."""
    groups = measured_rows(lengths)
    compute(groups[0][:8])  # warm-up
    results, seconds = [], []
    for rows in groups:
        began = time.perf_counter()
        results.append(compute(rows))
        seconds.append((time.perf_counter() - began) / int(lengths[rows].sum()))
    return PerToken(mean_lengths(lengths, groups), (seconds[0], seconds[1])), results


def mean_lengths(lengths: Lengths, groups: tuple[Rows, Rows]) -> tuple[int, int]:
    """The mean length of the short and of the long texts, the first never above the second."""
    short, long = (round(float(lengths[rows].mean())) for rows in groups)
    return min(short, long), long


def embedding_rate(model: ModelEmbedder, texts: Sequence[str]) -> tuple[PerToken, Lengths]:
    """Seconds for each token of texts with their prompts, and the lengths of a sample of them."""
    sample = spread(texts)
    lengths = model.lengths(sample)
    return measure_rate(lambda rows: model.signals([sample[row] for row in rows]), lengths)[0], lengths


def rate_text(rate: PerToken, lengths: Lengths) -> str:
    """A rate in words: texts a second on average, and tokens a second on short and on long texts."""
    (short, long), (short_seconds, long_seconds) = rate.lengths, rate.values
    on_long = "" if short == long else f", {1 / long_seconds:,.0f} on texts of {long}"
    by_length = f"{1 / short_seconds:,.0f} tokens/s on texts of {short} tokens{on_long}"
    return f"{1 / max(rate.mean(lengths), 1e-9):,.1f} texts/s on average ({by_length})"


def spread(texts: Sequence[str]) -> list[str]:
    """At most SAMPLE_TEXTS of the texts, evenly spread."""
    rows = np.linspace(0, len(texts) - 1, min(SAMPLE_TEXTS, len(texts))).round().astype(int)
    return [texts[row] for row in rows]


# -- evaluation --------------------------------------------------------------------------------------------------------


def evaluation_texts(tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Distinct texts that a model embeds for all tasks, by role."""
    by_role: dict[str, dict[str, None]] = {}
    for task in tasks:
        for role, texts in embedded_texts(task):
            by_role.setdefault(role, {}).update(dict.fromkeys(texts))
    return {role: list(texts) for role, texts in by_role.items()}


def teacher_evaluation(job: Job, model: ModelEmbedder, rate: PerToken | None) -> str:
    """What the teacher has to embed for the evaluation, and how long that takes.

    `rate` is that of the training texts; it is measured again if there is none, or if these texts are longer.
    """
    by_role = evaluation_texts(job.tasks)
    count = sum(map(len, by_role.values()))
    folder = kept_folder(job.store.root, job.teacher.embeddings)
    cache = TeacherCache.open(folder) if (folder / MANIFEST).exists() else None
    missing: list[str] = []
    for role, texts in by_role.items():
        prompted = PromptedTexts(texts, job.teacher.info.prompts.get(role, ""))  # type: ignore[call-overload]
        absent = np.arange(len(texts)) if cache is None else np.flatnonzero(cache.positions(prompted.keys) < 0)
        missing += prompted.prompted(absent)
    if not missing:
        return f"the vectors of all {count:,} texts are kept: {folder}"
    lengths = model.lengths(spread(missing))
    if rate is None or lengths.max() > LONGER * rate.lengths[1]:
        rate = embedding_rate(model, missing)[0]
    return f"{len(missing):,} of {count:,} texts: about {duration(len(missing) * rate.mean(lengths))}; then kept"


def student_evaluation(job: Job, student: SentenceTransformer) -> str:
    """What models of the student's size embed for the evaluation, and how long that takes."""
    by_role = evaluation_texts(job.tasks)
    model = ModelEmbedder(student, "student", job.recipe.evaluation.batch_tokens, job.teacher.info.prompts)
    texts = [model.prompts.get(role, "") + text for role, part in by_role.items() for text in part]  # type: ignore[call-overload]
    rate, lengths = embedding_rate(model, texts)
    scored = ["untrained", "student", *(["projected"] if trains_projection(job) else [])]
    names = [name for name in scored if name in job.recipe.evaluation.columns]
    saved = job.recipe.train.keep_students or 0 if "margin" in job.recipe.evaluation.parts else 0
    times = len(names) + saved
    of = ", ".join([*names, *([f"{saved} saved checkpoints"] if saved else [])])
    return f"{len(texts):,} texts, {times} times ({of}): about {duration(times * len(texts) * rate.mean(lengths))}"


def evaluation_lines(job: Job, student: SentenceTransformer, teacher: str | None) -> list[list[str]]:
    """Rows of the plan about the evaluation; `teacher` is the teacher's, None if it embeds nothing."""
    if not job.tasks:
        return []
    section = job.recipe.evaluation
    names = ", ".join(task.name for task in job.tasks)
    lines = [["evaluation", f"{len(job.tasks)} task{'s' * (len(job.tasks) > 1)}: {names}"]]
    if teacher is not None and TEACHER_COLUMNS & {*section.columns}:
        lines.append(["  with the teacher", teacher])
    lines.append(["  with the student", student_evaluation(job, student)])
    if "speed" in section.parts:
        lines.append(["  table of speed", f"at most {duration(section.speed_seconds)} (evaluation.speed_seconds)"])
    return lines
