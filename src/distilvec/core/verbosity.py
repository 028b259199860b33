"""How much a command reports, and what other libraries may show meanwhile. Imports nothing heavy: `--help` passes here."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any


class Level(IntEnum):
    """QUIET: errors and results only. NORMAL: progress too. VERBOSE: progress as lines, and warnings of other libraries."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


# Libraries read these when they are first imported. Variables that the user has set stay.
_NO_BARS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # downloads, and transformers' "Loading weights"
    "TQDM_DISABLE": "1",  # all others
    "TOKENIZERS_PARALLELISM": "true",  # the default; a value that is set stops the warning about forks
}
_NO_WARNINGS = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_VERBOSITY": "error", "DATASETS_VERBOSITY": "error"}
_LOGGERS = (
    "",
    "transformers",
    "huggingface_hub",
    "datasets",
)  # the root logger, and those that set a level of their own
_OURS = Path(__file__).parents[1]
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_MISSING = re.compile(r"^(\S+)\s*\|\s*MISSING\b", re.MULTILINE)

_level = Level.NORMAL


def level() -> Level:
    """The current level."""
    return _level


@contextmanager
def verbosity(chosen: Level) -> Iterator[None]:
    """Report at this level inside."""
    global _level
    before, _level = _level, chosen
    try:
        yield
    finally:
        _level = before


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Show no progress bars of other libraries inside, and their warnings at level VERBOSE only."""
    variables = _NO_BARS if _level is Level.VERBOSE else _NO_BARS | _NO_WARNINGS
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    if transformers := sys.modules.get("transformers.utils.logging"):  # imported before, so the variables come too late
        transformers.disable_progress_bar()
    with (
        _levels(logging.WARNING if _level is Level.VERBOSE else logging.ERROR),
        _load_reports(),
        warnings.catch_warnings(),
    ):
        warnings.showwarning = _show_warning
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


@contextmanager
def _levels(chosen: int) -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in before:
        logging.getLogger(name).setLevel(chosen)
    try:
        yield
    finally:
        for name, number in before.items():
            logging.getLogger(name).setLevel(number)


@contextmanager
def _load_reports() -> Iterator[None]:
    """Of transformers' load reports (level WARNING), keep what matters: weights that a model's files lack. At level VERBOSE all is kept."""
    if _level is Level.VERBOSE:
        yield
        return
    logger = logging.getLogger("transformers.modeling_utils")
    before = logger.level
    logger.setLevel(logging.WARNING)
    logger.addFilter(_filter_report)
    try:
        yield
    finally:
        logger.removeFilter(_filter_report)
        logger.setLevel(before)


def _filter_report(record: logging.LogRecord) -> bool:
    """Whether the record is shown; of a load report that is not, one line about missing weights is shown instead."""
    if record.levelno > logging.WARNING:
        return True
    missing = [name for name in _MISSING.findall(_STYLE.sub("", record.getMessage())) if "pooler." not in name]
    if missing:  # a BERT's own pooler, which sentence embeddings do not pass through, is often missing
        from distilvec.core.log import log

        names = f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        log(
            f"warning: a model's files lack {len(missing)} of its weights, which start at random: {names} (--verbose shows all)"
        )
    return False


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Log a warning of our own; one of another library at level VERBOSE."""
    ours = Path(filename).is_relative_to(_OURS)
    if ours or _level is Level.VERBOSE:
        from distilvec.core.log import log

        log(f"warning: {message}" if ours else f"{category.__name__} ({Path(filename).name}): {message}")
