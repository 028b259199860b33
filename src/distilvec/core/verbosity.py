"""The output of other libraries during a command: no progress bars, and warnings only with --verbose."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec.core.level import Level, chosen_level
from distilvec.core.log import log

# Libraries read these when they are first imported. Variables that the user has set stay.
_NO_BARS = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # downloads, and transformers' "Loading weights"
    "TQDM_DISABLE": "1",  # all others
    "TOKENIZERS_PARALLELISM": "true",  # the default; a value that is set stops the warning about forks
}
_NO_WARNINGS = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_VERBOSITY": "error", "DATASETS_VERBOSITY": "error"}
_LOGGERS = ("", "transformers", "huggingface_hub", "datasets")  # the root logger, and those that set their own level
_REPORTS = "transformers.modeling_utils"  # logs which weights a model's files lack
_STYLE = re.compile("\x1b\\[[0-9;]*m")
_MISSING = re.compile(r"^(\S+)\s*\|\s*MISSING\b", re.MULTILINE)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Show no progress bars of other libraries inside, and their warnings at level VERBOSE only."""
    verbose = chosen_level() is Level.VERBOSE
    variables = _NO_BARS if verbose else _NO_BARS | _NO_WARNINGS
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    if transformers := sys.modules.get("transformers.utils.logging"):  # imported before, so the variables come too late
        transformers.disable_progress_bar()
    levels = dict.fromkeys(_LOGGERS, logging.WARNING) if verbose else dict.fromkeys(_LOGGERS, logging.ERROR)
    levels |= {} if verbose else {_REPORTS: logging.WARNING}  # of which our filter keeps a line
    before = {name: logging.getLogger(name).level for name in levels}
    for name, number in levels.items():
        logging.getLogger(name).setLevel(number)
    if not verbose:
        logging.getLogger(_REPORTS).addFilter(_filter_report)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            yield
        finally:
            logging.getLogger(_REPORTS).removeFilter(_filter_report)
            for name, number in before.items():
                logging.getLogger(name).setLevel(number)
            for name in added:
                os.environ.pop(name, None)


def _filter_report(record: logging.LogRecord) -> bool:
    """Return whether the record is shown; of a load report, log one line about missing weights instead."""
    if record.levelno > logging.WARNING:
        return True
    missing = [name for name in _MISSING.findall(_STYLE.sub("", record.getMessage())) if "pooler." not in name]
    if missing:  # a BERT's own pooler, which sentence embeddings do not pass through, is often missing
        log(
            f"warning: a model's files lack {len(missing)} of its weights, which start at random: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} (--verbose shows all)"
        )
    return False


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Log a warning of our own; one of another library at level VERBOSE."""
    ours = Path(filename).is_relative_to(Path(__file__).parents[1])
    if ours or chosen_level() is Level.VERBOSE:
        log(f"warning: {message}" if ours else f"{category.__name__} ({Path(filename).name}): {message}")
