"""Results in a notebook: escaped HTML, frames, the terminal's text; tables of scores and of comparisons."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from report.comparison_sample import TASKS, sample_comparison

from distilvec.cli.terminal import show_scores
from distilvec.core.errors import DistilvecError
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.tasks import TaskFailure
from distilvec.report.comparison import Comparison
from distilvec.report.json_values import from_json
from distilvec.report.scores import Scores
from distilvec.report.tables import Table, html_list, to_html, words

HOSTILE = '<script>alert("1")</script> & \x1b[2J \u202ey'


class Reader(HTMLParser):
    """The tags and texts of a fragment; every tag has to be closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def score(task, value, kind="sts", metric="spearman"):
    return Score(task, kind, metric, value, {metric: value}, 0.0, 3)


def some_scores(**changes):
    columns = {
        "teacher": [score("a", 80.0), score("b", 60.0, "classification", "accuracy")],
        "student": [score("a", 60.0), score("b", 45.0, "classification", "accuracy")],
        "asymmetric": [score("a", 70.0)],
    }
    return Scores(
        **{"columns": columns, "problems": [TaskFailure("b", "[model] two widths.", "asymmetric")], **changes}
    )


def test_html_is_escaped_and_closed():
    text = to_html(Table("x", HOSTILE, [HOSTILE, "x", "y"], [words(HOSTILE, "1", 2)])) + html_list([HOSTILE])
    found = Reader(text)
    assert set(found.tags) == {"div", "table", "caption", "span", "thead", "tbody", "tr", "th", "td", "ul", "li"}
    assert "<script" not in text and "\x1b" not in text and "\\u202ey" in text and found.texts.count("2") == 1
    assert html_list([]) == ""


def test_scores_print_as_on_the_terminal(capsys):
    scores = some_scores()
    show_scores(scores.columns)
    table = capsys.readouterr().out
    print(scores)
    assert capsys.readouterr().out == table + "problem: task 'b' (asymmetric): two widths.\n"
    assert "75.0" in table and repr(scores) == str(scores) == f"{scores}"


def test_scores_as_html_and_frame():
    scores = some_scores()
    found = Reader(scores._repr_html_())
    assert {
        "teacher",
        "student",
        "asymmetric",
        "45.00",
        "% of teacher",
        "problem: task 'b' (asymmetric): two widths.",
    } <= set(found.texts)
    frame = scores.to_dataframe()
    assert list(frame.columns) == ["task", "type", "metric", "teacher", "student", "asymmetric"] and len(frame) == 2
    assert frame["student"].tolist() == [60.0, 45.0] and np.isnan(frame["asymmetric"][1])
    assert frame["metric"].tolist() == ["spearman", "accuracy"]


def test_scores_of_nothing():
    scores = some_scores(columns={}, problems=[TaskFailure(HOSTILE, "[suite] no file.")])
    assert str(scores).startswith("no scores\nproblem: task '<script>") and "<script>" not in scores._repr_html_()
    assert list(scores.to_dataframe().columns) == ["task", "type", "metric"] and len(scores.to_dataframe()) == 0
    with pytest.raises(AttributeError):
        scores.columns = {}


def test_a_comparison_prints_its_tables():
    printed = str(sample_comparison())
    assert all(part in printed for part in ("average", "Differences", "No winner yet", "note: Rows"))


def test_a_comparison_as_html_frame_and_mapping():
    comparison = sample_comparison()
    found = Reader(comparison._repr_html_())
    assert (
        found.tags.count("table") == 3
        and "english <two>" in found.texts
        and "Rows have from 1 to 3 seeds." in found.texts
    )
    frame = comparison.to_dataframe()
    assert len(frame) == 4 and frame["run"].tolist() == [row.run for row in comparison.rows]
    assert frame.loc[frame["reference"], "run"].tolist() == ["english three"]
    assert {*TASKS, "average", "average std", "average mark", "stsb % of teacher", "minutes"} <= set(frame.columns)
    content = json.loads(json.dumps(comparison.to_json()))
    assert from_json(Comparison, content) == comparison and content["differences"][0]["a"]
    alone = replace(sample_comparison(), differences=[], notes=[])
    assert Reader(alone._repr_html_()).tags.count("table") == 2 and "note" not in str(alone)


def test_without_pandas(monkeypatch):
    monkeypatch.setattr("distilvec.core.extras._is_there", lambda name: name != "pandas")
    for results in (some_scores(), sample_comparison()):
        with pytest.raises(DistilvecError, match=r"^\[to_dataframe\] .*pandas.*dataframe\]"):
            results.to_dataframe()
