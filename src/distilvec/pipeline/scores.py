"""Scores of one model on local tasks or on MTEB: the evaluation of the verb `evaluate` and of the Python API.

Heavy imports come after the checks of the arguments, so that a mistake is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.extras import require_extra
from distilvec.report.scores import problem_text, score_frame, score_table
from distilvec.report.tables import html_list, to_html, to_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.evaluation.evaluator import Score
    from distilvec.evaluation.exported import TextEncoder
    from distilvec.evaluation.tasks import TaskFailure
    from distilvec.teachers.model import LocalTeacher
    from distilvec.teachers.precomputed import VectorsTeacher


STORED = 500  # texts of an index that it is searched for


@dataclass(frozen=True, repr=False)
class Scores:
    """Scores by model (teacher, student, asymmetric), and the tasks that could not be scored, or only in part.

    `also` names further metrics that tables show, by type of task.
    """

    columns: dict[str, list[Score]]
    problems: list[TaskFailure]
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def averages(self) -> dict[str, dict[str, Any]]:
        """Return the averages by model: all, by_type, retrieval, in and out of domain, and the mean of each type."""
        from distilvec.evaluation.aggregate import averages, type_averages

        return {name: {**averages(found), "types": type_averages(found)} for name, found in self.columns.items()}

    def __repr__(self) -> str:
        table = to_text(score_table(self.columns, also=self.also)) if any(self.columns.values()) else "no scores"
        return "\n".join([table, *self._problems()])

    def _repr_html_(self) -> str:
        table = to_html(score_table(self.columns, also=self.also)) if any(self.columns.values()) else "<p>no scores</p>"
        return f"{table}\n{html_list(self._problems())}"

    def _problems(self) -> list[str]:
        return [f"problem: {problem_text(problem)}" for problem in self.problems]

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame: task, type, metric and one column for each model, in points."""
        return score_frame(self.columns)


def score_models(
    model: str | os.PathLike[str] | SentenceTransformer,
    suite: str | os.PathLike[str] | None = None,
    teacher: str | os.PathLike[str] | SentenceTransformer | None = None,
    mteb: str | Sequence[str] | None = None,
    benchmark: str | None = None,
    data: str | os.PathLike[str] | None = None,
    protocol: str = "mteb-like",
    mixed: bool = False,
) -> Scores:
    """Score a model, and optionally its teacher, on the tasks of a suite file, or on tasks or a benchmark of MTEB.

    Args:
        model: A folder, an id or a SentenceTransformer, as `teacher`; on a suite also the file of an export (.onnx,
            .xml) below its model's folder. With a teacher of the same dim there is a column
            `asymmetric`: the model's queries, the teacher's documents; other tasks than retrieval and reranking repeat
            the model's score. A teacher may be a table of vectors or an index: it is scored on the tasks whose texts it
            holds; without a suite the tasks are made from the table itself (evaluation/stored.py).
        mteb: Task names, also as one text with commas.
        data: A folder with <MTEB task>/ folders, read instead of the hub.
        protocol: Chooses the main metrics.
        mixed: A further column, with both models in pairs, STS and classification too.

    Failed tasks are `problems`. Errors: DistilvecError for arguments and models that cannot be used.
    """
    check_arguments(suite, teacher, mteb, benchmark, data, protocol)
    from distilvec.evaluation.aggregate import ALSO, with_protocol
    from distilvec.evaluation.evaluator import EmbeddingCache
    from distilvec.evaluation.mteb import find_tasks, import_mteb, mteb_scores
    from distilvec.evaluation.stored import stored_tasks
    from distilvec.evaluation.suite import load_suite
    from distilvec.evaluation.tasks import TaskFailure
    from distilvec.pipeline.columns import make_columns, score_columns
    from distilvec.pipeline.resolve import cache_root
    from distilvec.teachers.model import LocalTeacher

    names = [name.strip() for name in (mteb.split(",") if isinstance(mteb, str) else mteb)] if mteb else None
    of_mteb = mteb is not None or benchmark is not None
    problems, tasks, cache = list[TaskFailure](), list[Any](), cache_root() / "mteb"
    if suite is not None:
        tasks = load_suite(Path(suite), problems)
        if problems and not tasks:
            return Scores({}, problems)
    elif of_mteb:
        import_mteb(cache)
        find_tasks(names, benchmark)  # so that unknown names are reported before models are loaded
    table = _table(teacher) if is_table(teacher) else None
    student = _student(model, of_mteb)
    other = table if table is not None or teacher is None else _embedder(teacher, "teacher", "teacher")
    if table is not None and suite is None:
        tasks = list(stored_tasks(table, STORED))
    if isinstance(other, LocalTeacher) and not of_mteb:  # scores on MTEB are stored themselves
        other.keep_in(cache_root(), other.manifest())
    columns = make_columns(student, None, other)
    columns = {name: pair for name, pair in columns.items() if mixed or name != "mixed"}
    if other is not None and "asymmetric" not in columns:
        ours, theirs = (one if isinstance(one, (str, os.PathLike)) else "the model" for one in (model, teacher))
        dims = f"vectors of {ours} have {student.dim} dimensions, those of {theirs} {other.dim}"
        problems.append(TaskFailure("all", f"{dims}: no common space.", "asymmetric"))
    if of_mteb:
        found = mteb_scores(columns, names, benchmark, Path(data) if data else None, cache, problems=problems)
    else:
        found = score_columns(tasks, columns, EmbeddingCache(), problems)[0]
    scores = {name: [with_protocol(score, protocol) for score in column] for name, column in found.items()}
    return Scores(scores, problems, ALSO.get(protocol, {}))


def check_arguments(suite: Any, teacher: Any, mteb: Any, benchmark: Any, data: Any, protocol: str) -> None:
    """DistilvecError for unknown names and for arguments that contradict each other, before anything is loaded."""
    table, of_mteb = is_table(teacher), mteb is not None or benchmark is not None
    wrong = [
        (
            "suite",
            (suite is not None and of_mteb) or (suite is None and not of_mteb and not table),
            "give either a suite, or tasks or a benchmark of MTEB",
        ),
        ("data", data is not None and suite is not None, "is for MTEB; a suite lists its own files. Remove it"),
        (
            "data",
            data is not None and not Path(data).is_dir(),
            f"{data} is no folder. Name one with <MTEB task>/ folders",
        ),
        ("teacher", table and of_mteb, f"{teacher} is a table of vectors, without those of MTEB's texts. Name a model"),
    ]
    for key, applies, problem in wrong:
        if applies:
            raise DistilvecError(key, f"{problem}.")
    if of_mteb:
        require_extra("mteb", "benchmark" if benchmark else "mteb")
    from distilvec.evaluation.aggregate import PROTOCOLS

    if protocol not in PROTOCOLS:
        known = f"{nearest(protocol, PROTOCOLS) or '.'} Protocols: {', '.join(PROTOCOLS)}"
        raise DistilvecError("protocol", f"no protocol '{protocol}'{known}.")


def is_table(teacher: Any) -> bool:
    """Return whether a teacher is a table of vectors or an index, not a model."""
    from distilvec.teachers.indexes.address import is_index

    return isinstance(teacher, (str, os.PathLike)) and is_index(teacher)


def _table(teacher: Any) -> VectorsTeacher:
    """Open a table of vectors or an index."""
    from distilvec.config.schema import TeacherSection
    from distilvec.pipeline.resolve import cache_root
    from distilvec.teachers.indexes.copy import KEY, local_table
    from distilvec.teachers.precomputed import VectorsTeacher

    try:
        return VectorsTeacher(local_table(TeacherSection(vectors=str(teacher)), cache_root()))
    except DistilvecError as error:
        if error.key != KEY:
            raise
        raise DistilvecError("teacher", error.problem, error.fix) from error  # no ColumnError: there is no --column


def _student(model: Any, of_mteb: bool) -> LocalTeacher | TextEncoder:
    """Open the scored model, or the file of an export; DistilvecError for such a file on MTEB."""
    from distilvec.evaluation.exported import is_exported, open_exported

    if not is_exported(model):
        return _embedder(model, "model", "student")
    if of_mteb:
        raise DistilvecError(
            "model", f"{model} can be scored on a suite, not on MTEB.", "Name a suite, or its model's folder."
        )
    return open_exported(Path(str(model)), "model")


def _embedder(model: Any, key: str, name: str) -> LocalTeacher:
    """Load a model by folder or id, or wrap one in memory."""
    from sentence_transformers import SentenceTransformer

    from distilvec.config.schema import TeacherSection
    from distilvec.teachers.model import load_teacher, wrap_model

    if isinstance(model, (str, os.PathLike)):
        return load_teacher(TeacherSection(model=str(model)), key=key)
    if isinstance(model, SentenceTransformer):
        return wrap_model(model, name)
    raise DistilvecError(key, f"expected a folder, an id or a SentenceTransformer; found {type(model).__name__}.")
