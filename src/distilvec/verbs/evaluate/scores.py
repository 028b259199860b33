"""Scores of one model on local tasks, on a table's own texts, or on MTEB: the verb `evaluate` and the Python API."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from distilvec.config.score_columns import ScoredModel
from distilvec.core.errors import DistilvecError, about, nearest, set_by
from distilvec.core.extras import require_extra
from distilvec.core.files import user_cache
from distilvec.core.log import log
from distilvec.evaluation.aggregate import ALSO, PROTOCOLS, with_protocol
from distilvec.evaluation.columns import Columns, Samples, make_columns, score_columns, takes_both
from distilvec.evaluation.evaluator import EmbeddingCache, Score
from distilvec.evaluation.mteb import find_tasks, import_mteb, mteb_scores
from distilvec.evaluation.significance import score_interval
from distilvec.evaluation.stored import stored_tasks, tasks_in_table
from distilvec.evaluation.suite import load_suite
from distilvec.evaluation.tasks import KNOWN_ITEM, TaskFailure
from distilvec.report.scores import Scores
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import Source, opened
from distilvec.teachers.sources import NAMES, source_kind, source_name
from distilvec.teachers.table_embedder import TableEmbedder

STORED = 500  # texts of an index that it is searched for


@set_by({"model.api": "model", "model.vectors": "model", "teacher.api": "teacher", "teacher.vectors": "teacher"})
def score_models(
    model: Source,
    suite: str | os.PathLike[str] | None = None,
    teacher: Source | None = None,
    mteb: str | Sequence[str] | None = None,
    benchmark: str | None = None,
    data: str | os.PathLike[str] | None = None,
    protocol: str = "mteb-like",
    mixed: bool = False,
    trust_remote_code: bool = False,
) -> Scores:
    """Score a model, and optionally its teacher, on a suite, on a table's own texts, or on tasks of MTEB.

    Args:
        model: Anything that `open_embedder` opens, as `teacher`. With a teacher of the same dim there is a column
            `asymmetric`: the model's queries, the teacher's documents; other tasks than retrieval and reranking repeat
            the model's score. A table of vectors is scored on the tasks whose texts it holds.
        suite: A suite file. Without one, and with a table as teacher, the tasks are made of the table itself
            (evaluation/stored.py).
        mteb: Task names, also as one text with commas.
        data: A folder with <MTEB task>/ folders, read instead of the hub.
        protocol: Chooses the main metrics.
        mixed: A further column, with both models in pairs, STS and classification too.
        trust_remote_code: Run code that comes with the models.

    Failed tasks are `problems`. Errors: DistilvecError for arguments and models that cannot be used.
    """
    check_evaluation(model, suite, teacher, mteb, benchmark, data, protocol, mixed)
    samples: Samples = {}  # none of tasks of MTEB, which gives no scores of rows
    if mteb is not None or benchmark is not None:
        names = mteb.split(",") if isinstance(mteb, str) else mteb
        tasks = None if names is None else [name.strip() for name in names]
        scores = score_on_mteb(model, teacher, tasks, benchmark, data, mixed, trust_remote_code)
    elif suite is not None:
        scores, samples = score_on_suite(model, teacher, suite, mixed, trust_remote_code)
    else:
        assert teacher is not None
        scores, samples = score_on_table(model, teacher, mixed, trust_remote_code)
    columns: dict[str, list[Score]] = {}
    for name, column in scores.columns.items():
        of_model = samples.get(name, {})
        columns[name] = []
        for score in column:
            score = with_protocol(score, protocol)
            sample = of_model.get(score.task)
            if sample is not None:  # the main metric of a protocol need not be that of the sample
                score = replace(score, interval=score_interval(replace(sample, metric=score.metric)))
            columns[name].append(score)
    return Scores(columns, scores.problems, ALSO.get(protocol, {}))


def score_on_suite(
    model: Source,
    teacher: Source | None,
    suite: str | os.PathLike[str],
    mixed: bool = False,
    trust_remote_code: bool = False,
) -> tuple[Scores, Samples]:
    """Score models on the local tasks of a suite file; no model is opened if none of the tasks can be read."""
    problems: list[TaskFailure] = []
    tasks = load_suite(Path(suite), problems)
    if problems and not tasks:
        return Scores({}, problems), {}
    with opened_columns(model, teacher, mixed, problems, trust_remote_code) as columns:
        reference = columns["teacher"][1] if "teacher" in columns else None
        if isinstance(reference, ModelEmbedder):  # suites are scored many times: its vectors are stored, and read again
            reference.keep_in(user_cache(), reference.manifest())
        if isinstance(reference, TableEmbedder):  # in place of its model: scores are those of any model as a teacher
            tasks = tasks_in_table(tasks, reference)
            log(
                "the teacher is a table of vectors: each task searches its own documents. "
                "`distilvec check MODEL INDEX --test QUERIES` searches the whole index"
            )
        scores, samples = score_columns(tasks, columns, EmbeddingCache(), problems)
    return Scores(scores, problems), samples


def score_on_table(
    model: Source, table: Source, mixed: bool = False, trust_remote_code: bool = False
) -> tuple[Scores, Samples]:
    """Score a model as the query encoder of a table of vectors or an index, on tasks that are made of its own texts."""
    problems: list[TaskFailure] = []
    with opened_columns(model, table, mixed, problems, trust_remote_code) as columns:
        index = columns["teacher"][1]
        assert isinstance(index, TableEmbedder)
        scores, samples = score_columns(stored_tasks(index, STORED), columns, EmbeddingCache(), problems)
    # Among its own documents a model finds the one that is the query itself, whatever model it is
    if "student" in scores:  # not of a table that lacks the texts
        scores["student"] = [score for score in scores["student"] if score.task != KNOWN_ITEM]
    return Scores(scores, problems), samples


def score_on_mteb(
    model: Source,
    teacher: Source | None,
    tasks: list[str] | None,
    benchmark: str | None,
    data: str | os.PathLike[str] | None = None,
    mixed: bool = False,
    trust_remote_code: bool = False,
) -> Scores:
    """Score models on tasks or a benchmark of MTEB. Unknown names are reported before a model is opened."""
    cache = user_cache() / "mteb"
    import_mteb(cache)
    find_tasks(tasks, benchmark)
    problems: list[TaskFailure] = []
    folder = None if data is None else Path(data)
    with opened_columns(model, teacher, mixed, problems, trust_remote_code) as columns:
        scores = mteb_scores(columns, tasks, benchmark, folder, cache, problems=problems)
    return Scores(scores, problems)


@contextmanager
def opened_columns(
    model: Source, teacher: Source | None, mixed: bool, problems: list[TaskFailure], trust_remote_code: bool
) -> Iterator[Columns]:
    """Open the models, each as a column of the table of scores; say before the scores that two have no common space.

    A table has vectors alone, so that nothing is left to score: a problem.
    """
    open_one = partial(opened, trust_remote_code=trust_remote_code)
    with ExitStack() as stack:
        reference: Embedder | None = None
        if teacher is not None and source_kind(teacher) == "table":
            # First: a wrong path is found out before a model is loaded
            with about("teacher"):
                reference = stack.enter_context(open_one(teacher))
        with about("model"):
            student = stack.enter_context(open_one(model))
        if teacher is not None and reference is None:
            with about("teacher"):
                reference = stack.enter_context(open_one(teacher))
        models: dict[ScoredModel, Embedder] = {"student": student}
        if reference is not None:
            models["teacher"] = reference
        columns = {name: pair for name, pair in make_columns(models).items() if mixed or not takes_both(name)}
        if reference is not None and "asymmetric" not in columns:
            dims = f"vectors of {source_name(model)} have {student.dim} dimensions"
            dims = f"{dims}, those of {source_name(teacher)} {reference.dim}: no common space"
            if isinstance(reference, TableEmbedder):
                problems.append(TaskFailure("all", f"{dims}.", "asymmetric"))
            else:
                log(f"{dims}, so each model only has its own scores.")
        yield columns


def check_evaluation(
    model: Source,
    suite: str | os.PathLike[str] | None,
    teacher: Source | None,
    mteb: str | Sequence[str] | None,
    benchmark: str | None,
    data: str | os.PathLike[str] | None,
    protocol: str,
    mixed: bool = False,
) -> None:
    """Raise DistilvecError for unknown names and arguments that contradict each other, before anything is opened."""
    on_mteb = mteb is not None or benchmark is not None
    on_table = teacher is not None and source_kind(teacher) == "table" and not on_mteb
    if suite is not None and on_mteb:
        raise DistilvecError("both a suite and MTEB are given.", "Give one of them.", key="suite")
    if suite is None and not on_mteb and not on_table:
        raise DistilvecError("there are no tasks.", "Give a suite, or tasks or a benchmark of MTEB.", key="suite")
    if data is not None and not on_mteb:
        problem = "is for MTEB; a suite lists its own files, and an index is scored on its own texts."
        raise DistilvecError(problem, "Remove it.", key="data")
    if mixed and teacher is None:
        raise DistilvecError(
            "adds a column of the model with its teacher.", "Name a teacher, or remove it.", key="mixed"
        )
    if data is not None and not Path(data).is_dir():
        raise DistilvecError(f"{data} is not a folder.", "Name one with <MTEB task>/ folders.", key="data")
    if on_mteb:
        for key, source in (("model", model), ("teacher", teacher)):
            kind = "model" if source is None else source_kind(source)
            if kind in ("table", "export"):
                problem = f"{source_name(source)} is {NAMES[kind]}, which can be scored on a suite, not on MTEB."
                raise DistilvecError(problem, "Name a suite, or a model.", key=key)
        require_extra("mteb", "benchmark" if benchmark else "mteb")
    if protocol not in PROTOCOLS:
        hint = nearest(protocol, PROTOCOLS) or "."
        raise DistilvecError(f"no protocol '{protocol}'{hint} Protocols: {', '.join(PROTOCOLS)}.", key="protocol")
