"""What the report page's tables are made of: cells that know their value, numbers as readers expect them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distilvec.report.plain_tables import ABSENT


@dataclass(frozen=True)
class Cell:
    """What a cell shows: `text`, a small `note` below it, `value` to sort by (None: by the text, or last), a `kind` for its colour."""

    text: str
    value: float | None = None
    note: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the page. `header` holds titles; the first `words` columns are text, the others figures; `foot` is not sorted."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    foot: Sequence[Sequence[Cell]] = ()
    words: int = 1


def figure(value: Any, digits: int = 2, unit: str = "") -> Cell:
    """A number with a true minus sign and thousands set off; a dash for what is not known."""
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return Cell(ABSENT if not isinstance(value, str) else value)
    return Cell(number(value, digits) + unit, float(value))


def number(value: float, digits: int = 2, sign: bool = False) -> str:
    """ "1,234.50", with `sign` "+0.20"; the minus sign is U+2212, and what rounds to 0 has none."""
    shown = f"{value:{'+' if sign else ''},.{digits}f}"
    return shown.replace("-", "−") if float(shown.replace(",", "")) else shown.lstrip("+-")  # noqa: RUF001 - a true minus sign


def words(*texts: Any) -> list[Cell]:
    """Cells of text."""
    return [Cell(ABSENT if text is None or text == "" else str(text)) for text in texts]


def change_cell(change: float | None, low: float | None, high: float | None, mark: str) -> Cell:
    """A change in points with its stars, its interval below; coloured only where it is significant."""
    if change is None:
        return Cell(ABSENT)
    if low is None or high is None:
        return Cell(number(change, sign=True), change)
    kind = ("gain" if change > 0 else "loss") if mark else "same"
    return Cell(
        number(change, sign=True) + mark, change, f"{number(low, sign=True)} to {number(high, sign=True)}", kind
    )


def chance_cell(p: float | None) -> Cell:
    """A p-value."""
    return Cell("< 0.001", p) if p is not None and p < 0.001 else figure(p, 3)
