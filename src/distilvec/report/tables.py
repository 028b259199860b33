"""A comparison (compare.py) as a table: rows of text, CSV, Markdown, LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distilvec.core.escape import csv_cell, latex, markdown
from distilvec.report.plain_tables import ABSENT, to_markdown

AVERAGE = "average"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A column of figures. `scale` divides what is shown; `better` is 1 where more is better, -1 where less is, else 0."""

    title: str
    key: str
    task: str | None = None
    deviation: str | None = None
    digits: int = 2
    scale: float = 1.0
    better: int = 0

    def value(self, row: Row) -> float | None:
        """The row's figure, None where it is not known."""
        found = row.get(self.key)
        return found if self.task is None else (found or {}).get(self.task)

    def spread(self, row: Row) -> float | None:
        """The row's standard deviation over seeds, None where it is not known."""
        found = row.get(self.deviation) if self.deviation else None
        return found if self.task is None else (found or {}).get(self.task)

    def mark(self, row: Row) -> str:
        """The stars of the row's difference to the reference."""
        return str((row.get("marks") or {}).get(self.task, "")) if self.key == "mean" else ""

    def text(self, value: float) -> str:
        """A value as it is shown."""
        return f"{value / self.scale:,.{self.digits}f}"


def figures(comparison: Mapping[str, Any]) -> list[Figure]:
    """The columns of a comparison that hold at least one figure: tasks, average, retention, size, speed, cost, distance."""
    tasks = [*comparison["tasks"], AVERAGE]
    columns = [
        *(Figure(task, "mean", task, "std", better=1) for task in tasks),
        Figure("% of teacher", "retention", AVERAGE, digits=1, better=1),
        Figure("parameters (M)", "parameters", digits=1, scale=1e6, better=-1),
        Figure("texts/s", "texts_per_second", digits=0, better=1),
        Figure("minutes", "minutes", digits=1, better=-1),
        Figure("steps", "steps", digits=0),
        Figure("distance", "distance", deviation="distance_std", digits=4, better=-1),
    ]
    return [column for column in columns if any(column.value(row) is not None for row in comparison["rows"])]


def leaderboard(comparison: Mapping[str, Any]) -> list[list[str]]:
    """Rows of text, header first: mean ± standard deviation over seeds, with the marks of the differences to the reference."""
    columns = figures(comparison)
    body = [[*_head(comparison, row), *(_cell(column, row) for column in columns)] for row in comparison["rows"]]
    return [["Run", "Method", "Seeds", *(column.title for column in columns)], *body]


def to_markdown_table(comparison: Mapping[str, Any]) -> str:
    """The leaderboard as a Markdown table, with the comparison's notes below."""
    notes = "".join(f"- {markdown(note)}\n" for note in comparison["notes"])
    return to_markdown(leaderboard(comparison)) + (f"\n{notes}" if notes else "")


def flat_rows(comparison: Mapping[str, Any]) -> list[list[Any]]:
    """One row a run, header first: every figure at full precision in a column of its own; None where it is not known."""
    tasks = [*comparison["tasks"], AVERAGE] if comparison["tasks"] else []
    plain = ("parameters", "texts_per_second", "minutes", "texts", "steps", "distance", "distance_std")
    parts = (("", "mean"), (" std", "std"), (" mark", "marks"), (" % of teacher", "retention"))
    rows: list[list[Any]] = [
        ["run", "method", "seeds", "reference", *(task + ending for task in tasks for ending, _ in parts), *plain]
    ]
    for row in comparison["rows"]:
        figures = [(row.get(key) or {}).get(task) for task in tasks for _, key in parts]
        reference = int(row["run"] == comparison["reference"])
        rows.append([row["run"], row["method"], row["seeds"], reference, *figures, *(row.get(key) for key in plain)])
    return rows


def to_csv(comparison: Mapping[str, Any]) -> str:
    """The rows of `flat_rows`, one line each; empty where a figure is not known."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([csv_cell(cell) for cell in row] for row in flat_rows(comparison))
    return text.getvalue()


def to_latex(comparison: Mapping[str, Any]) -> str:
    r"""The leaderboard as a LaTeX tabular for \usepackage{booktabs}: escaped, the best figure of each column bold.

    The notes stand above it as comments. Figures that are shown alike are alike: all of them are bold.
    """
    columns, rows = figures(comparison), comparison["rows"]
    best = [_best(column, rows) for column in columns]
    lines = [r"% needs \usepackage{booktabs}", *(f"% {latex(note)}" for note in comparison["notes"])]
    lines += [rf"\begin{{tabular}}{{ll{'r' * (len(columns) + 1)}}}", r"\toprule"]
    lines += [
        " & ".join(["Run", "Method", "Seeds", *(latex(column.title) for column in columns)]) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        cells = [latex(cell) for cell in _head(comparison, row)]
        cells += [_latex_cell(column, row, top) for column, top in zip(columns, best, strict=True)]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _head(comparison: Mapping[str, Any], row: Row) -> list[str]:
    reference = " (reference)" if row["run"] == comparison["reference"] and len(comparison["rows"]) > 1 else ""
    return [row["run"] + reference, str(row["method"] or ABSENT), str(row["seeds"])]


def _cell(column: Figure, row: Row) -> str:
    value, spread = column.value(row), column.spread(row)
    if value is None:
        return ABSENT
    return column.text(value) + (f" ± {column.text(spread)}" if spread is not None else "") + column.mark(row)


def _latex_cell(column: Figure, row: Row, best: str | None) -> str:
    value, spread = column.value(row), column.spread(row)
    if value is None:
        return "--"
    shown = column.text(value)
    bold = rf"\textbf{{{shown}}}" if shown == best else shown
    return (
        bold
        + (rf" $\pm$ {column.text(spread)}" if spread is not None else "")
        + (f"$^{{{mark}}}$" if (mark := column.mark(row)) else "")
    )


def _best(column: Figure, rows: list[Row]) -> str | None:
    """The best figure of a column as it is shown; None where there is none, or only one."""
    values = [value for row in rows if (value := column.value(row)) is not None]
    return (
        column.text(max(values, key=lambda value: column.better * value)) if column.better and len(values) > 1 else None
    )
