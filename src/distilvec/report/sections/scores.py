"""Scores by task and model, as a table and as shares of the teacher's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distilvec.config.score_columns import SCORE_COLUMNS, columns_with
from distilvec.evaluation.aggregate import (
    AVERAGE,
    AVERAGES,
    BY_TYPE,
    RETRIEVAL,
    averages,
    retention,
    without_index_tasks,
)
from distilvec.evaluation.evaluator import Score
from distilvec.report.figures import DotPoint, dots_figure
from distilvec.report.scores import (
    ScoresByModel,
    complete_averages,
    models_in_order,
    score_remarks,
    score_table,
    shared,
    task_table,
)
from distilvec.report.section import Block, Figure, PageSection, folded, make_section, notes
from distilvec.report.tables import make_table, number_cell, pivot
from distilvec.report.values import Changes, Report

TESTED = (
    "Changes are in points against the teacher, with the 95% interval over the test rows, pair by pair; "
    "* p < 0.05, ** p < 0.01, *** p < 0.001."
)


@dataclass(frozen=True)
class Retained:
    """A model's share of the teacher's score on a task in percent, with its interval; without a teacher the score."""

    model: str
    task: str
    value: float
    low: float | None = None
    high: float | None = None


def section(report: Report) -> PageSection | None:
    """Return a labelled task's metrics, the table of scores, their figure, and every metric."""
    scores = models_in_order(report.scores)
    entries = []
    for model, column in scores.items():
        for score in column:
            for metric, value in score.metrics.items():
                entries.append(((score.task, metric.replace("_", " "), score.rows), model, number_cell(value)))
    every_metric = None
    if any(len(score.metrics) > 1 for column in scores.values() for score in column):
        every_metric = pivot("metric-table", "Every metric, times 100", ["Task", "Metric", "rows"], entries)
    tasks = {score.task for column in scores.values() for score in column}
    remarks = score_remarks(scores)
    supervised = None if report.record is None else report.record.supervised
    return make_section(
        "Scores",
        task_table(supervised),
        score_table(scores, report.intervals),
        # a single task is in the table, and is its own average
        shares_figure(retained(scores, report.intervals), "teacher" in scores) if len(tasks) > 1 else None,
        notes(
            TESTED if scores and any(report.intervals.values()) else "",
            *(column.note for name, column in SCORE_COLUMNS.items() if name in scores),
            folded(f"Remarks on tasks ({len(remarks)})", Block("list", remarks)),
            folded("Every metric", every_metric),
        ),
    )


def retained(scores: ScoresByModel, intervals: Mapping[str, Changes]) -> list[Retained]:
    """Return every model's percent of the teacher's score by task, its averages last, for the figure.

    The table has its own (report/scores.py).

    The intervals are those of the differences from the teacher. Without a teacher the values are the scores. Tasks on
    which the teacher's score is not above 0 are left out.
    """
    teacher = scores.get("teacher")
    rows = []
    for model, column in scores.items():
        if model == "teacher":
            continue
        if teacher is None:
            has_averages = bool(complete_averages(scores)[model])
            for task, value in _rows_with_averages(column).items():
                if has_averages or task not in AVERAGES:
                    rows.append(Retained(model, task, value))
            continue
        of_model, of_teacher = shared(column, teacher)
        has_all = len(without_index_tasks(of_teacher)) == len(without_index_tasks(teacher))
        wholes = _rows_with_averages(of_teacher)
        for task, value in retention(of_model, of_teacher).items():
            if task in AVERAGES and not has_all:  # an average over fewer tasks would be compared with the others
                continue
            change = intervals.get(model, {}).get(task)
            if change is None:
                rows.append(Retained(model, task, value))
            else:
                low, high = (100 * (1 + bound / wholes[task]) for bound in (change.low, change.high))
                rows.append(Retained(model, task, value, low, high))
    return rows


def _rows_with_averages(column: Sequence[Score]) -> dict[str, float]:
    """Return scores by task, then the averages by their names; tasks of an index itself count in none."""
    values = {score.task: score.value for score in column}
    means = averages(without_index_tasks(column))
    return values | {name: means[key] for name, key in AVERAGES.items() if key in means}


def shares_figure(rows: Sequence[Retained], teacher: bool) -> Figure:
    """Return the shares by task, the averages last; the untrained student is in the data only."""
    unit, title, level = "score (x 100)", "Scores by task", None
    if teacher:
        unit, title, level = "% of the teacher's score", "Share of the teacher's scores", 100.0
    columns = {"Model": "model", "Task": "task", unit: ("value", 1), "low": ("low", 1), "high": ("high", 1)}
    data = make_table("data-scores", f"{unit}, with 95% intervals", rows, columns)
    last = [BY_TYPE, RETRIEVAL, AVERAGE]
    trained = [row for row in rows if row.model not in columns_with("untrained")]
    trained.sort(key=lambda row: last.index(row.task) + 1 if row.task in last else 0)
    points = [DotPoint("", row.task, row.model, row.value, row.low, row.high) for row in trained]
    return dots_figure("scores", title, points, unit, data, level)
