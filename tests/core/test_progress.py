"""What is said in the terminal is said as it stands."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest
from rich.console import Console

from distilvec.cli.terminal import show_table
from distilvec.core.log import Level, duration, log, progress, verbosity


def test_keys_in_brackets_are_not_taken_for_markup(capsys):
    log("too high a rate [train.learning_rate].")
    show_table(["task", "value"], [["a [bold] task", "[red]"]])
    printed = capsys.readouterr()
    assert "rate [train.learning_rate]." in printed.err
    assert "a [bold] task" in printed.out and "[red]" in printed.out


# -- notebooks: no IPython is installed here; small stand-ins replace IPython.display and ipywidgets -------------------


@pytest.fixture
def notebook(monkeypatch):
    """Our console as in Jupyter; gives what is displayed."""
    shown, display, widgets = [], types.ModuleType("IPython.display"), types.ModuleType("ipywidgets")

    class Output(contextlib.nullcontext):
        def clear_output(self, wait):
            shown.append("cleared")

    display.display, widgets.Output = shown.append, Output
    notebook = Console(stderr=True, force_jupyter=True)
    monkeypatch.setattr("distilvec.core.log.console", lambda: notebook)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", widgets)
    return shown


def count_to_four():
    with progress("counting", 4, "steps") as advance:
        for done in range(1, 5):
            advance(done, f"loss [b]{done}[/b]")


def texts_of(shown):
    return [item._repr_mimebundle_([], [])["text/plain"] for item in shown if hasattr(item, "_repr_mimebundle_")]


def test_bars_in_a_notebook(notebook, capsys):
    count_to_four()
    assert capsys.readouterr().err == "", "no lines where there is a bar"
    *_, last = [text for text in texts_of(notebook) if "counting" in text]
    assert "4/4" in last and "loss [b]4[/b]" in last, "the last count is drawn"
    log("done [train.epochs]")
    assert "done [train.epochs]" in texts_of(notebook)[-1]


def test_lines_in_a_notebook_without_ipywidgets(notebook, monkeypatch, recwarn):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    count_to_four()
    assert "counting: 4/4 steps" in texts_of(notebook)[-1] and not recwarn.list


def test_time_left_is_that_of_the_work_and_not_of_the_items(monkeypatch, capsys):
    """Long texts come first: 5 of 300 texts are a third of the work after 10 s, so 20 s are left and not 10 minutes."""
    clock = [0.0]
    monkeypatch.setattr("distilvec.core.log.time.monotonic", lambda: clock[0])
    with progress("teacher", 300, "texts") as advance:
        clock[0] = 10.0
        advance(5, work=100.0)
        clock[0] = 30.0
        advance(300, work=300.0)
        advance(300, work=300.0)
    assert capsys.readouterr().err.splitlines() == [
        "teacher: 5/300 texts, 10.0/s, 20 s left",
        "teacher: 300/300 texts, 10.0/s, in 30 s",
    ]


def test_what_was_done_before_is_not_part_of_the_rate(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("distilvec.core.log.time.monotonic", lambda: clock[0])
    with progress("teacher", 300, "texts", done=200) as advance:
        advance(200)  # nothing is done yet: no line, no division by zero
        clock[0] = 10.0
        advance(220, "note", work=250.0)
    assert capsys.readouterr().err.splitlines() == ["teacher: 220/300 texts, 5.0/s, 10 s left, note"]


def test_the_start_of_the_work_is_not_part_of_the_time_left(monkeypatch, capsys):
    """Three seconds until the first of 500 batches, then 100 a second: 5 seconds are left, not 25 minutes."""
    clock = [0.0]
    monkeypatch.setattr("distilvec.core.log.time.monotonic", lambda: clock[0])
    with verbosity(Level.VERBOSE), progress("teacher", 500, "texts") as advance:
        for number in range(1, 501):
            clock[0] = 3 + number / 100
            advance(number)
    lines = [line.partition("teacher: ")[2] for line in capsys.readouterr().err.splitlines()]
    assert "left" not in lines[0]
    assert "3 s left" in lines[1] and "1 s left" in lines[2] and "in 8 s" in lines[-1]


def test_a_bar_shows_the_same(monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr("distilvec.core.log.time.monotonic", lambda: clock[0])
    terminal = Console(stderr=True, force_terminal=True, width=120)
    monkeypatch.setattr("distilvec.core.log.console", lambda: terminal)
    with progress("teacher", 300, "texts") as advance:
        clock[0] = 10.0
        advance(5, "long ones", work=299.0)
    printed = capsys.readouterr().err
    assert "5/300 texts" in printed and "0 s left" in printed and "long ones" in printed


def test_lines_elsewhere(capsys):
    count_to_four()
    assert "counting: 4/4 steps" in capsys.readouterr().err


def test_durations():
    assert [duration(seconds) for seconds in (0.2, 48, 59.7, 200, 3600, 12000)] == [
        "0 s", "48 s", "1 min", "3 min", "1 h", "3 h 20 min",
    ]  # fmt: skip
