"""What goes to the standard output: JSON for programs, in a file or there (`--json -`), and colours on a terminal.

There are no colours in a pipe, with NO_COLOR, or on a terminal that knows none. Bars and log lines get theirs from rich
(core/log.py), by the same rule.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from distilvec.core.errors import about
from distilvec.core.files import write_json

BOLD, DIM, RED, CYAN = "1", "2", "31", "36"
_RULE = re.compile(r"[ ─]*─┼─[ ─┼]*")  # below the header of a table
STANDARD_OUTPUT = Path("-")
_json_stream: ContextVar[TextIO | None] = ContextVar("json_stream", default=None)


@contextmanager
def json_alone(words: Sequence[str]) -> Iterator[None]:
    """With `--json -` among the words, standard output gets the JSON and nothing else: tables go to standard error.

    It is decided before the command line is parsed, so that nothing is printed before.
    """
    end = words.index("--") if "--" in words else len(words)
    options = list(words[:end])
    is_json_alone = "--json=-" in options or ("--json", "-") in pairwise(options)
    if not is_json_alone:
        yield
        return
    token = _json_stream.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _json_stream.reset(token)


def write_result(path: Path | None, content: Any) -> None:
    """Write a verb's result as JSON to `path`; "-" is standard output, None nowhere."""
    if path is None:
        return
    if path != STANDARD_OUTPUT:
        with about("--json", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, content)
        return
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    print(text, file=_json_stream.get() or sys.stdout, flush=True)


# -- colours ----------------------------------------------------------------------------------------------------------


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
