"""The models of a report, each with an embedder for queries and one for documents, and their scores on tasks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_file
from distilvec.core.log import log, progress
from distilvec.evaluation.aggregate import task_weights
from distilvec.evaluation.evaluator import (
    MIXED,
    Embedder,
    EmbeddingCache,
    Request,
    Sample,
    Score,
    embedders,
    evaluate,
    requests,
)
from distilvec.evaluation.exported import TextEncoder
from distilvec.evaluation.significance import average_interval
from distilvec.evaluation.tasks import Task, TaskFailure, embedded_texts
from distilvec.report.values import REPORT_FORMAT, ChangeInterval
from distilvec.teachers.model import LocalTeacher
from distilvec.teachers.precomputed import VectorsTeacher
from distilvec.teachers.teacher import OpenTeacher

Columns = dict[str, tuple[Embedder, Embedder]]
Samples = dict[str, dict[str, Sample]]
Intervals = dict[str, dict[str, ChangeInterval]]
CHANGES = {  # columns: after, before
    "training": ("student", "untrained"),
    "documents": ("asymmetric", "student"),
    "training_asymmetric": ("asymmetric", "untrained_asymmetric"),
}


def make_columns(
    student: LocalTeacher | TextEncoder,
    untrained: LocalTeacher | None = None,
    teacher: OpenTeacher | None = None,
    in_teacher_space: bool = True,
    projected: LocalTeacher | None = None,
) -> Columns:
    """Return query and document embedders by model, for every column that there are models for.

    - projected: the student behind the linear map into the teacher's space that its method has trained
    - asymmetric: the student's queries against the teacher's documents; other tasks than retrieval repeat the student's
      score. Needs a student in the teacher's space, with embeddings of the same dim.
    - untrained_asymmetric: the same with the student before its training
    - mixed: both models in every task (evaluator.py)
    """
    columns: Columns = {} if teacher is None else {"teacher": (teacher, teacher)}
    if untrained is not None:
        columns["untrained"] = (untrained, untrained)
    columns["student"] = (student, student)
    if projected is not None:
        columns["projected"] = (projected, projected)
    if teacher is not None and in_teacher_space and teacher.dim == student.dim:
        columns["asymmetric"] = (student, teacher)
        if untrained is not None:
            columns["untrained_asymmetric"] = (untrained, teacher)
        columns[MIXED] = (student, teacher)
    return columns


def score_columns(
    tasks: Sequence[Task], columns: Columns, cache: EmbeddingCache, problems: list[TaskFailure]
) -> tuple[dict[str, list[Score]], Samples]:
    """Score every model; failures are added to `problems` with the model's name.

    With a table of vectors a model is scored on the tasks whose texts the table holds, and left out without any.
    """
    scores: dict[str, list[Score]] = {}
    samples: Samples = {}
    tasks_of = {name: answered(tasks, name, *pair) for name, pair in columns.items()}
    for name, pair in columns.items():
        for request in requests(tasks_of[name], *pair, mixed=name == MIXED):
            embed_ahead(request, cache)
    with progress("evaluating", len(columns) * len(tasks), "tasks") as advance:
        for number, (name, (query, document)) in enumerate(columns.items()):
            found: list[TaskFailure] = []
            known = tasks_of[name]
            if not known:
                continue
            samples[name] = {}

            def report(task: str, done: int, total: int, number: int = number, name: str = name) -> None:
                advance(number * len(tasks) + done, f"{name}: {task}")

            scores[name] = evaluate(known, query, document, cache, report, found, samples[name], name == MIXED)
            problems += [TaskFailure(problem.task, problem.message, name) for problem in found]
    return scores, samples


def embed_ahead(request: Request, cache: EmbeddingCache) -> None:
    """Embed the texts of all tasks with one model, with a bar; what `cache` has is not embedded again.

    Vectors that cannot be used are no error here: scoring a task asks for them again, and names the task.
    """
    if not (left := cache.lacking(request)):
        return
    with progress(f"embedding with {request.embedder.name}", len(left), "texts") as advance, suppress(DistilvecError):
        left.embed(cache, lambda done, share: advance(done, work=share * len(left)))


def answered(tasks: Sequence[Task], name: str, query: Embedder, document: Embedder) -> list[Task]:
    """The tasks whose texts have vectors; those with texts that a table of vectors lacks are logged."""
    found = []
    for task in tasks:
        pairs = zip(embedders(task, query, document, name == MIXED), embedded_texts(task), strict=True)
        lacking = sum(one.lacking(texts, role) for one, (role, texts) in pairs if isinstance(one, VectorsTeacher))
        if lacking:
            log(f"{task.name}: no scores of '{name}', since {lacking:,} texts have no vector in the table")
        else:
            found.append(task)
    return found


def intervals(samples: Samples, draws: int, problems: list[TaskFailure]) -> Intervals:
    """Return [low, high, p] of each model's difference from the teacher in points, by task and average.

    A task whose difference is undefined is added to `problems`; that model has no averages then.
    """
    report: Intervals = {}
    teacher = samples.get("teacher", {})
    for name, sample in samples.items():
        if name != "teacher" and sample.keys() & teacher.keys():
            report[name] = _differences(sample, teacher, draws, name, problems)
    return report


def change_intervals(samples: Samples, draws: int) -> Intervals:
    """Return [low, high, p] of what training changed, and of what the teacher's documents change, as `intervals` does.

    "training" is the student less the untrained one, "documents" the asymmetric scores less the student's own,
    "training_asymmetric" the asymmetric scores less those of the untrained student.
    """
    report: Intervals = {}
    for change, (after, before) in CHANGES.items():
        if after in samples and before in samples:
            undefined: list[TaskFailure] = []  # these tasks are named where models are compared with the teacher
            report[change] = _differences(samples[after], samples[before], draws, after, undefined)
    return report


def _differences(
    ours: Mapping[str, Sample], theirs: Mapping[str, Sample], draws: int, name: str, problems: list[TaskFailure]
) -> dict[str, ChangeInterval]:
    """Return [low, high, p] of the differences of a model on the tasks that both have, and of the averages."""
    pairs = {task: (ours[task], theirs[task]) for task in ours if task in theirs}
    found = {}
    for task, pair in pairs.items():
        try:
            found[task] = average_interval([pair], draws=draws)
        except DistilvecError as error:
            problems.append(TaskFailure(task, str(error), name))
    if len(found) == len(pairs):
        for average, weights in task_weights({task: ours[task].type for task in pairs}).items():
            chosen = [pairs[task] for task in weights]
            found[average] = average_interval(chosen, draws=draws, weights=list(weights.values()))
    return {task: ChangeInterval(interval.low, interval.high, interval.p) for task, interval in found.items()}


def write_samples(folder: Path, samples: Mapping[str, Mapping[str, Sample]]) -> None:
    """Write samples.npz, whole or not at all: arrays <model>/<task>/predicted and <model>/<task>/gold, the format."""
    arrays = {
        f"{column}/{task}/{name}": getattr(sample, name)
        for column, found in samples.items()
        for task, sample in found.items()
        for name in ("predicted", "gold")
    }
    np.savez_compressed(content := io.BytesIO(), format=np.array(REPORT_FORMAT), **arrays)
    write_file(folder / "samples.npz", content.getvalue(), "samples.npz")
