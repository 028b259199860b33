"""The tasks' scores of one or more students beside the teacher's, as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, BY_TYPE, RETRIEVAL, averages, retention
from distilvec.evaluation.evaluator import Score
from distilvec.report.json_values import from_json

COLUMNS = ("untrained", "student", "asymmetric")


def score_table(records: list[tuple[str, Any]]) -> str:
    """Rows are tasks, columns the teacher and each student's three figures; last the averages and what is kept of the
    teacher.
    """
    teacher = scores_of(records[0][1])["teacher"]
    columns = [("teacher", teacher, teacher)]
    for prefix, record in records:
        scores = scores_of(record)
        columns += [(prefix + name, scores[name], scores["teacher"]) for name in COLUMNS]
    head = ["task", "metric", *(name for name, *_ in columns)]
    lines = []
    for row in teacher:
        values = [next(score.value for score in scores if score.task == row.task) for _, scores, _ in columns]
        lines.append([row.task, row.metric, *(f"{value:.2f}" for value in values)])
    for name, title in ((BY_TYPE, BY_TYPE), (RETRIEVAL, "retrieval"), (AVERAGE, AVERAGE)):
        if AVERAGES[name] in averages(teacher):
            means = [averages(scores)[AVERAGES[name]] for _, scores, _ in columns]
            kept = [retention(scores, theirs)[name] for _, scores, theirs in columns]
            lines.append([f"**{title}**", "", *(f"{value:.2f}" for value in means)])
            of_it = "" if name == AVERAGE else f", {title}"
            lines.append([f"**% of the teacher{of_it}**", "", *(f"{value:.1f}" for value in kept)])
    return markdown_table(head, lines, columns="ll" + "r" * len(columns))


def scores_of(record: Mapping[str, Any]) -> dict[str, list[Score]]:
    """Return the scores of a committed record by column."""
    return {side: [from_json(Score, row) for row in rows] for side, rows in record["scores"].items()}


def retained(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Each column's averages, as % of the teacher's, by column."""
    scores = scores_of(record)
    return {side: retention(rows, scores["teacher"]) for side, rows in scores.items()}


def modes_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Students by size, and what they keep of the teacher: over all tasks, on retrieval, each in both modes."""
    head = ("student", "parameters", "average, %", "average, asymmetric, %", "retrieval, %", "retrieval, asymmetric, %")
    lines = []
    for name, record in records.items():
        kept, millions = retained(record), record["student"]["parameters"] / 1e6
        cells = [f"{kept[mode][key]:.1f}" for key in (AVERAGE, RETRIEVAL) for mode in ("student", "asymmetric")]
        lines.append([name, f"{millions:.1f} M", *cells])
    return markdown_table(head, lines)


def summary_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Students by size: texts seen, and what they keep of the teacher in %."""
    head = ("student", "parameters", "texts", "average, %", "retrieval, %", "retrieval, asymmetric, %")
    lines = []
    for name, record in records.items():
        kept, millions = retained(record), record["student"]["parameters"] / 1e6
        shares = (kept["student"][AVERAGE], kept["student"][RETRIEVAL], kept["asymmetric"][RETRIEVAL])
        cells = [f"{millions:.1f} M", f"{record['training']['texts']:,}", *(f"{share:.1f}" for share in shares)]
        lines.append([name, *cells])
    return markdown_table(head, lines)


def distance_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Students by size: the distance to the teacher before and after training, and what is kept in both modes in %."""
    head = ("student", "parameters", "distance", "average, %", "average, asymmetric, %", "retrieval, asymmetric, %")
    lines = []
    for name, record in records.items():
        kept, metrics = retained(record), record["metrics"]
        shares = (kept["student"][AVERAGE], kept["asymmetric"][AVERAGE], kept["asymmetric"][RETRIEVAL])
        distance = f"{metrics['untrained_distance']:.3f} → {metrics['distance']:.3f}"
        cells = [f"{record['student']['parameters'] / 1e6:.1f} M", distance, *(f"{share:.1f}" for share in shares)]
        lines.append([name, *cells])
    return markdown_table(head, lines)
