"""The models of a report, each with an embedder for queries and one for documents, and their scores on tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distilvec.config.score_columns import SCORE_COLUMNS, ScoredModel
from distilvec.core.errors import DistilvecError, noted_key, user_error
from distilvec.core.log import log, progress
from distilvec.evaluation.aggregate import weights_of_averages
from distilvec.evaluation.evaluator import (
    EmbeddingCache,
    EmbeddingRequest,
    Sample,
    Score,
    embedders,
    requests,
    score_task,
)
from distilvec.evaluation.significance import ChangeInterval, average_interval
from distilvec.evaluation.tasks import OF_AN_INDEX, Task, TaskFailure, embedded_texts
from distilvec.teachers.embedder import Embedder, is_api, is_table

Columns = dict[str, tuple[Embedder, Embedder]]  # query and document embedder by model
Samples = dict[str, dict[str, Sample]]  # by model and task
Intervals = dict[str, dict[str, ChangeInterval]]  # by model, or by change, and task
CHANGES = {  # columns: after, before
    "training": ("student", "untrained"),
    "documents": ("asymmetric", "student"),
    "training_asymmetric": ("asymmetric", "untrained_asymmetric"),
}


def make_columns(models: Mapping[ScoredModel, Embedder], in_teacher_space: bool = True) -> Columns:
    """Return query and document embedders by column, for every column that there are models for.

    Two models need one space: the teacher's, with embeddings of one dim.
    """
    columns: Columns = {}
    for name, column in SCORE_COLUMNS.items():
        if not column.models <= models.keys():
            continue
        query, document = models[column.queries], models[column.documents]
        if query is document or (in_teacher_space and query.dim == document.dim):
            columns[name] = (query, document)
    return columns


def takes_both(name: str) -> bool:
    """Whether the column of this name takes both models in every task."""
    return name in SCORE_COLUMNS and SCORE_COLUMNS[name].every_task


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
    of_teacher = columns.get("teacher", ())
    for pair in columns.values():
        for embedder in pair:
            if is_api(embedder) or is_table(embedder):
                cache.sections[id(embedder)] = "teacher" if embedder in of_teacher else "model"
    for name, pair in columns.items():
        for request in requests(tasks_by_model[name], *pair, mixed=takes_both(name)):
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
                    pair = embedders(task, query, document, takes_both(name))
                    score, samples[name][task.name] = score_task(task, *pair, cache)
                    scores[name].append(score)
                except Exception as error:
                    problem = user_error(error)
                    if problem is None:
                        raise
                    problems.append(TaskFailure(task.name, str(problem), name))
        advance(done)
    return scores, samples


def embed_ahead(request: EmbeddingRequest, cache: EmbeddingCache) -> None:
    """Embed the texts of all tasks with one model, with a bar; what `cache` has is not embedded again.

    Vectors that cannot be used are no error here: scoring a task asks for them again, and names the task. An API is not
    asked again: each request is repeated and paid for, and what it refuses once it refuses for every task.
    """
    missing = cache.missing(request)
    if not missing.texts:
        return
    what = "reading vectors of" if is_table(request.embedder) else "embedding with"
    try:
        with progress(f"{what} {request.embedder.name}", missing.size, "texts") as advance:
            for step in cache.embed(missing):
                advance(step.texts, work=step.share * missing.size)
    except Exception as error:
        is_of_vectors = isinstance(error, DistilvecError) or noted_key(error)  # a model that fails fails for every task
        if is_api(request.embedder) or not is_of_vectors:
            raise


def answered(tasks: Sequence[Task], name: str, query: Embedder, document: Embedder) -> list[Task]:
    """Return the tasks whose texts have vectors; those with texts that a table of vectors lacks are logged."""
    complete = []
    for task in tasks:
        missing = 0
        pair = embedders(task, query, document, takes_both(name))
        for embedder, (role, texts) in zip(pair, embedded_texts(task), strict=True):
            if is_table(embedder):
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
            report[name] = _column_differences(sample, teacher, name, problems)
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
            report[change] = _column_differences(samples[after], samples[before], after, undefined)
    return report


def _column_differences(
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
        for average, weights in weights_of_averages(types).items():
            averaged = [pairs[task] for task in weights]
            differences[average] = average_interval(averaged, list(weights.values()))
    return {task: ChangeInterval(interval.low, interval.high, interval.p) for task, interval in differences.items()}
