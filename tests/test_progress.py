"""What is said in the terminal is said as it stands."""

from __future__ import annotations

from distilvec.cli.terminal import show_table
from distilvec.core.log import say


def test_keys_in_brackets_are_not_taken_for_markup(capsys):
    say("too high a rate [train.learning_rate].")
    show_table(["task", "value"], [["a [bold] task", "[red]"]])
    printed = capsys.readouterr()
    assert "rate [train.learning_rate]." in printed.err
    assert "a [bold] task" in printed.out and "[red]" in printed.out
