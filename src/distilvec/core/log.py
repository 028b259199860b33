"""Log lines, and progress of long work: a bar on a terminal and in a notebook, a line every half minute elsewhere."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from distilvec.core.escape import one_line, visible
from distilvec.core.verbosity import Level, level

console = Console(stderr=True)
Advance = Callable[[int, str], None]  # (done until now, note such as the current loss)
LINE_SECONDS = {Level.NORMAL: 30.0, Level.VERBOSE: 2.0}  # between two lines of progress


def log(text: str) -> None:
    """Log one line to standard error, so that standard output has results only. Not at level QUIET.

    At level VERBOSE the line begins with the time of day.
    """
    if level() is Level.QUIET:
        return
    text = f"{time.strftime('%H:%M:%S')} {text}" if level() is Level.VERBOSE else text
    console.print(visible(text), highlight=False, soft_wrap=True, markup=False, emoji=False)  # keys are in [brackets]


@contextmanager
def progress(what: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
    """Show `what` until the block ends. Call the yielded function with the count until now and a short note."""
    if level() is Level.QUIET:
        yield _nothing
    elif level() is Level.NORMAL and (console.is_terminal or (console.is_jupyter and _has_widgets())):
        with _bar(what, total, unit, done) as advance:
            yield advance
    else:
        yield _lines(what, total, unit, done)


def _nothing(done: int, note: str = "") -> None:
    """Report nothing."""


@contextmanager
def _bar(what: str, total: int, unit: str, start: int) -> Iterator[Advance]:
    texts = [TextColumn(text, markup=False) for text in ("{task.description}", f"{unit} {{task.fields[rate]}}", "left")]
    times = (TimeElapsedColumn(), texts[2], TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False))
    began = time.monotonic()
    with Progress(texts[0], BarColumn(), MofNCompleteColumn(), texts[1], *times, console=console) as bar:
        task = bar.add_task(what, total=total, completed=start, note="", rate="")

        def advance(done: int, note: str = "") -> None:
            rate = (done - start) / max(time.monotonic() - began, 1e-9)
            bar.update(task, completed=done, note=one_line(note), rate=f"{rate:,.0f}/s")

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
    began = last = time.monotonic()

    def advance(done: int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_SECONDS[level()] and done < total:
            return
        last = now
        rate = (done - start) / max(now - began, 1e-9)
        left = timedelta(seconds=round((total - done) / rate)) if rate > 0 else "?"
        log(f"{what}: {done:,}/{total:,} {unit}, {rate:,.1f}/s, {left} left {one_line(note)}".rstrip())

    return advance
