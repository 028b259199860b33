"""A comparison of runs (pipeline/compare.py): leaderboard, differences, figures, page, a flat table for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import PureWindowsPath
from typing import Any

from distilvec.core.escape import csv_cell, one_line
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, RETRIEVAL
from distilvec.report.figures import lines_figure
from distilvec.report.html import Draw, render
from distilvec.report.scores import change_cell
from distilvec.report.section import Block, Figure, make_section
from distilvec.report.tables import (
    Cell,
    Part,
    Table,
    html_list,
    make_table,
    number,
    number_cell,
    to_frame,
    to_html,
    to_text,
    words,
)  # fmt: skip

COSTS = {  # title: key, digits, factor, 1 where more is better, -1 where less is better
    "parameters (M)": ("parameters", 1, 1e-6, -1), "MB": ("megabytes", 1, 1.0, -1),
    "ms a query": ("milliseconds", 2, 1.0, -1), "texts/s": ("texts_per_second", 0, 1.0, 1),
    "minutes": ("minutes", 1, 1.0, -1), "steps": ("steps", 0, 1.0, 0), "distance": ("distance", 4, 1.0, -1),
}  # fmt: skip
MOST_DIGITS = 4  # of a small cost
AXES = {  # of a figure: factor, label, 1 where more is better
    "parameters": (1e-6, "parameters, millions", -1), "megabytes": (1.0, "MB of fp32 weights", -1),
    "milliseconds": (1.0, "milliseconds, one query on the CPU", -1), "texts_per_second": (1.0, "texts per second", 1),
}  # fmt: skip


def leaderboard(comparison: Part) -> Table:
    """Return one row per run: mean, stars against the reference, ± standard deviation over seeds.

    A score is bold if its lead over every other run is outside the interval, a cost if it is the best.
    """
    rows, reference = comparison["rows"], comparison.get("reference") if len(comparison["rows"]) > 1 else None
    names = (row["run"] + (" (reference)" if row["run"] == reference else "") for row in rows)
    columns = {"Run": words(*names), "Method": words(*(_method(row) for row in rows))}
    columns["Seeds"] = [number_cell(row.get("seeds"), 0) for row in rows]
    for task in (*(comparison.get("tasks") or ()), *_averages(comparison)):
        means, deviations, stars = ([_at(row, key, task) for row in rows] for key in ("mean", "std", "marks"))
        columns[task] = _column(means, deviations, stars, bold=_winners(comparison, task))
    for key, mode in (("retention", ""), ("asymmetric", ", asymmetric")):
        for task, title in ((AVERAGE, "% of teacher"), (RETRIEVAL, "retrieval, %")):
            bold = [] if mode else _winners(comparison, task)
            columns[title + mode] = _column([_at(row, key, task) for row in rows], digits=1, bold=bold)
    for title, (key, digits, factor, better) in COSTS.items():
        values = [None if row.get(key) is None else factor * row[key] for row in rows]
        deviations = [row.get(f"{key}_std") for row in rows]
        columns[title] = _column(values, deviations, digits=_digits(values, digits), bold=_best(values, better))
    found = {title: cells for title, cells in columns.items() if cells}
    body = list(zip(*found.values(), strict=True))
    return Table("leaderboard", "Runs, best average first", list(found), body, words=2)


def differences_table(comparison: Part) -> Table:
    """Return the differences from the reference in points, with intervals and p-values."""
    rows = []
    for row in comparison.get("differences") or ():
        change = change_cell(row["difference"], row.get("low"), row.get("high"), row.get("mark") or "")
        rows.append([*words(row["a"], row["b"], row["task"]), change, number_cell(row.get("p"), 3)])
    caption = "Differences, in points, with 95 % intervals; p by paired bootstrap"
    return Table("difference-table", caption, ["Run", "against", "Task", "difference", "p (Holm)"], rows, words=3)


def render_comparison(comparison: Part, draw: Draw) -> str:
    """Return the page of a comparison of runs (`rows`, `tasks`, `reference`, `differences`, `notes`)."""
    count, tasks = len(comparison["rows"]), len(comparison.get("tasks") or ())
    reference = f"reference: {comparison['reference']}" if comparison.get("reference") and count > 1 else ""
    size = "megabytes" if all(row.get("megabytes") for row in comparison["rows"]) else "parameters"
    axes = (size, "milliseconds", "texts_per_second")
    sections = {
        "runs": make_section("Leaderboard", leaderboard(comparison)),
        "figures": make_section("Figures", *(retention_figure(comparison, key) for key in axes)),
        "differences": make_section("Differences", differences_table(comparison)),
        "notes": make_section("Notes", Block("list", comparison.get("notes"))),
    }
    origin = [f"tasks: {tasks}" if tasks else "", reference]
    return render(f"Comparison of {count} runs", origin, {"text": comparison_verdict(comparison)}, sections, draw)


def comparison_verdict(comparison: Part) -> str:
    """Say which run leads on average, or that none does: inside the interval nobody is named a winner."""
    lead = (comparison.get("leads") or {}).get(AVERAGE)
    if not lead:
        return ""
    points = f"{number(lead['difference'], 1)} points"
    if lead["low"] is None:
        return f"No winner yet: {lead['run']} leads {lead['over']} by {points}, which cannot be tested."
    points += f" [{number(lead['low'], 1)}, {number(lead['high'], 1)}]"
    if not lead["clear"]:
        return f"No winner yet: {lead['run']} leads {lead['over']} by {points}."
    if len(comparison["rows"]) == 2:
        return f"{lead['run']} leads {lead['over']} by {points}."
    return f"{lead['run']} leads every other run; the next one, {lead['over']}, by {points}."


def comparison_text(comparison: Part) -> str:
    """Return leaderboard, differences, verdict and notes for a terminal."""
    differences = differences_table(comparison)
    parts = ["", differences.caption, to_text(differences)] if differences.rows else []
    if verdict := comparison_verdict(comparison):
        parts += ["", one_line(verdict)]
    return "\n".join(
        [to_text(leaderboard(comparison)), *parts, *(f"note: {one_line(note)}" for note in comparison["notes"])]
    )


def comparison_html(comparison: Part) -> str:
    """Return the parts of `comparison_text` as HTML."""
    found = [table for table in (leaderboard(comparison), differences_table(comparison)) if table.rows]
    verdict = comparison_verdict(comparison)
    return "\n".join([*map(to_html, found), html_list([*([verdict] if verdict else []), *comparison["notes"]])])


def comparison_frame(comparison: Part) -> Any:
    """Return a pandas DataFrame with one row per run: the columns of the CSV file, `reference` as True or False."""
    header, *rows = flat_rows(comparison)
    return to_frame(header, rows).astype({"reference": bool})


def comparison_csv(comparison: Part) -> str:
    """Return the rows of `flat_rows` as CSV; empty where a number is unknown."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([csv_cell(cell) for cell in row] for row in flat_rows(comparison))
    return text.getvalue()


def flat_rows(comparison: Part) -> list[list[Any]]:
    """Return one row per run, header first: every number at full precision in its own column; None where unknown."""
    tasks = [*comparison["tasks"], *_averages(comparison)] if comparison["tasks"] else []
    plain = (
        "parameters",
        "megabytes",
        "milliseconds",
        "texts_per_second",
        "minutes",
        "texts",
        "steps",
        "distance",
        "distance_std",
    )
    parts = {"": "mean", "std": "std", "mark": "marks", "% of teacher": "retention"}
    header = [
        "run",
        "method",
        "seeds",
        "reference",
        *(f"{task} {part}".rstrip() for task in tasks for part in parts),
        *plain,
    ]
    return [header] + [
        [row["run"], _method(row), row["seeds"], int(row["run"] == comparison["reference"]),
         *(_at(row, key, task) for task in tasks for key in parts.values()), *(row.get(key) for key in plain)]
        for row in comparison["rows"]
    ]  # fmt: skip


def retention_figure(comparison: Part, against: str) -> Figure:
    """Return the retention of each run against its size or speed, one of AXES (REDACT, figure 1)."""
    rows = [row for row in comparison["rows"] if _at(row, "retention") is not None and (row.get(against) or 0) > 0]
    factor, label, way = AXES[against]
    points = [("", row["run"], factor * row[against], _at(row, "retention")) for row in rows]
    front = pareto([point[2:] for point in points], way)
    records = [{"run": p[1], "x": p[2], "kept": p[3], "front": "yes" if p[2:] in front else "no"} for p in points]
    columns = {"Run": "run", "On the Pareto front": "front", "% of teacher": ("kept", 2), label: ("x", 2)}
    data = make_table(f"data-{against}", f"% of the teacher's average and {label}", records, columns)
    look = {
        "y": "% of the teacher's average",
        "log": "x",
        "dots": [point[1] for point in points],
        "guide": ("Pareto front", front),
        "level": ("teacher", 100.0),
    }
    return lines_figure(against, f"Retention against {label}", points, label, data, **look)


def pareto(points: Sequence[tuple[float, float]], way: int) -> list[tuple[float, float]]:
    """Return the points (x, y) that no other one beats in both; y is better upwards, x in the direction of `way`."""
    front = list[tuple[float, float]]()
    for x, y in sorted(set(points), key=lambda point: (-way * point[0], -point[1])):
        front += [(x, y)] if not front or y > front[-1][1] else []
    return sorted(front)


def _column(
    values: Any, deviations: Any = (), stars: Any = (), digits: int = 2, bold: Sequence[bool] = ()
) -> list[Cell]:
    """Cells of a column with deviations and stars; [] where no value is known. `bold`: of each row, none by default."""
    cells = []
    for place, value in enumerate(values):
        deviation, star = ((found[place] if found else None) for found in (deviations, stars))
        note = "" if deviation is None else f"± {number(deviation, digits)}"
        shown = number_cell(value, digits)
        kind = "best" if bold and bold[place] else ""
        cells.append(Cell(shown.text + (star or ""), shown.value, note, kind))
    return cells if any(value is not None for value in values) else []


def _winners(comparison: Part, task: str) -> list[bool]:
    """Of each row, whether its lead on a task over every other row is outside the interval."""
    lead = (comparison.get("leads") or {}).get(task) or {}
    return [bool(lead.get("clear")) and row["run"] == lead["run"] for row in comparison["rows"]]


def _digits(values: Sequence[float | None], digits: int) -> int:
    """Return how many digits to show: enough that a value above 0 does not look like 0."""
    smallest = min((value for value in values if value), default=None)
    while smallest is not None and digits < MOST_DIGITS and round(smallest, digits) == 0:
        digits += 1
    return digits


def _best(values: Sequence[float | None], better: int) -> list[bool]:
    """Of each row, whether its cost is the best; none where all are the same, or nothing makes a cost better."""
    known = {value for value in values if value is not None}
    if not better or len(known) < 2:
        return []
    best = max(known) if better > 0 else min(known)
    return [value == best for value in values]


def _method(row: Part) -> str | None:
    """The method's name; of a file of one's own the file's name, not the folders of this machine."""
    name = row.get("method")
    return PureWindowsPath(name).name if name and name.endswith(".py") else name


def _averages(comparison: Part) -> list[str]:
    """The averages that some row has; the plain one always."""
    return [name for name in AVERAGES if name == AVERAGE or any(_at(row, "mean", name) for row in comparison["rows"])]


def _at(row: Part, key: str, task: str = AVERAGE) -> Any:
    """Return a row's value for a task."""
    return (row.get(key) or {}).get(task)
