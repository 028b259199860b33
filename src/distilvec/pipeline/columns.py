"""The models of a report, each with an embedder for queries and one for documents, and their scores on tasks."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_file
from distilvec.core.log import log, progress
from distilvec.evaluation.aggregate import task_weights
from distilvec.evaluation.evaluator import (
    MIXED,
    EmbeddingCache,
    Request,
    Sample,
    Score,
    embedders,
    requests,
    score_task,
)
from distilvec.evaluation.significance import average_interval
from distilvec.evaluation.tasks import OF_AN_INDEX, Task, TaskFailure, embedded_texts
from distilvec.report.values import REPORT_FORMAT, ChangeInterval
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.table_embedder import TableEmbedder

Columns = dict[str, tuple[Embedder, Embedder]]  # query and document embedder by model
Samples = dict[str, dict[str, Sample]]  # by model and task
Intervals = dict[str, dict[str, ChangeInterval]]  # by model, or by change, and task
CHANGES = {  # columns: after, before
    "training": ("student", "untrained"),
    "documents": ("asymmetric", "student"),
    "training_asymmetric": ("asymmetric", "untrained_asymmetric"),
}


def make_columns(
    student: Embedder,
    untrained: Embedder | None = None,
    teacher: Embedder | None = None,
    in_teacher_space: bool = True,
    projected: Embedder | None = None,
) -> Columns:
    """Return query and document embedders by model, for every column that there are models for.

    - projected: the student behind the linear map into the teacher's space that its method has trained
    - asymmetric: the student's queries against the teacher's documents; other tasks than retrieval repeat the student's
      score. Needs a student in the teacher's space, with embeddings of the same dim.
    - untrained_asymmetric: the same with the student before its training
    - mixed: both models in every task (evaluator.py)
    """
    columns: Columns = {}
    if teacher is not None:
        columns["teacher"] = (teacher, teacher)
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

    With a table of vectors a model is scored on the tasks whose texts the table holds, and left out without any:
    `tasks` are those of `tasks_in_table` then.
    """
    scores: dict[str, list[Score]] = {}
    samples: Samples = {}
    tasks_by_model = {name: answered(tasks, name, *pair) for name, pair in columns.items()}
    for name, pair in columns.items():
        for request in requests(tasks_by_model[name], *pair, mixed=name == MIXED):
            embed_ahead(request, cache)
    with progress("evaluating", sum(map(len, tasks_by_model.values())), "tasks") as advance:
        done = 0
        for name, (query, document) in columns.items():
            if not tasks_by_model[name]:
                continue
            scores[name] = []
            samples[name] = {}
            for task in tasks_by_model[name]:
                advance(done, f"{name}: {task.name}")
                done += 1
                try:
                    pair = embedders(task, query, document, name == MIXED)
                    score, samples[name][task.name] = score_task(task, *pair, cache)
                    scores[name].append(score)
                except DistilvecError as error:
                    problems.append(TaskFailure(task.name, str(error), name))
        advance(done)
    return scores, samples


def embed_ahead(request: Request, cache: EmbeddingCache) -> None:
    """Embed the texts of all tasks with one model, with a bar; what `cache` has is not embedded again.

    Vectors that cannot be used are no error here: scoring a task asks for them again, and names the task. An API is not
    asked again: each request is repeated and paid for, and what it refuses once it refuses for every task.
    """
    missing = cache.missing(request)
    if not missing.texts:
        return
    what = f"embedding with {request.embedder.name}"
    is_api = isinstance(request.embedder, ApiEmbedder)
    with progress(what, missing.size, "texts") as advance, nullcontext() if is_api else suppress(DistilvecError):
        for step in cache.embed(missing):
            advance(step.texts, work=step.share * missing.size)


def answered(tasks: Sequence[Task], name: str, query: Embedder, document: Embedder) -> list[Task]:
    """Return the tasks whose texts have vectors; those with texts that a table of vectors lacks are logged."""
    complete = []
    for task in tasks:
        missing = 0
        pair = embedders(task, query, document, name == MIXED)
        for embedder, (role, texts) in zip(pair, embedded_texts(task), strict=True):
            if isinstance(embedder, TableEmbedder):
                missing += embedder.lacking(texts, role)
        if missing:
            log(f"{task.name}: no scores of '{name}', since {missing:,} texts have no vector in the table")
        else:
            complete.append(task)
    return complete


def intervals(samples: Samples, problems: list[TaskFailure]) -> Intervals:
    """Return [low, high, p] of each model's difference from the teacher in points, by task and average.

    A task whose difference is undefined is added to `problems`; that model has no averages then.
    """
    report: Intervals = {}
    teacher = samples.get("teacher", {})
    for name, sample in samples.items():
        if name != "teacher" and sample.keys() & teacher.keys():
            report[name] = _differences(sample, teacher, name, problems)
    return report


def change_intervals(samples: Samples) -> Intervals:
    """Return [low, high, p] of what training changed, and of what the teacher's documents change, as `intervals` does.

    "training" is the student less the untrained one, "documents" the asymmetric scores less the student's own,
    "training_asymmetric" the asymmetric scores less those of the untrained student.
    """
    report: Intervals = {}
    for change, (after, before) in CHANGES.items():
        if after in samples and before in samples:
            undefined: list[TaskFailure] = []  # these tasks are named where models are compared with the teacher
            report[change] = _differences(samples[after], samples[before], after, undefined)
    return report


def _differences(
    after: Mapping[str, Sample], before: Mapping[str, Sample], name: str, problems: list[TaskFailure]
) -> dict[str, ChangeInterval]:
    """Return [low, high, p] of the differences of a model on the tasks that both have, and of the averages."""
    pairs = {task: (sample, before[task]) for task, sample in after.items() if task in before}
    differences = {}
    for task, pair in pairs.items():
        try:
            differences[task] = average_interval([pair])
        except DistilvecError as error:
            problems.append(TaskFailure(task, str(error), name))
    if len(differences) == len(pairs):
        types = {task: after[task].type for task in pairs if task not in OF_AN_INDEX}
        for average, weights in task_weights(types).items():
            averaged = [pairs[task] for task in weights]
            differences[average] = average_interval(averaged, list(weights.values()))
    return {task: ChangeInterval(interval.low, interval.high, interval.p) for task, interval in differences.items()}


def write_samples(path: Path, samples: Mapping[str, Mapping[str, Sample]]) -> None:
    """Write samples.npz, whole or not at all: arrays <model>/<task>/predicted and <model>/<task>/gold, the format."""
    arrays: dict[str, Any] = {}
    for model, by_task in samples.items():
        for task, sample in by_task.items():
            arrays[f"{model}/{task}/predicted"] = sample.predicted
            arrays[f"{model}/{task}/gold"] = sample.gold
    content = io.BytesIO()
    np.savez_compressed(content, format=np.array(REPORT_FORMAT), **arrays)
    write_file(path, content.getvalue(), path.name)
