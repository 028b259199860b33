"""Tables of text that fit a terminal: too wide ones come in several parts, each with the first column in front.

Numbers and the words of a header are never split. Text wraps at words; what is longer than a column folds, after a comma
or a slash where there is one. A table of names and values (two columns) wraps its values.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence

from rich.cells import cell_len, chop_cells

from distilvec.core.escape import one_line

RULE, CROSS = " │ ", "─┼─"
NARROWEST = 30  # columns of a terminal
_PIECES = re.compile(r"[^\s,/]*[,/]+|[^\s,/]+|\s+")

Rows = Sequence[Sequence[str]]


def text_table(header: Sequence[str], rows: Rows, width: int | None = None) -> str:
    """A table as text, as wide as the terminal at most (80 columns where there is none)."""
    return "\n".join(layout(header, rows, width or max(NARROWEST, shutil.get_terminal_size().columns)))


def layout(header: Sequence[str], rows: Rows, width: int) -> list[str]:
    """The lines of a table that is at most `width` wide; an empty line stands between its parts."""
    titles = [one_line(title) for title in header]
    cells = [[_clean(cell, number) for number, cell in enumerate(row)] for row in rows]
    columns = list(zip(titles, *cells, strict=True))
    right = len(titles) > 2
    first = min(_natural(columns[0]), width * 2 // 5 if right else width // 2)
    room = width - first - len(RULE)
    widths = [first, *(min(room, _natural(column)) for column in columns[1:])]
    if sum(widths) + len(RULE) * (len(widths) - 1) > width:  # headers wrap before the table is split
        widths = [first, *(min(room, _narrow(column)) for column in columns[1:])]
    lines: list[str] = []
    for part in _parts(widths, width):
        lines += [""] if lines else []
        lines += _part([columns[number] for number in part], [widths[number] for number in part], right)
    return lines


def wrapped(text: str, width: int) -> list[str]:
    """The text's lines, each at most `width` wide, broken at spaces, else after commas and slashes, else anywhere."""
    lines, line = list[str](), ""
    for piece in _PIECES.findall(text):
        if cell_len(line + piece.rstrip()) <= width:
            line += piece
            continue
        if line.strip():
            lines.append(line.rstrip())
        *whole, line = chop_cells(piece.lstrip(), width) or [""]
        lines += whole
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def _clean(cell: str, number: int) -> str:
    """One visible line; the first column keeps the spaces in front, by which rows stand below others."""
    text = one_line(cell)
    return " " * (len(cell) - len(cell.lstrip(" "))) + text if number == 0 else text


def _natural(column: Sequence[str]) -> int:
    return max([1, *map(cell_len, column)])


def _narrow(column: Sequence[str]) -> int:
    """As wide as the longest cell and the longest word of the header."""
    return max([1, *map(cell_len, [*column[0].split(), *column[1:]])])


def _parts(widths: Sequence[int], width: int) -> list[list[int]]:
    """The numbers of the columns in each part, the first column in every one."""
    parts: list[list[int]] = [[0]]
    for number in range(1, len(widths)):
        used = sum(widths[place] + len(RULE) for place in parts[-1])
        if used + widths[number] > width and len(parts[-1]) > 1:
            parts.append([0])
        parts[-1].append(number)
    return parts


def _part(columns: Sequence[Sequence[str]], widths: Sequence[int], right: bool) -> list[str]:
    blocks = [[wrapped(cell, size) for cell in column] for column, size in zip(columns, widths, strict=True)]
    lines: list[str] = []
    for number, row in enumerate(zip(*blocks, strict=True)):
        for place in range(max(map(len, row))):
            parts = [lines_of[place] if place < len(lines_of) else "" for lines_of in row]
            padded = [
                _padded(text, size, right and column > 0)
                for column, (text, size) in enumerate(zip(parts, widths, strict=True))
            ]
            lines.append(RULE.join(padded).rstrip())
        if number == 0:
            lines.append(CROSS.join("─" * size for size in widths))
    return lines


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
