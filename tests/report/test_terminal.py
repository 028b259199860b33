"""Tables on a terminal: nothing wider than it, no number and no word of a header split, names stay text."""

from __future__ import annotations

import io
import itertools
import sys

import pytest
from report.comparison_sample import sample_comparison
from report.report_sample import sample_report
from report.vocabulary_sample import sample_vocabulary
from rich.cells import cell_len

from distilvec.cli.terminal import (
    print_result,
    show_problems,
    show_scores,
    show_table,
    show_tokenizers,
)
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.speed import Speed
from distilvec.evaluation.tasks import TaskFailure
from distilvec.report.comparison import leaderboard
from distilvec.report.json_values import from_json
from distilvec.report.sections.speed import speed_text
from distilvec.report.tables import ABSENT, text_table
from distilvec.report.values import VocabularyChange

TASKS = [
    "STSBenchmark", "Banking77Classification", "SprintDuplicateQuestions", "cranfield", "NFCorpus", "TwentyNewsgroups", "sick-r", "mrpc",  # noqa: E501
]  # fmt: skip


def wide_comparison():
    comparison = sample_comparison()
    comparison.tasks = TASKS
    for row in comparison.rows:
        for task in TASKS:
            row.mean[task], row.std[task], row.marks[task], row.retention[task] = 81.2345, 0.2, "***", 99.0
    return comparison


@pytest.mark.parametrize("width", [60, 80])
def test_a_wide_leaderboard_comes_in_parts(width):
    board = leaderboard(wide_comparison())
    header, rows = board.header, board.lines
    lines = text_table(header, rows, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for cell in {cell for row in rows for cell in row[1:]}:
        assert cell in text
    for word in {word for title in header for word in title.split()}:
        assert word in text
    parts = [list(part) for blank, part in itertools.groupby(lines, key=lambda line: not line) if not blank]
    assert len(parts) > 2 and all(any(line.startswith("Run ") for line in part[:4]) for part in parts)
    assert all(any(line.startswith("talas") for line in part) for part in parts)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_real_outputs_fit(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ("teacher", "untrained", "student", "asymmetric")
    show_scores({name: [Score(task, "sts", "spearman", 81.234, {}, 0.0, 3) for task in TASKS] for name in columns})
    show_table(["", "tiny"], [["run folder", "/home/" + "long/" * 30], ["texts", "12,000 (300 held out)"]])
    content = sample_vocabulary()
    content["notes"] = []
    show_tokenizers(from_json(VocabularyChange, content))
    lines = capsys.readouterr().out.splitlines()
    assert max(cell_len(line) for line in lines if "│" in line) <= width
    text = "\n".join(lines)
    for whole in ("81.23", "12,000 (300 held out)", "262,144", "attention", "untrained", "asymmetric"):
        assert whole in text


def test_long_names_fold():
    name = "lr=0.0001,seed=12345,more=" + "x" * 40
    lines = text_table(["Run", "a", "b"], [[name, "1.23", "4.56"]], 40).splitlines()
    assert max(map(len, lines)) <= 40 and any(line.endswith("1.23 │ 4.56") for line in lines)
    assert "".join(line.partition(" │")[0].strip() for line in lines[2:]) == name


def test_wide_letters_count_twice():
    lines = text_table(["", "x", "y"], [["中文名称", "1", "2"], ["ab", "3", "4"]], 40).splitlines()
    assert len({cell_len(line) for line in lines}) == 1


def test_names_stay_text(capsys):
    show_table(["a", "[bold]b[/]", "c"], [["[red]x[/red]", ":fire:", "\x1b[2J\u202ey"], ["two\nlines", "", ""]])
    printed = capsys.readouterr().out
    for text in ("[bold]b[/]", "[red]x[/red]", ":fire:", "\\x1b[2J\\u202ey", "two lines"):
        assert text in printed
    assert "\x1b" not in printed


def test_an_untested_difference_has_dashes():
    line = next(line for line in str(sample_comparison()).splitlines() if line.startswith("cosine") and "stsb" in line)
    assert line.endswith(ABSENT)


def test_problems_name_the_key(capsys):
    from typer import Exit

    with pytest.raises(Exit):
        show_problems([TaskFailure("mini", "[0.path] [suite] /x.csv, line 3: text. Fix.", "student")], "suite")
    assert capsys.readouterr().err == "distilvec: [suite] task 'mini' (student): /x.csv, line 3: text. Fix.\n"


def test_an_encoding_without_these_letters(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    print_result("1.0 ± 0.2 │ é")
    stream.flush()
    assert stream.buffer.getvalue() == b"1.0 +- 0.2 | \\xe9\n"


def test_the_speed_of_one_model_has_no_ratios():
    report = sample_report()["speed"]
    alone = {
        **report, "reference": "student", "models": {"student": report["models"]["student"]}, "notes": ["no ONNX"],
        "rows": [row for row in report["rows"] if row["model"] == "student"], "ratios": {},
    }  # fmt: skip
    found = speed_text(from_json(Speed, alone))
    assert "Size and memory" in found and "Every timing" in found and found.endswith("note: no ONNX")
    assert "Speed against" not in found
    several = {**alone, "ratios": {"student": {"onnx": {"query": {"ratio": 2.0, "lowest": 1.9, "highest": 2.1}}}}}
    assert "Speed against student" in speed_text(from_json(Speed, several))
