"""The one exception users meet: it says what was found, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DistilvecError(Exception):
    """A problem in what the user gave us (recipe, files, vectors, machine), never a bug of ours.

    The command line prints its message without a traceback and exits with status 2.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint "; did you mean '...'?" with the known name that is most like `name`; empty where none is like it."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""
