"""Scores by task and model, as a table and as shares of the teacher's."""

from __future__ import annotations

from typing import Any

from distilvec.config.schema import START_COLUMNS
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, BY_TYPE, RETRIEVAL, averages, retention
from distilvec.report.figures import dots_figure
from distilvec.report.scores import Scores, read_scores, score_table, shared, task_table
from distilvec.report.section import Block, Figure, Section, folded, get, make_section, notes
from distilvec.report.tables import Part, make_table, number_cell, pivot

TESTED = (
    "Changes are in points against the teacher, with the 95 % interval of a paired bootstrap over the test rows; "
    "* p < 0.05, ** p < 0.01, *** p < 0.001."
)
NOTES = {
    "projected": "Projected: the student behind the linear map into the teacher's space that was trained with it.",
    "asymmetric": "Asymmetric: in retrieval, queries embedded by the student, documents by the teacher; on other tasks "
    "the student's own score.",
    "untrained_asymmetric": "Untrained, asymmetric: the same with the student before its training.",
    "mixed": "Mixed: first sentences, queries and test rows by the student; second sentences, documents and training "
    "rows by the teacher.",
}


def section(report: Part) -> Section | None:
    """Return a labelled task's metrics, the table of scores, their figure, and every metric."""
    scores, intervals = read_scores(get(report, "scores")), get(report, "intervals")
    every = [(name, score) for name, found in scores.items() for score in found]
    remarks = dict.fromkeys(f"{score.task}, {name}: {text}" for name, score in every for text in score.warnings)
    metrics = pivot("metric-table", "Every metric, times 100", ["Task", "Metric", "rows"], (
        ((score.task, metric.replace("_", " "), score.rows), name, number_cell(value))
        for name, score in every for metric, value in score.metrics.items()
    ))  # fmt: skip
    return make_section(
        "Scores",
        task_table(get(report, "record.supervised")),
        score_table(scores, intervals),
        retention_figure(retained(scores, intervals), "teacher" in scores),
        notes(
            TESTED if scores and any(intervals.values()) else "",
            *(note for name, note in NOTES.items() if name in scores),
            folded(f"Remarks on tasks ({len(remarks)})", Block("list", list(remarks))),
            folded("Every metric", metrics if any(len(score.metrics) > 1 for _, score in every) else None),
        ),
    )


def retained(scores: Scores, intervals: Part) -> list[dict[str, Any]]:
    """Return rows {model, task, value, low, high} in percent of the teacher's score, every model's averages last.

    `low` and `high` come from the intervals of the differences from the teacher. Without a teacher the values are the
    scores. Tasks on which the teacher's score is not above 0 are left out.
    """
    columns, rows = read_scores(scores), list[dict[str, Any]]()
    teacher = columns.pop("teacher", None)
    for name, found in columns.items():
        ours, theirs = shared(found, found if teacher is None else teacher)
        known = averages(theirs)
        wholes = {score.task: score.value for score in theirs}
        wholes |= {title: known[key] for title, key in AVERAGES.items() if key in known}
        for task, value in (wholes if teacher is None else retention(ours, theirs)).items():
            tested = None if teacher is None else (intervals.get(name) or {}).get(task)
            low, high = (
                None if change is None else 100 * (1 + change / wholes[task]) for change in (tested or (None, None))[:2]
            )
            rows.append({"model": name, "task": task, "value": value, "low": low, "high": high})
    return rows


def retention_figure(rows: list[dict[str, Any]], teacher: bool) -> Figure:
    """Return the shares by task, the averages last; the untrained student is in the data only."""
    unit, title = (
        ("% of the teacher's score", "Share of the teacher's scores")
        if teacher
        else ("score (x 100)", "Scores by task")
    )
    columns = {"Model": "model", "Task": "task", unit: ("value", 1), "low": ("low", 1), "high": ("high", 1)}
    data = make_table("data-scores", f"{unit}, with 95 % intervals", rows, columns)
    order = {name: number for number, name in enumerate((BY_TYPE, RETRIEVAL, AVERAGE), 1)}
    trained = [row for row in rows if row["model"] not in START_COLUMNS]
    shown = sorted(trained, key=lambda row: order.get(row["task"], 0))
    points = [("", row["task"], row["model"], row["value"], row["low"], row["high"]) for row in shown]
    return dots_figure("scores", title, points, unit, data, 100.0 if teacher else None)
