"""What is said in the terminal is said as it stands."""

from __future__ import annotations

import contextlib
import sys
import types

import pytest
from rich.console import Console

from distilvec.cli.terminal import show_table
from distilvec.core.log import log, progress


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
    monkeypatch.setattr("distilvec.core.log.console", Console(stderr=True, force_jupyter=True))
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


def test_lines_elsewhere(capsys):
    count_to_four()
    assert "counting: 4/4 steps" in capsys.readouterr().err
