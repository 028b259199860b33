"""JSON for programs, in a file or on standard output (`--json -`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from distilvec.core.errors import about
from distilvec.core.files import write_json

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
