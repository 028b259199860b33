"""Colours on a terminal: none in a pipe, with NO_COLOR, or on a terminal that knows none. Imports nothing.

Bars and log lines get theirs from rich (core/log.py), by the same rule.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

BOLD, DIM, RED, CYAN = "1", "2", "31", "36"
_RULE = re.compile(r"[ ─]*─┼─[ ─┼]*")  # below the header of a table


def shows_colours(stream: TextIO) -> bool:
    """Return whether a stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a style, as it is where the stream shows no colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if shows_colours(stream) else text


def coloured_table(text: str, stream: TextIO) -> str:
    """Return a table of `text_table` with bold headers and pale rules."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _RULE.fullmatch(line):
            lines[number] = coloured(line, DIM, stream)
            for above in range(number - 1, -1, -1):  # the lines of the header, up to an empty line
                if not lines[above]:
                    break
                lines[above] = coloured(lines[above], BOLD, stream)
    return "\n".join(lines)
