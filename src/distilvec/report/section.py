"""Sections of a report page: a title and blocks; blocks without content are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distilvec.report.tables import Table, value_text

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
class PageSection:
    """A section of the page."""

    title: str
    blocks: Sequence[Block]


def make_section(title: str, *parts: Block | Table | Figure | str | None) -> PageSection | None:
    """Return a section of the parts that have content (text is a paragraph), None without any."""
    blocks: list[Block] = []
    for part in parts:
        if isinstance(part, Table):
            if part.rows:
                blocks.append(Block("table", part))
        elif isinstance(part, str):
            if part:
                blocks.append(Block("text", part))
        elif isinstance(part, Figure):
            if not part.table.rows:
                continue
            if blocks and blocks[-1].kind == "figures":  # figures that follow each other are one block
                blocks[-1] = Block("figures", [*blocks[-1].content, part])
            else:
                blocks.append(Block("figures", [part]))
        elif part is not None and part.content:
            blocks.append(part)
    return PageSection(title, blocks) if blocks else None


def folded(summary: str, *parts: Block | Table | Figure | None) -> Block:
    """Return parts behind a summary."""
    section = make_section("", *parts)
    return Block("details", None if section is None else section.blocks, summary)


def notes(*parts: Block | Table | str | None) -> Block:
    """Return parts that are shown next to a figure."""
    section = make_section("", *parts)
    return Block("notes", None if section is None else section.blocks)


def pairs(content: Mapping[str, Any], title: str = "") -> Block:
    """Return names and values; empty values are left out."""
    texts = {}
    for key, value in content.items():
        text = "" if value in EMPTY else _value_text(value)
        if text:
            texts[key.replace("_", " ")] = text
    return Block("pairs", texts, title)


def _value_text(value: Any) -> str:
    """A value for readers: three significant digits, "key: value, ..." of the keys that have one."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_value_text(part)}" for key, part in value.items() if part not in EMPTY)
    if type(value) is float:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return value_text(value)
