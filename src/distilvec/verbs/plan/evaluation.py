"""What the evaluation of a run takes: for the plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import TEACHER_COLUMNS
from distilvec.core.duration import duration
from distilvec.evaluation.tasks import Task, embedded_texts
from distilvec.pipeline.job import Job
from distilvec.pipeline.projected import trains_projection
from distilvec.pipeline.rates import PerToken, embedding_rate, spread
from distilvec.teachers.cache.kept import PromptedTexts, kept_folder
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder

LONGER = 1.5  # a rate holds for texts up to so many times as long


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
