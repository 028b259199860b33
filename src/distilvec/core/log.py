"""What a command reports: its level, log lines, progress of long work, and the output of other libraries.

Progress is a bar on a terminal and in a notebook, a line every half minute elsewhere.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from distilvec.core.escape import one_line, visible
from distilvec.core.secrets import hidden

if TYPE_CHECKING:
    from rich.console import Console


class Level(IntEnum):
    """QUIET: errors and results only. NORMAL: progress too. VERBOSE: progress as lines, warnings of other libraries."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level = Level.NORMAL
LINE_SECONDS = {Level.NORMAL: 30.0, Level.VERBOSE: 2.0}  # between two lines of progress
_SURE = 1.0  # seconds after the first report from which on a rate is measured without the start of the work
_LONG = 10.0  # seconds until the first report beside which the start of the work counts little
_phases: tuple[str, ...] = ()  # of the work that goes on
FIRST_LINE_SECONDS = 2.0  # work that takes longer has a line as soon as its first part is done
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


class Advance(Protocol):
    """Reports progress: items done until now, and a short note such as the current loss.

    `work`: the same in items of average size, where items differ in size. Rate and time left are computed from it: a
    teacher embeds long texts first, so that the first minute's texts say nothing about the others.
    """

    def __call__(self, done: int, note: str = "", work: float | None = None) -> None:
        """Show the new state."""


class ProgressPace:
    """Items a second, measured from the moment it is made, and the time left.

    Until the first report a model is loaded, texts are tokenized, kernels are compiled: a rate with that in it promises
    minutes of work that takes seconds. So the time left follows from what comes after it, and is not told before.
    """

    def __init__(self, total: int, done: int) -> None:
        self.total = total
        self.start = done
        self.began = time.monotonic()
        self.first: tuple[float, float] | None = None  # time and work of the first report

    def rate(self, work: float, now: float) -> float:
        """Items of average size a second."""
        return (work - self.start) / max(now - self.began, 1e-9)

    def time_text(self, done: int, work: float, now: float) -> str:
        """Return "3 min left", of finished work "in 5 min"; empty while that is not known. Every report is told."""
        if done >= self.total:
            return f"in {duration(now - self.began)}"
        if self.first is None and work > self.start:
            self.first = now, work
        first_time, first_work = self.first or (now, work)
        rate = 0.0
        if now - first_time >= _SURE:
            rate = (work - first_work) / (now - first_time)
        elif now - self.began >= _LONG:
            rate = self.rate(work, now)
        return f"{duration(max(0.0, self.total - work) / rate)} left" if rate > 0 else ""


def duration(seconds: float) -> str:
    """Return "48 s", "12 min", "3 h 20 min" or "5.2 days"."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds >= 72 * 3600:
        return f"{seconds / 86400:,.1f} days"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


@cache
def console() -> Console:
    """The console on standard error. rich is imported with its first line: `--help` needs none."""
    from rich.console import Console

    return Console(stderr=True)


def log(text: str) -> None:
    """Log one line to standard error, so that standard output has results only. Not at level QUIET.

    At level VERBOSE the line begins with the time of day.
    """
    if level() is Level.QUIET:
        return
    if level() is Level.VERBOSE:
        text = f"{time.strftime('%H:%M:%S')} {text}"
    # without markup: rich would take the [key] of a message for a style
    console().print(visible(hidden(text)), highlight=False, soft_wrap=True, markup=False, emoji=False)


log_once = cache(log)  # for what is opened several times in a process


@contextmanager
def phases(names: Sequence[str]) -> Iterator[None]:
    """Number the phases of the work inside; see `begin_phase`."""
    global _phases
    before, _phases = _phases, tuple(names)
    try:
        yield
    finally:
        _phases = before


def begin_phase(name: str) -> None:
    """Log that a phase begins, as "2/5 teacher"; nothing where the work inside has no such phase."""
    if name in _phases:
        log(f"{_phases.index(name) + 1}/{len(_phases)} {name}")


@contextmanager
def progress(what: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
    """Show `what` until the block ends. Call the yielded function with the count until now; see `Advance`."""
    if level() is Level.QUIET:
        yield _nothing
    elif level() is Level.NORMAL and _shows_bars():
        with _bar(what, total, unit, done) as advance:
            yield advance
    else:
        yield _lines(what, total, unit, done)


def _shows_bars() -> bool:
    return console().is_terminal or (console().is_jupyter and _has_widgets())


def _nothing(done: int, note: str = "", work: float | None = None) -> None:
    """Report nothing."""


@contextmanager
def _bar(what: str, total: int, unit: str, start: int) -> Iterator[Advance]:
    from rich.progress import BarColumn, Progress, TextColumn

    columns = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "rate", "left", "note")]
    texts = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), *columns)
    pace = ProgressPace(total, start)
    with Progress(*texts, console=console()) as bar:
        task = bar.add_task(
            what, total=total, completed=start, count=f"{start:,}/{total:,} {unit}", rate="", left="", note=""
        )

        def advance(done: int, note: str = "", work: float | None = None) -> None:
            now = time.monotonic()
            amount = float(done) if work is None else work
            bar.update(
                task,
                completed=total if done >= total else amount,
                count=f"{done:,}/{total:,} {unit}",
                rate=f"{pace.rate(amount, now):,.1f}/s",
                left=pace.time_text(done, amount, now),
                note=one_line(note),
            )

        yield advance
        bar.refresh()  # in a notebook rich does not draw the last count itself


def _has_widgets() -> bool:
    """Return whether ipywidgets can be imported, with which rich draws bars in a notebook."""
    try:
        importlib.import_module("ipywidgets")
    except ImportError:
        return False
    return True


def _lines(what: str, total: int, unit: str, start: int) -> Advance:
    pace = ProgressPace(total, start)
    next_line = pace.began + min(FIRST_LINE_SECONDS, LINE_SECONDS[level()])
    finished = False

    def advance(done: int, note: str = "", work: float | None = None) -> None:
        nonlocal next_line, finished
        now = time.monotonic()
        amount = float(done) if work is None else work
        left = pace.time_text(done, amount, now)
        if finished or (now < next_line and done < total):
            return
        next_line, finished = now + LINE_SECONDS[level()], done >= total
        parts = [f"{done:,}/{total:,} {unit}", f"{pace.rate(amount, now):,.1f}/s", left]
        line = ", ".join(part for part in [*parts, one_line(note)] if part)
        log(f"{what}: {line}")

    return advance


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
    if not verbose:
        levels |= {_REPORTS: logging.WARNING}  # of which our filter keeps a line
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
            f"warning: a model's files do not have {len(missing)} of its weights, which start at random: "
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
