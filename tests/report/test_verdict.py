"""The verdict says what the numbers say: kept, better, not to be told apart, unknown."""

from __future__ import annotations

import json

import pytest

from distilvec.evaluation.aggregate import average, retention
from distilvec.evaluation.evaluator import Score
from distilvec.report.verdict import make_verdict
from tests.report.report_sample import sample_report

SPEED = {"ratio": {"query": 3.1, "document": 3.1}}
RECORD = {"teacher": {"parameters": 26_000_000}, "student": {"parameters": 10_000_000}}


def column(**values):
    return [Score(task, "sts", "spearman", value, {"spearman": value}, 0.1, 100) for task, value in values.items()]


TEACHER = column(stsb=80.0, cranfield=50.0)


def test_all_parts_in_one_sentence():
    student = column(stsb=76.0, cranfield=48.95)
    verdict = make_verdict({"teacher": TEACHER, "student": student}, {}, SPEED, RECORD)
    assert (
        verdict["text"]
        == "keeps 96.1 % of the teacher, 3.1 times faster, 2.6 times smaller; loses most on stsb (-5.0 %)"
    )
    assert verdict["retention"] == retention(student, TEACHER)["average"] == 100 * average(student) / average(TEACHER)
    assert (verdict["worst_task"], round(verdict["worst_change"], 9)) == ("stsb", -5.0)
    assert (verdict["speedup"], verdict["document_speedup"], verdict["smaller"]) == (3.1, 3.1, 2.6)
    assert verdict["within_interval"] is None and verdict["tasks"] == 2


def test_report_dicts_and_scores_give_the_same_and_json():
    report = sample_report()
    verdict = make_verdict(report["scores"], report["intervals"], report["speed"], report["record"])
    objects = {
        name: [Score(**{**score, "warnings": tuple(score["warnings"])}) for score in found]
        for name, found in report["scores"].items()
    }
    assert make_verdict(objects, report["intervals"], report["speed"], report["record"]) == verdict
    assert json.loads(json.dumps(verdict, allow_nan=False)) == verdict
    assert verdict["retention"] == pytest.approx(report["verdict"]["retention"], abs=1e-3)
    assert verdict["asymmetric_retention"] == pytest.approx(report["verdict"]["asymmetric_retention"], abs=1e-3)
    assert verdict["worst_task"] == report["verdict"]["worst_task"]
    assert verdict["worst_change"] == pytest.approx(report["verdict"]["worst_change"], abs=1e-3)
    assert f"{verdict['asymmetric_retention']:.1f} % with the teacher's documents" in verdict["text"]


def test_unknown_parts_are_left_out():
    verdict = make_verdict({"teacher": TEACHER, "student": column(stsb=76.0, cranfield=49.0)}, None, None, None)
    assert verdict["text"] == "keeps 96.2 % of the teacher; loses most on stsb (-5.0 %)"
    assert verdict["speedup"] is verdict["smaller"] is verdict["asymmetric_retention"] is None
    assert make_verdict({}, None, None, None)["text"] == "not evaluated"
    assert make_verdict({}, None, SPEED, RECORD)["text"] == "3.1 times faster, 2.6 times smaller"
    assert (
        make_verdict({}, None, {"ratio": None, "models": RECORD}, {"teacher": {"name": "x"}})["text"]
        == "2.6 times smaller"
    )


def test_no_teacher_and_a_worthless_teacher():
    student = column(stsb=76.0, cranfield=49.0)
    assert (
        make_verdict({"student": student}, None, None, None)["text"]
        == "scores 62.5 on average (there is no teacher to compare with)"
    )
    text = make_verdict({"student": student, "teacher": column(stsb=-3.0, cranfield=0.0)}, None, None, None)["text"]
    assert text == "scores 62.5 on average (the teacher's average is not above 0)"


@pytest.mark.parametrize(
    ("values", "interval", "expected"),
    [
        (
            {"stsb": 82.0, "cranfield": 50.5},
            [0.4, 2.1, 0.002],
            "is better than the teacher, with 101.9 % of its score; loses on no task",
        ),
        (
            {"stsb": 82.0, "cranfield": 50.5},
            [-0.4, 2.9, 0.2],
            "reaches 101.9 % of the teacher (a difference within the confidence interval); loses on no task",
        ),
        ({"stsb": 82.0, "cranfield": 50.5}, None, "reaches 101.9 % of the teacher, untested; loses on no task"),
        (
            {"stsb": 79.6, "cranfield": 49.9},
            [-0.6, 0.2, 0.4],
            "keeps 99.6 % of the teacher (a difference within the confidence interval); loses most on stsb (-0.5 %)",
        ),
    ],
)
def test_better_and_not_to_be_told_apart(values, interval, expected):
    verdict = make_verdict(
        {"teacher": TEACHER, "student": column(**values)}, {"student": {"average": interval}}, None, None
    )
    assert verdict["text"] == expected
    assert verdict["within_interval"] == (None if interval is None else interval[0] <= 0 <= interval[1])


def test_the_worst_task_within_its_interval_says_so():
    tested = {"student": {"stsb": [-3.0, 0.5, 0.1], "average": [-3.0, -0.1, 0.04]}}
    text = make_verdict({"teacher": TEACHER, "student": column(stsb=79.0, cranfield=50.0)}, tested, None, None)["text"]
    assert text == "keeps 99.2 % of the teacher; loses most on stsb (-1.2 %, which may be chance)"


def test_tasks_that_only_one_was_scored_on_are_named_in_number():
    verdict = make_verdict({"teacher": TEACHER, "student": column(stsb=76.0)}, None, None, None)
    assert verdict["text"] == "keeps 95.0 % of the teacher on 1 of 2 tasks"
    assert verdict["tasks"] == 1


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ({"query": 2.1, "document": 1.4}, "2.1 times faster on queries, 1.4 on documents"),
        ({"query": 2.1, "document": 0.5}, "2.1 times faster on queries, 2.0 times slower on documents"),
        ({"query": 2.1, "document": 1.0}, "2.1 times faster on queries, no faster on documents"),
        ({"query": 0.5, "document": 0.5}, "2.0 times slower"),
        ({"query": 1.01, "document": 0.99}, "no faster"),
        ({"document": 2.0}, "2.0 times faster on documents"),
        ({"query": 2.0, "document": None}, "2.0 times faster on queries"),
        ({"query": float("nan")}, "not evaluated"),
    ],
)
def test_speed_in_words(ratio, expected):
    assert make_verdict({}, None, {"ratio": ratio}, None)["text"] == expected


def test_a_larger_student_is_not_called_smaller():
    assert (
        make_verdict({}, None, None, {"teacher": {"parameters": 10}, "student": {"parameters": 15}})["text"]
        == "1.5 times larger"
    )


def test_a_labelled_task_comes_first():
    supervised = {
        "task": "intents",
        "type": "classification",
        "scores": {"student": {"accuracy": 0.71}, "teacher": {"accuracy": 0.9}},
    }
    assert (
        make_verdict({}, None, None, {"supervised": supervised})["text"]
        == "accuracy 71.0 on intents (the teacher 90.0)"
    )
    alone = {"task": "pairs", "type": "sts", "scores": {"student": {"spearman": 0.5, "pearson": 0.4}}}
    assert make_verdict({}, None, None, {"supervised": alone})["text"] == "spearman 50.0 on pairs"
    assert (
        make_verdict({}, None, None, {"supervised": {**alone, "scores": {"student": {"spearman": None}}}})["text"]
        == "not evaluated"
    )
