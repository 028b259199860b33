"""Scores with fewer dimensions and fewer bits (REDACT, section 4.1, figure 5)."""

from __future__ import annotations

from collections.abc import Sequence

from distilvec.evaluation.compression import CompressionScore
from distilvec.evaluation.tasks import OF_AN_INDEX
from distilvec.report.figures import LineLook, LinePoint, lines_figure
from distilvec.report.scores import left_out_text
from distilvec.report.section import PageSection, make_section
from distilvec.report.tables import number_cell, pivot
from distilvec.report.values import Report

AVERAGE, NAME, TITLE = "average", "compression", "Fewer dimensions, fewer bits"
BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1, "binary_rescored": 1}  # of a number of a stored vector
Cell = tuple[str, str, int]  # model, precision, dimensions
NOTE = (
    "Precisions are those of the stored vectors; the model's weights stay as they are (int8 weights: distilvec export)."
)


def section(report: Report) -> PageSection | None:
    """Return the figure of the mean over tasks, with a table of the mean and of each task."""
    if report.compression is None or not report.compression.rows:
        return None
    rows = sorted(report.compression.rows, key=lambda row: row.width)
    means = mean_rows(report.compression.rows)
    entries = []
    for row in [*means, *rows]:
        key = (row.task, row.column, vectors(row.precision))
        entries.append((key, f"{row.width:,}", number_cell(row.value, 1)))
    title = "Scores by dimensions kept, times 100"
    data = pivot("data-compression", title, ["Task", "Model", "Precision"], entries)
    note = f"{NOTE} {left_out_text(averaged_tasks(rows), report.scores)}".rstrip()
    if not means:
        return make_section(TITLE, note, data)
    points = [LinePoint(row.column, row.precision.replace("_", ", "), row.width, row.value) for row in means]
    figure = lines_figure(NAME, TITLE, points, "dimensions kept", data, LineLook(y="mean score (x 100)", log="x"))
    return make_section(TITLE, note, figure)


def vectors(precision: str) -> str:
    """Return the name of a precision: "int8 vectors"."""
    name, _, more = precision.partition("_")
    return f"{name} vectors{', ' if more else ''}{more}"


def averaged_tasks(rows: Sequence[CompressionScore]) -> list[str]:
    """Return the tasks that were scored with every model, precision and number of dimensions.

    Rescoring is for retrieval only. Tasks that are made of an index itself do not count.
    """
    cells: dict[str, set[Cell]] = {}
    for row in rows:
        if row.precision != "binary_rescored" and row.task not in OF_AN_INDEX:
            cells.setdefault(row.task, set()).add((row.column, row.precision, row.width))
    most = max(map(len, cells.values()), default=0)
    return [task for task, of_task in cells.items() if len(of_task) == most]


def mean_rows(rows: Sequence[CompressionScore]) -> list[CompressionScore]:
    """Return the means over `averaged_tasks`; one of rescored vectors only where all of these tasks have it."""
    complete = averaged_tasks(rows)
    values: dict[Cell, list[float]] = {}
    for row in rows:
        if row.task in complete:
            values.setdefault((row.column, row.precision, row.width), []).append(row.value)
    means = []
    for (model, precision, width), of_cell in values.items():
        if len(of_cell) == len(complete):
            means.append(CompressionScore(AVERAGE, model, precision, width, sum(of_cell) / len(of_cell)))
    return sorted(means, key=lambda row: row.width)
