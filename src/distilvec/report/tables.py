"""One table type for pages, notebooks, terminals and model cards, and its forms."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from distilvec.core.escape import markdown, markdown_cell, one_line, visible
from distilvec.core.extras import require_extra

ABSENT = "–"  # noqa: RUF001 - an en dash for "no value"
NARROWEST = 30  # columns of a terminal


@dataclass(frozen=True)
class Cell:
    """Text of a cell, `value` to sort by, a `note` after the text, `kind` for its colour (gain, loss, same, best)."""

    text: str
    value: float | None = None
    note: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.note}".rstrip()


@dataclass(frozen=True)
class Table:
    """A table. The first `words` columns are text, the others numbers; the rows of `foot` are not sorted."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    foot: Sequence[Sequence[Cell]] = ()
    words: int = 1

    @property
    def is_stacked(self) -> bool:
        """Whether each row becomes a block on a phone: a table of many columns and not too many rows."""
        return len(self.header) > 4 and len(self.rows) <= 30

    @property
    def lines(self) -> list[list[str]]:
        """The rows as text, without the header."""
        return [[str(cell) for cell in row] for row in (*self.rows, *self.foot)]


# -- cells and tables ------------------------------------------------------------------------------------------------


def number(value: float, digits: int | None = 2, sign: bool = False) -> str:
    """Format "1,234.50", with `sign` "+0.20", without `digits` in six significant ones; the minus sign is U+2212."""
    if digits is None:
        return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")
    text = f"{value:+,.{digits}f}" if sign else f"{value:,.{digits}f}"
    if float(text.replace(",", "")) == 0:  # "-0.00" and "+0.00" are 0.00
        return text.lstrip("+-")
    return text.replace("-", "\N{MINUS SIGN}")


def number_cell(value: float | None, digits: int | None = 2, sign: bool = False) -> Cell:
    """Return a cell of a number; a dash for a value that is unknown or not finite."""
    if value is None or not math.isfinite(value):
        return Cell(ABSENT)
    return Cell(number(value, digits, sign), float(value))


def words(*texts: Any) -> list[Cell]:
    """Return cells of text."""
    return [Cell(ABSENT if text is None or text == "" else one_line(text)) for text in texts]


def value_text(value: Any) -> str:
    """Return a JSON value for readers: a text as it is, thousands of a whole number set off."""
    if type(value) is int:
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_attribute(value: Any) -> Markup:
    """Return a JSON value as an HTML attribute in single quotes, with the quotes; most of JSON's are double ones."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("&", "&amp;").replace("<", "&lt;")
    return Markup("'{}'").format(Markup(text.replace("'", "&#39;").replace(">", "&gt;")))


def make_table(
    name: str, caption: str, records: Iterable[Any], columns: Mapping[str, Any], foot: int = 0, across: bool = False
) -> Table:
    """Return a table with one row per record, a dataclass or a mapping.

    Args:
        columns: Title to field (text) or (field, digits[, factor]); a field may be a path with dots. Columns of text
            come first. A column without any value is left out.
        foot: Number of records at the end that are not sorted.
        across: One column per record, one row per title, below the titles of the first column.
    """
    records = list(records)
    cells: dict[str, list[Cell]] = {}
    for title, spec in columns.items():
        if isinstance(spec, str):
            values = [lookup(record, spec) for record in records]
            if any(values):
                cells[title] = words(*values)
            continue
        path, digits, *factor = spec
        numbers = [lookup(record, path) for record in records]
        if any(value is not None for value in numbers):
            scale = factor[0] if factor else 1.0
            cells[title] = [number_cell(None if value is None else scale * value, digits) for value in numbers]
    if across:
        lines = [[*words(title), *column] for title, column in cells.items()]
        if not lines:
            return Table(name, caption, [], [])
        return Table(name, caption, [str(cell) for cell in lines[0]], lines[1:])
    rows = [list(row) for row in zip(*cells.values(), strict=True)]
    text_columns = [title for title in cells if isinstance(columns[title], str)]
    end = len(rows) - foot
    return Table(name, caption, list(cells), rows[:end], rows[end:], len(text_columns))


def pivot(name: str, caption: str, heads: Sequence[str], entries: Iterable[tuple[Sequence[Any], str, Cell]]) -> Table:
    """Return a table from (row key, column, cell): one row per key, the parts of the key in its first columns."""
    rows: dict[tuple[Any, ...], dict[str, Cell]] = {}
    columns: dict[str, None] = {}
    for key, column, cell in entries:
        columns[column] = None
        rows.setdefault(tuple(key), {})[column] = cell
    body = []
    for key, by_column in rows.items():
        head = [words(part)[0] if isinstance(part, str) else number_cell(part, None) for part in key]
        body.append([*head, *(by_column.get(column, Cell(ABSENT)) for column in columns)])
    text_columns = [part for part in next(iter(rows), ()) if isinstance(part, str)]
    return Table(name, caption, [*heads, *columns], body, words=len(text_columns))


def lookup(record: Any, path: str) -> Any:
    """Return the value at a path with dots; None where a part of the path is None, or missing in a mapping."""
    value = record
    for name in path.split("."):
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = value.get(name)
        elif isinstance(value, (list, tuple)):
            value = value[int(name)]
        else:
            value = getattr(value, name)
    return value


# -- the forms of a table --------------------------------------------------------------------------------------------


def to_text(table: Table) -> str:
    """Return the table for this terminal, at most as wide as it; see `text_table`."""
    return text_table(table.header, table.lines)


def to_html(table: Table) -> str:
    """Return the table as HTML, every text escaped."""
    return str(templates().get_template("table.html.jinja").module.show_table(table))  # type: ignore[attr-defined]


def to_markdown(table: Table, notes: Sequence[str] = ()) -> str:
    """Return the table as Markdown, with the notes as a list below it."""
    left = max(2, table.words)
    rule = ["---" if place < left else "---:" for place in range(len(table.header))]
    header, *rows = [[markdown_cell(cell) for cell in row] for row in (table.header, *table.lines)]
    lines = ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]
    if notes:
        lines.append("")
    lines += [f"- {markdown(note)}" for note in notes]
    return "\n".join(lines) + "\n"


def to_frame(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """Return a pandas DataFrame."""
    require_extra("dataframe", "to_dataframe")
    import pandas

    return pandas.DataFrame(list(rows), columns=list(header))


def html_list(texts: Sequence[object]) -> str:
    """Return an HTML list, every text escaped; empty without texts."""
    items = Markup("").join(Markup("<li>{}</li>").format(one_line(text)) for text in texts)
    return f"<ul>{items}</ul>" if texts else ""


@cache
def templates() -> Environment:
    """The templates of pages and tables: text is escaped, hidden characters are written out."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True, autoescape=True,
        undefined=StrictUndefined, finalize=lambda text: visible(text) if type(text) is str else text,
    )  # fmt: skip
    environment.globals["json"] = json_attribute
    return environment


# -- tables on a terminal --------------------------------------------------------------------------------------------


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return a table as text; a table larger than the terminal is split, each part with the first column in front.

    Numbers and the words of a header are never split. Texts wrap at words. Of three or more columns, those after the
    first are aligned to the right.
    """
    from rich.box import Box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    width = width or max(NARROWEST, shutil.get_terminal_size().columns)
    box = Box("    \n  │ \n ─┼ \n  │ \n ─┼ \n ─┼ \n  │ \n    \n")
    cells = [[cell[: len(cell) - len(cell.lstrip(" "))] + one_line(cell) for cell in row] for row in (header, *rows)]
    columns, right = list(zip(*cells, strict=True)), len(header) > 2
    first = min(max(map(cell_len, columns[0])), width * 2 // 5 if right else width // 2)
    sizes = [min(max(map(cell_len, column)), width - first - 3) for column in columns]
    if first + sum(size + 3 for size in sizes[1:]) > width:  # headers wrap before the table is split
        sizes = [min(max(map(cell_len, [*column[0].split(), *column[1:]])), width - first - 3) for column in columns]
    parts: list[list[int]] = [[]]
    for number in range(1, len(columns)):
        if parts[-1] and first + sum(sizes[column] + 3 for column in parts[-1]) + sizes[number] + 3 > width:
            parts.append([])
        parts[-1].append(number)
    console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False, soft_wrap=False)
    for part in parts:
        if part is not parts[0]:
            console.print()
        grid = Grid(box=box, show_edge=False, pad_edge=False, header_style="")
        for number, size in ((0, first), *((number, sizes[number]) for number in part)):
            grid.add_column(
                Text(cells[0][number]), width=size, overflow="fold", justify="right" if right and number else "left"
            )
        for row in cells[1:]:
            grid.add_row(*(Text(row[number]) for number in (0, *part)))
        console.print(grid)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n"))
