"""What the evaluation of a run takes: for the plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import Role
from distilvec.config.score_columns import SCORE_COLUMNS, columns_with
from distilvec.core.duration import duration
from distilvec.core.vectors import spread_items
from distilvec.evaluation.tasks import RetrievalTask, Task, embedded_texts
from distilvec.pipeline.job import Job
from distilvec.pipeline.objectives import trains_projection
from distilvec.pipeline.overview import SAMPLE_TEXTS, PerToken, embedding_rate
from distilvec.teachers.cache.evaluation_vectors import PromptedTexts, evaluation_folder
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder

LONGER = 1.5  # a rate holds for texts up to so many times as long


def evaluation_texts(tasks: Sequence[Task], documents: bool = True) -> dict[Role, list[str]]:
    """Distinct texts that a model embeds for all tasks, by role; with or without the `documents` of searches."""
    by_role: dict[Role, dict[str, None]] = {}
    for task in tasks:
        first, second = embedded_texts(task)
        is_embedded_by_another = isinstance(task, RetrievalTask) and not documents
        for role, texts in (first,) if is_embedded_by_another else (first, second):
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
    lengths = model.lengths(spread_items(missing, SAMPLE_TEXTS))
    if rate is None or lengths.max() > LONGER * rate.lengths[1]:
        rate, _ = embedding_rate(model, missing)
    return f"{len(missing):,} of {count:,} texts: about {duration(len(missing) * rate.mean(lengths))}; then stored"


def student_evaluation(job: Job, student: SentenceTransformer) -> str | None:
    """What models of the student's size embed for the evaluation, and how long that takes; None for nothing."""
    section = job.recipe.evaluation
    checkpoints = job.recipe.train.keep_students
    models: list[str] = [name for name in ("untrained", "student") if name in section.columns]
    if "projected" in section.columns and trains_projection(job):
        models.append("projected")
    times = len(models)
    if checkpoints and "margin" in section.parts:
        models.append(f"{checkpoints} saved checkpoints")
        times += checkpoints
    searching = _columns_with_teacher(job)

    parts = []
    seconds = 0.0
    model = ModelEmbedder(student, "student", section.batch_tokens, job.teacher.info.prompts)
    for names, repeats, documents in ((models, times, True), (searching, len(searching), False)):
        if not names:
            continue
        texts = []
        for role, role_texts in evaluation_texts(job.tasks, documents).items():
            prompt = model.prompts.get(role, "")
            texts += [prompt + text for text in role_texts]
        rate, lengths = embedding_rate(model, texts)
        seconds += repeats * len(texts) * rate.mean(lengths)
        parts.append(f"{len(texts):,} texts, {repeats} times ({', '.join(names)})")
    return f"{'; '.join(parts)}: about {duration(seconds)}" if parts else None


def _columns_with_teacher(job: Job) -> list[str]:
    """Return the columns in which a model of the student's size embeds queries, and the teacher documents.

    Without those of a model that has a column of its own, for which it embeds the same queries.
    """
    if not job.in_teacher_space or job.context.student_dim != job.teacher.info.dim:
        return []
    columns = job.recipe.evaluation.columns
    names = []
    for name, column in SCORE_COLUMNS.items():
        if name in columns and len(column.models) > 1 and column.queries not in columns:
            names.append(name)
    return names


def evaluation_lines(job: Job, student: SentenceTransformer, teacher: str | None) -> list[list[str]]:
    """Rows of the plan about the evaluation; `teacher` is the teacher's, None if it embeds nothing."""
    if not job.tasks:
        return []
    section = job.recipe.evaluation
    names = ", ".join(task.name for task in job.tasks)
    count = "1 task" if len(job.tasks) == 1 else f"{len(job.tasks)} tasks"
    lines = [["evaluation", f"{count}: {names}"]]
    if teacher is not None and columns_with("teacher") & {*section.columns}:
        lines.append(["  with the teacher", teacher])
    of_student = student_evaluation(job, student)
    if of_student is not None:
        lines.append(["  with the student", of_student])
    if "speed" in section.parts:
        lines.append(["  table of speed", f"at most {duration(section.speed_seconds)} (evaluation.speed_seconds)"])
    return lines
