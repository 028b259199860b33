"""A run's result at the prompt and in a notebook; the student is loaded when it is asked for."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
from refusals import refused

import distilvec
from distilvec.cli.terminal import show_end
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.tasks import TaskFailure
from distilvec.pipeline import finished_run
from distilvec.report.record import RunRecord, StudentRecord, TeacherRecord
from distilvec.report.values import Report, Verdict
from distilvec.train.metrics import Metric
from distilvec.verbs.opened_run import Run


def score(model, value):
    return Score("<b>mini</b>", "sts", "spearman", value, {}, 0.0, 3)


SCORES = {model: [score(model, value)] for model, value in (("teacher", 80.0), ("student", 60.0))}
VERDICT = Verdict("75.0% of the teacher's average on 1 task")
RECORD = RunRecord(
    student=StudentRecord(parameters=2_000_000),
    teacher=TeacherRecord(parameters=4_000_000),
    metrics={"distance": 0.25, "untrained_distance": 0.9},
    watched=Metric("distance", 0.25, higher_is_better=False),
)


def made(folder, record=RECORD, page=True, **report):
    """A run whose folder has a report and, unless it could not be drawn, a page."""
    files = RunFolder(folder)
    files.make()
    Report(**{"scores": SCORES, "verdict": VERDICT, **report}).write(files)
    files.report_page.unlink(missing_ok=True)
    if page:
        files.report_page.write_text("")
    return Run(folder, record)


def test_the_lines_at_the_prompt(tmp_path):
    text = repr(made(tmp_path))
    for part in (
        "0.2500 in validation",
        "(0.9000 before training)",
        "75.0% of the teacher",
        str(tmp_path),
        "report.html",
    ):
        assert part in text
    assert len(text.splitlines()) == 5
    failure = TaskFailure("mini", "[suite] no file.", "teacher")
    labelled = RunRecord(metrics={"accuracy": 0.5}, watched=Metric("accuracy", 0.5, higher_is_better=True))
    bare = repr(made(tmp_path, labelled, page=False, scores={}, verdict=None, failures=[failure]))
    assert "accuracy" in bare and "verdict" not in bare and "report.html" not in bare
    assert "not scored task 'mini' (teacher): no file." in bare


def test_the_end_screen_on_a_terminal(tmp_path, monkeypatch):
    """The first line is bold, the report's path opens its page, the advice ends with a whole sentence."""
    verdict = replace(VERDICT, advice=["Train longer (train.epochs). " * 9])
    result = made(tmp_path / "a run", replace(RECORD, teacher=None), verdict=verdict, scores={})
    stream = io.StringIO()
    stream.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    show_end(result)
    printed = stream.getvalue()
    address = f"file://{tmp_path}/a%20run/report.html"
    assert f"\x1b]8;;{address}\x1b\\{result.page}\x1b]8;;\x1b\\" in printed
    first, *advice, _, last = re.sub(r"\x1b\[\d+m", "", printed).splitlines()
    assert first == VERDICT.text and f"\x1b[1m{first}" in printed
    assert 1 <= len(advice) <= 2 and advice[-1].endswith("(train.epochs).") and max(map(len, advice)) <= 80
    assert last == f"next: distilvec export '{result.student_folder}' --to onnx-int8"
    monkeypatch.setenv("TERM", "dumb")
    show_end(result)
    assert stream.getvalue().count(address) == 1


def test_in_a_notebook(tmp_path):
    result = made(tmp_path, failures=[TaskFailure("<i>", "[suite] no file.")])
    html = result._repr_html_()
    assert html.count("<table") == 2 and "75.0% of the teacher" in html
    assert "&lt;b&gt;mini" in html and "<b>" not in html and "<i>" not in html
    assert made(tmp_path, scores={})._repr_html_().count("<table") == 1
    assert result.to_dataframe()["student"].tolist() == [60.0]
    assert list(made(tmp_path, scores={}).to_dataframe().columns) == ["task", "type", "metric"]


def test_of_a_run(tiny_recipe, tmp_path, monkeypatch, capsys):
    loads, load = [], finished_run.load_model
    monkeypatch.setattr(finished_run, "load_model", lambda *names, **more: loads.append(names) or load(*names, **more))
    result = distilvec.run(tiny_recipe(train__max_steps=2), out=tmp_path / "run")
    assert loads == [], "nothing is loaded before it is asked for"
    assert result.student is result.student and len(loads) == 1
    assert result.student.encode("a text").shape == (32,)
    assert repr(result).startswith("Run") and json.dumps(result.to_json())
    again = distilvec.result(tmp_path / "run")
    assert (again.folder, again.record, again.scores) == (result.folder, result.record, result.scores)
    assert again.recipe.name == result.name and again.validation["distance"] == result.record.metrics["distance"]
    show_end(result)
    printed = capsys.readouterr().out
    assert f"report: {result.page}" in printed and f"distilvec export {result.student_folder}" in printed


def test_a_student_that_is_gone(tmp_path):
    with refused("student"):
        _ = made(tmp_path).student


def test_a_folder_that_is_no_run(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with refused("run folder", "no finished run"):
            distilvec.result(folder)
    RunFolder(tmp_path).make()
    write_json(RunFolder(tmp_path).record, {"student": 3}, sealed=True)
    with refused("record.json", "student"):
        distilvec.result(tmp_path)


def test_a_damaged_student_is_named(tiny_model, tmp_path):
    opened = made(tmp_path)
    shutil.copytree(tiny_model, opened.student_folder, dirs_exist_ok=True)
    (opened.student_folder / "model.safetensors").write_bytes(b"no weights")
    for use in (lambda: opened.student, opened.export):
        with pytest.raises(DistilvecError, match=str(opened.student_folder)):
            use()
