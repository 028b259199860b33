"""The level of a command's reports. Imports nothing of the package, so that every module can ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class Level(IntEnum):
    """QUIET: errors and results only. NORMAL: progress too. VERBOSE: progress as lines, warnings of other libraries."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level = Level.NORMAL


def level() -> Level:
    """The current level; QUIET in all of several processes but the main one."""
    return _level if os.environ.get("RANK", "0") == "0" else Level.QUIET


def chosen_level() -> Level:
    """The level that the user chose, the same in every process."""
    return _level


@contextmanager
def verbosity(chosen: Level) -> Iterator[None]:
    """Report at this level inside the block."""
    global _level
    before, _level = _level, chosen
    try:
        yield
    finally:
        _level = before
