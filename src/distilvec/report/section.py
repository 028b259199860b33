"""Sections of a report page: a title and blocks; blocks without content are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distilvec.report.tables import Part, Table, json_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


EMPTY: tuple[Any, ...] = (None, "", {}, [])  # values that are not shown


@dataclass(frozen=True)
class Figure:
    """A figure: `draw` is called when the page is made; the table holds the same data."""

    name: str
    title: str
    draw: Callable[[], Drawing]
    table: Table

    @property
    def text(self) -> str:
        """The alternative text (WCAG 2.2, 1.1.1)."""
        return f"{self.title}. The data is in the table below."


@dataclass(frozen=True)
class Block:
    """Part of a section: `kind` names its form in page.html.jinja, `title` is its summary or label."""

    kind: str
    content: Any
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    title: str
    blocks: Sequence[Block]


def make_section(title: str, *parts: Block | Table | Figure | str | None) -> Section | None:
    """Return a section of the parts that have content (text is a paragraph), None without any."""
    blocks = list[Block]()
    for part in parts:
        if isinstance(part, Table):
            part = Block("table", part if part.rows else None)
        elif isinstance(part, str):
            part = Block("text", part)
        elif isinstance(part, Figure) and part.table.rows:
            together = bool(blocks) and blocks[-1].kind == "figures"
            part = Block("figures", [*(blocks.pop().content if together else ()), part])
        blocks += [part] if isinstance(part, Block) and part.content else []
    return Section(title, blocks) if blocks else None


def folded(summary: str, *parts: Block | Table | None) -> Block:
    """Return parts behind a summary."""
    found = make_section("", *parts)
    return Block("details", found and found.blocks, summary)


def pairs(part: Mapping[str, Any], title: str = "") -> Block:
    """Return names and values; empty values are left out."""
    shown = {key.replace("_", " "): _value_text(value) for key, value in part.items() if value not in EMPTY}
    return Block("pairs", {key: text for key, text in shown.items() if text}, title)


def _value_text(value: Any) -> str:
    """A value for readers: six significant digits, "key: value, ..." of the keys that have one."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value_text(one)}" for key, one in value.items() if one not in EMPTY)
    return f"{value:.6g}" if type(value) is float else json_text(value)


def notes(*parts: Block | Table | str | None) -> Block:
    """Return parts that are shown next to a figure."""
    found = make_section("", *parts)
    return Block("notes", found and found.blocks)


def get(report: Part, path: str) -> Any:
    """Return a part of a report.json by its path with dots, {} where it is missing or null."""
    found: Any = report
    for key in path.split("."):
        found = found.get(key) or {}
    return found
