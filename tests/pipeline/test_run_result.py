"""A run's result at the prompt and in a notebook; the student is loaded when it is asked for."""

from __future__ import annotations

import io
import json
import sys

from refusals import refused

from distilvec.cli.terminal import show_result
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.tasks import TaskFailure
from distilvec.pipeline import run_result
from distilvec.pipeline.run import run
from distilvec.pipeline.run_result import RunResult
from distilvec.train.checkpoint import Progress


def made(folder, **changes):
    columns = {
        name: [Score("<b>mini</b>", "sts", "spearman", value, {}, 0.0, 3)]
        for name, value in (("teacher", 80.0), ("student", 60.0))
    }
    parts = {
        "folder": folder,
        "state": Progress(finished=True),
        "distance": {"distance": 0.25, "untrained_distance": 0.9},
        "scores": columns,
        "record": {"student": {"parameters": 2_000_000}, "teacher": {"parameters": 4_000_000}},
        "problems": [],
        "page": folder / "report.html",
        "verdict": {"text": "75.0% of the teacher's average on 1 task"},
    }
    return RunResult(**{**parts, **changes})


def test_the_lines_at_the_prompt(tmp_path):
    text = repr(made(tmp_path))
    for part in (
        "0.2500 to the teacher",
        "(0.9000 before training)",
        "75.0% of the teacher",
        str(tmp_path),
        "report.html",
    ):
        assert part in text
    assert len(text.splitlines()) == 5
    bare = repr(
        made(
            tmp_path,
            scores={},
            page=None,
            distance={"accuracy": 0.5},
            verdict={},
            problems=[TaskFailure("mini", "[suite] no file.", "teacher")],
        )
    )
    assert (
        "accuracy" in bare
        and "verdict" not in bare
        and "report" not in bare
        and "not scored task 'mini' (teacher): no file." in bare
    )


def test_the_reports_words_on_a_terminal(tmp_path, monkeypatch):
    """Nothing but paths is wider than 80 columns; the report's path opens its page."""
    verdict = {"text": "75.0% of the teacher's average on 1 task", "advice": ["Train longer (train.epochs). " * 4]}
    record = {"student": {"parameters": 2_000_000}, "teacher": {}}
    result = made(tmp_path / "a run", verdict=verdict, record=record, scores={})
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    show_result(result)
    printed = stream.getvalue()
    address = f"file://{tmp_path}/a%20run/report.html"
    assert f"\x1b]8;;{address}\x1b\\{result.page}\x1b]8;;\x1b\\" in printed
    lines = printed.splitlines()
    assert lines[-1].startswith("verdict   75.0%")  # the number that counts comes last
    assert len([line for line in lines if line.startswith("          ")]) == 1  # the rest of the advice
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)
    monkeypatch.setenv("TERM", "dumb")
    show_result(result)
    assert stream.getvalue().count(address) == 1


def test_in_a_notebook(tmp_path):
    result = made(tmp_path, problems=[TaskFailure("<i>", "[suite] no file.")])
    html = result._repr_html_()
    assert html.count("<table") == 2 and "75.0% of the teacher" in html
    assert "&lt;b&gt;mini" in html and "<b>" not in html and "<i>" not in html
    assert made(tmp_path, scores={})._repr_html_().count("<table") == 1
    assert result.to_dataframe()["student"].tolist() == [60.0]
    assert list(made(tmp_path, scores={}).to_dataframe().columns) == ["task", "type", "metric"]


def test_of_a_run(tiny_recipe, tmp_path, monkeypatch, capsys):
    loads, load = [], run_result.load_model
    monkeypatch.setattr(run_result, "load_model", lambda *arguments: loads.append(arguments) or load(*arguments))
    result = run(tiny_recipe(train__max_steps=2), tmp_path / "run")
    assert loads == [], "nothing is loaded before it is asked for"
    assert result.student is result.student and len(loads) == 1
    assert result.student.encode("a text").shape == (32,)
    assert "RunResult" in repr(result) and json.dumps(result.record)
    show_result(result)
    printed = capsys.readouterr().out
    assert all(text in printed for _, text in result.lines()) and "M parameters" in printed


def test_a_student_that_is_gone(tmp_path):
    with refused("student"):
        _ = made(tmp_path).student
