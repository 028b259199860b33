"""Markdown tables, for the pages of docs/ and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RULES = {"l": "---", "r": "---:"}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], columns: str = "") -> str:
    """Return a Markdown table.

    `columns` aligns each column, such as "lrr"; by default the first is on the left and all others on the right.
    """
    columns = columns or "l" + "r" * (len(head) - 1)
    assert len(columns) == len(head), "an alignment for each column"
    lines = [_line(head), "|" + "|".join(RULES[column] for column in columns) + "|"]
    for row in rows:
        assert len(row) == len(head), f"a cell for each column: {row}"
        lines.append(_line(row))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
