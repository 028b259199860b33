"""User-given text (names, descriptions, prompts, notes) made harmless for each format in which results are written.

Invisible characters (control characters, and those that turn the direction of text) are first written out as `\\x1b` or
`\\u202e`. HTML is escaped by jinja.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# C0 without tab and line feed, DEL, C1, signs of direction, invisible line breaks, byte-order mark, lone surrogates,
# and the two that XML does not allow besides
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
_MARKDOWN = re.compile(r"[\\`*\[\]<~$]|&(?=[#A-Za-z])|(?<![^\W_])_|_(?![^\W_])")  # "_" inside a word is no emphasis


def visible(text: object) -> str:
    """The text with hidden characters written out; tabs and line feeds stay."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text).replace("\r\n", "\n"))


def one_line(text: object) -> str:
    """Visible text on one line: every run of white space and line breaks is one space."""
    return visible(" ".join(str(text).split()))


def shortened(text: str, length: int) -> str:
    """Return a text of at most `length` characters, with an ellipsis where it is cut."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def visible_tree(content: Any) -> Any:
    """JSON content with every string, keys too, visible: for pictures and pages."""
    if isinstance(content, Mapping):
        return {visible(key): visible_tree(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [visible_tree(value) for value in content]
    return visible(content) if isinstance(content, str) else content


def markdown(text: object) -> str:
    """A line of Markdown that shows the text as it is: no emphasis, link, HTML, formula, heading or list item."""
    line = re.sub(r"^([0-9]{1,9})([.)])(?= |$)", r"\1\\\2", _inline(text))
    return re.sub(r"^[#>+=-]|#$", r"\\\g<0>", line)


def markdown_cell(text: object) -> str:
    """A cell of a Markdown table."""
    return _inline(text).replace("|", "\\|")


def code_span(text: object, cell: bool = False) -> str:
    """Text in backticks, in more of them than it holds. In a table's cell a text with "|" is escaped text instead."""
    line = one_line(text)
    if not line or (cell and "|" in line):
        return markdown_cell(line)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def code_block(text: object, language: str = "") -> str:
    """A fenced block of code; the fence is longer than any in the text."""
    content = "\n".join(visible(line) for line in str(text).strip().splitlines())
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", content)), default=0))
    return f"{ticks}{language}\n{content}\n{ticks}"


def quoted(text: object) -> str:
    """Text as a literal of Python, in double quotes."""
    return visible(json.dumps(str(text), ensure_ascii=False))


def _inline(text: object) -> str:
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", one_line(text))
