"""Scores by model as one table for page, model card, terminal and notebooks, and the verdict made of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from distilvec.config.score_columns import SCORE_COLUMNS
from distilvec.core.escape import one_line
from distilvec.evaluation.aggregate import (
    AVERAGE,
    AVERAGES,
    BY_TYPE,
    RETRIEVAL,
    averages,
    retention,
    type_averages,
    without_index_tasks,
)
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.significance import significance_mark
from distilvec.evaluation.tasks import TaskFailure
from distilvec.report.tables import (
    Cell,
    Table,
    html_list,
    make_table,
    number,
    number_cell,
    to_frame,
    to_html,
    to_text,
    words,
)
from distilvec.report.values import Changes

T = TypeVar("T")

ScoresByModel = Mapping[str, Sequence[Score]]


@dataclass(frozen=True, repr=False)
class Scores(Mapping[str, Sequence[Score]]):
    """Scores by model (teacher, student, asymmetric), and the tasks that could not be scored, or only in part.

    `also` names further metrics that tables show, by type of task.
    """

    columns: Mapping[str, Sequence[Score]]
    problems: Sequence[TaskFailure] = ()
    also: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __getitem__(self, model: str) -> Sequence[Score]:
        return self.columns[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def averages(self) -> dict[str, dict[str, Any]]:
        """Return the averages by model: all, by_type, retrieval, in and out of domain, and the mean of each type.

        {} of a model that lacks a score on some task.
        """
        by_model: dict[str, dict[str, Any]] = {}
        for name, means in complete_averages(self.columns).items():
            by_model[name] = {**means, "types": type_averages(self.columns[name])} if means else {}
        return by_model

    def __repr__(self) -> str:
        table = to_text(score_table(self.columns, also=self.also)) if self._has_scores else "no scores"
        return "\n".join([table, *self._note_lines()])

    def _repr_html_(self) -> str:
        table = to_html(score_table(self.columns, also=self.also)) if self._has_scores else "<p>no scores</p>"
        return f"{table}\n{html_list(self._note_lines())}"

    @property
    def _has_scores(self) -> bool:
        return any(self.columns.values())

    def _note_lines(self) -> list[str]:
        remarks = [f"note: {remark}" for remark in score_remarks(self.columns)]
        return [*remarks, *(f"problem: {problem_text(problem)}" for problem in self.problems)]

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame: task, type, metric and one column for each model, in points."""
        return score_frame(self.columns)


def models_in_order(by_model: Mapping[str, T]) -> dict[str, T]:
    """Return a mapping by model in the usual order of models, others last; empty values are left out."""
    names = dict.fromkeys([*SCORE_COLUMNS, *by_model])
    return {name: by_model[name] for name in names if by_model.get(name)}


def shared(first: Sequence[Score], second: Sequence[Score]) -> tuple[list[Score], list[Score]]:
    """Return the scores of two models on the tasks and metrics that both have."""
    both = {(score.task, score.metric) for score in first} & {(score.task, score.metric) for score in second}
    return (
        [score for score in first if (score.task, score.metric) in both],
        [score for score in second if (score.task, score.metric) in both],
    )


# -- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskScore:
    """One metric of one model on one task, times 100; the main metric counts in averages and is tested.

    interval: at 95%, over rows; None where it was not computed
    """

    model: str
    task: str
    metric: str
    value: float
    is_main: bool
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class AverageRow:
    """An average by model; None where a model lacks a task.

    shares: in percent of the teacher's, over the teacher's tasks; None where a model lacks one of them
    name: in the changes against the teacher; None for an average that is not tested
    """

    label: str
    name: str | None
    values: dict[str, float | None]
    shares: dict[str, float | None]


def task_scores(scores: ScoresByModel, also: Mapping[str, Sequence[str]] | None = None) -> list[TaskScore]:
    """Return every main metric as a row, and the metrics that `also` names by type of task.

    Rows of a task stand together, its main metrics first.
    """
    main = [
        TaskScore(model, score.task, score.metric, score.value, is_main=True, interval=score.interval)
        for model, column in scores.items()
        for score in column
    ]
    further = []
    for model, column in scores.items():
        for score in column:
            for metric in (also or {}).get(score.type, ()):
                if metric in score.metrics and metric != score.metric:
                    further.append(TaskScore(model, score.task, metric, score.metrics[metric], is_main=False))
    tasks = list(dict.fromkeys(row.task for row in main))
    return sorted([*main, *further], key=lambda row: (tasks.index(row.task), not row.is_main))


def score_table(
    scores: ScoresByModel,
    intervals: Mapping[str, Changes] | None = None,
    also: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Return one row per task and metric, one column per model, then averages and their share of the teacher's.

    A model without a score on some task has no averages, and tasks that are made of an index itself count in none.
    `also` names further metrics by type of task, which get rows of their own and count in no average. With `intervals`,
    even empty ones, columns with a change (`ScoreColumn.has_change`) get a column beside them with the change against
    the teacher in points, its stars and its interval.
    """
    scores = models_in_order(scores)
    compared: Sequence[str] = ()
    if intervals is not None and "teacher" in scores:
        compared = [name for name, column in SCORE_COLUMNS.items() if column.has_change and name in scores]

    rows_of: dict[tuple[str, str], dict[str, TaskScore]] = {}
    for row in task_scores(scores, also):
        rows_of.setdefault((row.task, row.metric), {})[row.model] = row

    body = []
    for (task, metric), by_model in rows_of.items():
        values = {model: by_model[model].value if model in by_model else None for model in scores}
        notes = {model: _interval_bounds(row.interval) for model, row in by_model.items() if row.interval is not None}
        interval_name = task if any(row.is_main for row in by_model.values()) else None
        body.append(_score_row(task, metric, values, compared, intervals or {}, interval_name, notes=notes))

    foot = []
    for mean in average_rows(scores):
        foot.append(_score_row(mean.label, "", mean.values, compared, intervals or {}, mean.name))
        if "teacher" in scores:
            foot.append(_score_row(_share_label(mean), "", mean.shares, compared, {}, None, digits=1))

    header = ["Task", "Metric"]
    for model in scores:
        header.append(model)
        if model in compared:
            header.append(f"{model}, change")
    return Table("score-table", "Scores, times 100", header, body, foot, words=2)


def _score_row(
    label: str,
    metric: str,
    values: Mapping[str, float | None],
    compared: Sequence[str],
    intervals: Mapping[str, Changes],
    interval_name: str | None,
    digits: int = 2,
    notes: Mapping[str, str] | None = None,
) -> list[Cell]:
    """Return a row of the table; `interval_name` is its name in the intervals, None where changes are not shown.

    `notes` are texts after the values of some models.
    """
    cells = [*words(label), Cell(metric.replace("_", " "))]
    for model, value in values.items():
        cells.append(replace(number_cell(value, digits), note=(notes or {}).get(model, "")))
        if model in compared:
            if interval_name is None:
                cells.append(Cell(""))
                continue
            teacher = values["teacher"]
            change = None if value is None or teacher is None else value - teacher
            interval = intervals.get(model, {}).get(interval_name)
            if interval is None:
                cells.append(number_cell(change, sign=True))
            else:
                cells.append(marked_change(change, (interval.low, interval.high), significance_mark(interval.p)))
    return cells


def average_rows(scores: ScoresByModel) -> list[AverageRow]:
    """Return the averages in and out of domain, by type, of retrieval, and over all tasks.

    A model without a score on every task has no average: it would be compared with averages over other tasks.
    """
    counted = {model: without_index_tasks(column) for model, column in scores.items()}
    tasks = {(score.task, score.metric) for column in counted.values() for score in column}
    rows = []
    for domain, label in (("in", "in domain"), ("out", "out of domain")):
        of_domain = {model: [score for score in column if score.domain == domain] for model, column in counted.items()}
        most = max((len(column) for column in of_domain.values()), default=0)
        rows.append(_average_row(f"{AVERAGE} {label}", AVERAGE, of_domain, most, is_tested=False))
    for name, label in ((BY_TYPE, BY_TYPE), (RETRIEVAL, "retrieval"), (AVERAGE, AVERAGE)):
        rows.append(_average_row(label, name, counted, len(tasks), is_tested=True))
    return [row for row in rows if row is not None]


def complete_averages(scores: ScoresByModel) -> dict[str, dict[str, float]]:
    """Return the averages by model, of models with a score on every task that some model has; {} for the others.

    An average over fewer tasks would be compared with the others. Tasks that are made of an index itself do not count.
    """
    counted = {model: without_index_tasks(column) for model, column in scores.items()}
    tasks = {(score.task, score.metric) for column in counted.values() for score in column}
    by_model = {}
    for model, column in counted.items():
        by_model[model] = averages(column) if len(column) == len(tasks) else {}
    return by_model


def _average_row(label: str, name: str, scores: ScoresByModel, tasks: int, is_tested: bool) -> AverageRow | None:
    """Return an average of models with `tasks` scores; None where no model has this average at all."""
    means = {model: averages(column).get(AVERAGES[name]) for model, column in scores.items()}
    if all(mean is None for mean in means.values()):
        return None
    values = {model: mean if len(scores[model]) == tasks else None for model, mean in means.items()}
    teacher = scores.get("teacher", ())
    averaged = teacher
    if name == RETRIEVAL:
        averaged = [score for score in teacher if score.type == "retrieval"]
    shares = {}
    for model, column in scores.items():
        has_all = len(shared(column, averaged)[0]) == len(averaged)
        shares[model] = retention(column, teacher).get(name) if has_all else None
    return AverageRow(label, name if is_tested else None, values, shares)


def _share_label(mean: AverageRow) -> str:
    if mean.name is None:
        return f"% of teacher {mean.label.removeprefix(AVERAGE).strip()}"
    if mean.name == AVERAGE:
        return "% of teacher"
    return f"% of teacher, {mean.name.removeprefix(AVERAGE).strip()}"


def left_out_text(averaged: Collection[str], scores: ScoresByModel) -> str:
    """Say which tasks an average over `averaged` lacks of those in the student's average score; "" if it has all."""
    tasks = list(dict.fromkeys(score.task for score in without_index_tasks(scores.get("student", ()))))
    missing = [task for task in tasks if task not in averaged]
    if not averaged or not missing:
        return ""
    return f"Averages are over {len(tasks) - len(missing)} of {len(tasks)} tasks, without {', '.join(missing)}."


def score_frame(scores: ScoresByModel) -> Any:
    """Return a pandas DataFrame in points: task, type, metric, one column per model; one row per task and metric."""
    rows: dict[tuple[str, str, str], dict[str, float]] = {}
    for model, column in scores.items():
        for score in column:
            rows.setdefault((score.task, score.type, score.metric), {})[model] = score.value
    lines = []
    for key, by_model in rows.items():
        lines.append([*key, *(by_model.get(model) for model in scores)])
    return to_frame(["task", "type", "metric", *scores], lines)


def task_table(supervised: LabelledScores | None) -> Table:
    """Return the metrics on a labelled task's test split: one row per metric, one column per model."""
    if supervised is None:
        return Table("task-table", "", [], [])
    metrics = dict.fromkeys(metric for values in supervised.scores.values() for metric in values)
    title = f"{supervised.task}: {supervised.rows:,} test examples, times 100"
    records = [{"name": model, **values} for model, values in supervised.scores.items()]
    columns = {metric.replace("_", " "): (metric, 2, 100.0) for metric in metrics}
    return make_table("task-table", title, records, {"Metric": "name", **columns}, across=True)


def score_remarks(scores: ScoresByModel) -> list[str]:
    """Return what a reader of the scores should know, such as texts that were left out, by task and models."""
    models_of: dict[tuple[str, str], list[str]] = {}
    for model, column in scores.items():
        for score in column:
            for warning in score.warnings:
                models_of.setdefault((score.task, warning), []).append(model)
    return [one_line(f"{task}, {', '.join(models)}: {warning}") for (task, warning), models in models_of.items()]


def problem_text(problem: TaskFailure) -> str:
    """Return a problem as text: its task, the model where it concerns one, and its message."""
    model = f" ({one_line(problem.column)})" if problem.column else ""
    return f"task '{one_line(problem.task)}'{model}: {problem.text}"


def marked_change(change: float | None, bounds: tuple[float, float] | None, stars: str) -> Cell:
    """Return a change in points with its stars and the bounds of its interval."""
    if change is None or bounds is None:
        return number_cell(change, sign=True)
    kind = "same"
    if stars:
        kind = "gain" if change > 0 else "loss"
    return Cell(number(change, sign=True) + stars, change, _interval_bounds(bounds, sign=True), kind)


def _interval_bounds(bounds: tuple[float, float], sign: bool = False) -> str:
    low, high = (number(bound, sign=sign) for bound in bounds)
    return f"[{low}, {high}]"
