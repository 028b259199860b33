"""Results as a Python prompt and a notebook show them: plain text, small HTML tables, pandas frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from distilvec.core.escape import one_line
from distilvec.core.extras import require_extra
from distilvec.report.plain_tables import ABSENT, scores_table
from distilvec.report.table_layout import text_table
from distilvec.report.tables import flat_rows, leaderboard

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Score
    from distilvec.evaluation.tasks import TaskFailure

Columns = Mapping[str, Sequence["Score"]]


# -- one table, in each form -------------------------------------------------------------------------------------------


def html_table(header: Sequence[object], rows: Sequence[Sequence[object]], caption: object = "") -> str:
    """A small HTML table, every text escaped. Columns after the first are right-aligned if there are more than two."""
    right = ' style="text-align: right"' if len(header) > 2 else ""
    styles = ['style="text-align: left"', *[right.strip()] * (len(header) - 1)]
    lines = ["<table>", *([f"<caption>{_html(caption)}</caption>"] if caption else [])]
    lines.append(f"<thead><tr>{_cells('th', header, styles)}</tr></thead>")
    lines += ["<tbody>", *(f"<tr>{_cells('td', row, styles)}</tr>" for row in rows), "</tbody>", "</table>"]
    return "\n".join(lines)


def html_list(texts: Sequence[object]) -> str:
    """An HTML list, every text escaped; empty without texts."""
    return f"<ul>{''.join(f'<li>{_html(text)}</li>' for text in texts)}</ul>" if texts else ""


def frame(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """A pandas DataFrame. Errors: DistilvecError with the install command where pandas is missing."""
    require_extra("dataframe", "to_dataframe")
    import pandas

    return pandas.DataFrame(list(rows), columns=list(header))


def _cells(tag: str, row: Sequence[object], styles: Sequence[str]) -> str:
    return "".join(
        f"<{f'{tag} {style}'.strip()}>{_html(cell)}</{tag}>" for cell, style in zip(row, styles, strict=True)
    )


def _html(text: object) -> str:
    return escape(one_line(text))


# -- scores ------------------------------------------------------------------------------------------------------------


def scores_text(columns: Columns) -> str:
    """One row a task, one column a model, the averages and their share of the teacher's average."""
    header, *rows = scores_table(columns, reference="teacher")
    return text_table(header, rows)


def scores_html(columns: Columns) -> str:
    """The table of `scores_text` as HTML."""
    header, *rows = scores_table(columns, reference="teacher")
    return html_table(header, rows)


def scores_frame(columns: Columns) -> Any:
    """A pandas DataFrame with the columns task, type, metric and one for each model, in points; one row a task and metric."""
    tasks = dict.fromkeys((score.task, score.type, score.metric) for scores in columns.values() for score in scores)
    values = {
        name: {(score.task, score.type, score.metric): score.value for score in scores}
        for name, scores in columns.items()
    }
    rows = [[*task, *(values[name].get(task) for name in columns)] for task in tasks]
    return frame(["task", "type", "metric", *columns], rows)


def problem_text(problem: TaskFailure) -> str:
    """The task of a problem, the model where it is one's own, and what is wrong."""
    column = f" ({one_line(problem.column)})" if problem.column else ""
    return f"task '{one_line(problem.task)}'{column}: {problem.text}"


# -- comparisons -------------------------------------------------------------------------------------------------------


def comparison_text(comparison: Mapping[str, Any]) -> str:
    """The leaderboard, the differences from the reference, the notes."""
    header, *rows = leaderboard(comparison)
    parts = [text_table(header, rows)]
    if comparison["differences"]:
        parts += [
            "",
            _differences_title(comparison),
            text_table(DIFFERENCES, [_difference(row) for row in comparison["differences"]]),
        ]
    return "\n".join([*parts, *(f"note: {one_line(note)}" for note in comparison["notes"])])


def comparison_html(comparison: Mapping[str, Any]) -> str:
    """The parts of `comparison_text` as HTML."""
    header, *rows = leaderboard(comparison)
    parts = [html_table(header, rows)]
    if comparison["differences"]:
        parts.append(
            html_table(
                DIFFERENCES, [_difference(row) for row in comparison["differences"]], _differences_title(comparison)
            )
        )
    return "\n".join([*parts, html_list(comparison["notes"])])


def comparison_frame(comparison: Mapping[str, Any]) -> Any:
    """A pandas DataFrame with one row a run: the columns of the CSV file, `reference` as True or False."""
    header, *rows = flat_rows(comparison)
    return frame(header, rows).astype({"reference": bool})


DIFFERENCES = ("run", "task", "difference", "interval", "p")


def _differences_title(comparison: Mapping[str, Any]) -> str:
    return f"Differences from {one_line(comparison['reference'])} (points, 95 % interval, p by paired bootstrap)"


def _difference(row: Mapping[str, Any]) -> list[str]:
    """A difference, with dashes where it was not tested."""
    interval = ABSENT if row["low"] is None else f"{row['low']:+.2f} to {row['high']:+.2f}"
    chance = ABSENT if row["p"] is None else f"{row['p']:.3f}"
    return [row["a"], row["task"], f"{row['difference']:+.2f}{row['mark']}", interval, chance]
