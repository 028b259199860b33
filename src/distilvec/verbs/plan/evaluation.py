"""What the evaluation of a run takes: for the plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import TEACHER_COLUMNS, Role
from distilvec.core.duration import duration
from distilvec.evaluation.tasks import Task, embedded_texts
from distilvec.pipeline.job import Job
from distilvec.pipeline.projected import trains_projection
from distilvec.pipeline.rates import PerToken, embedding_rate, spread
from distilvec.teachers.cache.evaluation_vectors import PromptedTexts, evaluation_folder
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder

LONGER = 1.5  # a rate holds for texts up to so many times as long


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
