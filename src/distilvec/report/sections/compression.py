"""Scores with fewer dimensions and fewer bits (REDACT, section 4.1, figure 5)."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from distilvec.report.figures import lines_figure
from distilvec.report.section import Section, get, make_section
from distilvec.report.tables import Part, number_cell, pivot

AVERAGE, NAME, TITLE = "average", "compression", "Fewer dimensions, fewer bits"
BITS = {"float32": 32, "float16": 16, "int8": 8, "binary": 1, "binary_rescored": 1}  # of a number of a stored vector
NOTE = (
    "Precisions are those of the stored vectors; the model's weights stay as they are (int8 weights: distilvec export)."
)


def section(report: Part) -> Section | None:
    """Return the figure of the mean over tasks, with a table of the mean and of each task."""
    rows = get(report, "compression.rows") or []
    means = mean_rows(rows)
    data = pivot("data-compression", "Scores by dimensions kept, times 100", ["Task", "Model", "Precision"], (
        ((row["task"], row["column"], vectors(row["precision"])), f"{row['width']:,}", number_cell(row["value"], 1))
        for row in [*means, *sorted(rows, key=itemgetter("width"))]
    ))  # fmt: skip
    points = [(row["column"], vectors(row["precision"]), row["width"], row["value"]) for row in means]
    figure = lines_figure(NAME, TITLE, points, "dimensions kept", data, y="mean score (x 100)", log="x")
    return make_section(TITLE, NOTE if rows else "", figure)


def vectors(precision: str) -> str:
    """Return the name of a precision: "int8 vectors"."""
    name, _, more = precision.partition("_")
    return f"{name} vectors{', ' if more else ''}{more}"


def mean_rows(rows: list[Part]) -> list[dict[str, Any]]:
    """Return the means over the tasks that were scored with every model, precision and number of dimensions.

    Rescoring is for retrieval only; it has a mean only where all of these tasks have it.
    """
    cells: dict[str, set[tuple[Any, ...]]] = {}
    for row in rows:
        if row["precision"] != "binary_rescored":
            cells.setdefault(row["task"], set()).add((row["column"], row["precision"], row["width"]))
    most = max(map(len, cells.values()), default=0)
    complete = {task for task, found in cells.items() if len(found) == most}
    values: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["task"] in complete:
            values.setdefault((row["column"], row["precision"], row["width"]), []).append(row["value"])
    return [
        {"task": AVERAGE, "column": model, "precision": precision, "width": width, "value": sum(found) / len(found)}
        for (model, precision, width), found in sorted(values.items(), key=lambda item: item[0][2])
        if len(found) == len(complete)
    ]
