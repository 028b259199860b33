"""The verdict: shares of the teacher's average, speed, size, the lowest task; None for what is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distilvec.evaluation.aggregate import average, retention
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.evaluation.evaluator import Score
from distilvec.evaluation.memory import ModelSize
from distilvec.evaluation.overlap import Overlap, OverlapShare
from distilvec.evaluation.significance import ChangeInterval
from distilvec.evaluation.speed import Speed
from distilvec.report.record import RunRecord, StudentRecord, TeacherRecord
from distilvec.report.scores import complete_averages, score_table
from distilvec.report.sections.scores import retained
from distilvec.report.verdicts import make_verdict
from tests.report.report_sample import as_report, sample_judgement, sample_report

SPEED = Speed(ratio={"query": 3.1, "document": 3.1})
TEACHER_RECORD, STUDENT = TeacherRecord(parameters=26_000_000), StudentRecord(parameters=10_000_000)
RECORD = RunRecord(teacher=TEACHER_RECORD, student=STUDENT)


def column(**values):
    return [Score(task, "sts", "spearman", value, {"spearman": value}, 0.1, 100) for task, value in values.items()]


TEACHER = column(stsb=80.0, cranfield=50.0)


def test_all_numbers():
    student = column(stsb=76.0, cranfield=48.95)
    verdict = make_verdict({"teacher": TEACHER, "student": student}, {}, SPEED, RECORD)
    assert verdict.text.startswith("96.1% of the teacher's average on 2 tasks")
    assert verdict.retention == retention(student, TEACHER)["average"] == 100 * average(student) / average(TEACHER)
    assert (verdict.worst_task, round(verdict.worst_change, 9)) == ("stsb", -5.0)
    assert (verdict.times_faster, verdict.documents_times_faster, verdict.times_smaller) == (3.1, 3.1, 2.6)
    assert verdict.within_interval is None and verdict.task_count == 2


def test_the_numbers_of_a_whole_report():
    report = as_report(sample_report())
    verdict = make_verdict(report.scores, report.intervals["student"], report.speed, report.record)
    for key in ("retention", "asymmetric_retention", "worst_change"):
        assert getattr(verdict, key) == pytest.approx(getattr(report.verdict, key), abs=1e-3)
    assert verdict.worst_task == report.verdict.worst_task


def test_unknown_numbers_are_none():
    verdict = make_verdict({"teacher": TEACHER, "student": column(stsb=76.0, cranfield=49.0)})
    assert verdict.times_faster is verdict.times_smaller is verdict.asymmetric_retention is None
    assert make_verdict({}).text == "not evaluated"
    sizes = {"teacher": ModelSize(parameters=26_000_000), "student": ModelSize(parameters=10_000_000)}
    assert make_verdict({}, None, Speed(models=sizes), RunRecord(teacher=TeacherRecord("x"))).times_smaller == 2.6
    unusable = make_verdict({}, None, Speed(ratio={"query": float("nan"), "document": 0.0}))
    assert unusable.times_faster is unusable.documents_times_faster is None


def test_an_average_over_fewer_tasks_is_compared_with_no_other():
    """A task that one model could not be scored on: no average of it in the table, the figure, or the list of runs."""
    teacher, untrained = column(a=80.0, b=60.0, c=40.0), column(a=40.0, b=30.0, c=20.0)
    scores = {"teacher": teacher, "untrained": untrained, "student": column(a=79.0)}
    table = score_table(scores)
    average_row, share_row = table.foot
    assert [cell.value for cell in average_row[2:5]] == [pytest.approx(60.0), pytest.approx(30.0), None]
    assert [cell.value for cell in share_row[2:5]] == [pytest.approx(100.0), pytest.approx(50.0), None]
    assert [(row.model, row.task) for row in retained(scores, {}) if row.task == "average"] == [
        ("untrained", "average")
    ]
    assert complete_averages(scores) == {"teacher": {"all": 60.0}, "untrained": {"all": 30.0}, "student": {}}
    verdict = make_verdict(scores)
    assert verdict.text.startswith("98.8% of the teacher's average on 1 of 3 tasks")
    without_teacher = {"untrained": untrained, "student": column(a=79.0)}
    assert [row.model for row in retained(without_teacher, {}) if row.task == "average"] == ["untrained"]
    alone = make_verdict({"untrained": untrained, "student": column(a=79.0)})
    assert alone.text.startswith("79.0 on average on 1 of 3 tasks")
    whole = make_verdict({"teacher": teacher, "student": column(a=79.0, b=60.0, c=40.0)})
    assert whole.coverage == "" and "on 3 tasks" in whole.text


def test_no_teacher_and_a_worthless_teacher():
    student = column(stsb=76.0, cranfield=49.0)
    for columns in ({"student": student}, {"student": student, "teacher": column(stsb=-3.0, cranfield=0.0)}):
        verdict = make_verdict(columns)
        assert verdict.retention is None and verdict.text.startswith("62.5 ")


@pytest.mark.parametrize("interval", [(0.4, 2.1, 0.002), (-0.4, 2.9, 0.2), None])
def test_the_interval_of_the_average(interval):
    scores = {"teacher": TEACHER, "student": column(stsb=82.0, cranfield=50.5)}
    verdict = make_verdict(scores, {} if interval is None else {"average": ChangeInterval(*interval)})
    assert verdict.within_interval == (None if interval is None else interval[0] <= 0 <= interval[1])
    assert ("no measurable difference" in verdict.text) == bool(verdict.within_interval)


def test_tasks_that_only_one_was_scored_on_are_left_out():
    verdict = make_verdict({"teacher": TEACHER, "student": column(stsb=76.0)})
    assert (verdict.retention, verdict.task_count) == (95.0, 1) and verdict.text.endswith("on 1 of 2 tasks")


SENTENCE = (
    "finds 0.71 of the teacher's ten nearest among the teacher's vectors (overlap@10) [0.69, 0.73], "
    "0.58 alone [0.56, 0.60]; "
)
BEFORE = "before training 0.28 and 0.22"


def test_without_a_suite_the_overlap_is_the_verdict():
    record = replace(RECORD, overlap=sample_judgement())
    verdict = make_verdict({}, record=record)
    assert verdict.text == SENTENCE + BEFORE
    assert (verdict.overlap_among, verdict.overlap_alone) == (0.71, 0.58) and verdict.retention is None
    with_suite = make_verdict({"teacher": TEACHER, "student": TEACHER}, record=record)
    assert with_suite.text == "100.0% of the teacher's average on 2 tasks" and with_suite.overlap_among == 0.71
    task = LabelledScores("intents", "classification", 9, {"student": {"accuracy": 0.978}})
    labelled = make_verdict({"student": column(intents=97.8)}, record=replace(record, supervised=task))
    assert labelled.text == "97.8% right on intents" and labelled.overlap_among is labelled.overlap_alone is None
    own = replace(sample_judgement(), student=Overlap(alone=OverlapShare(0.5, 0.4, 0.6)), start=None)
    apart = make_verdict({}, record=RunRecord(overlap=own))
    assert apart.text == "finds 0.50 of the teacher's ten nearest with its own vectors (overlap@10) [0.40, 0.60]"
    assert (apart.overlap_among, apart.overlap_alone) == (None, 0.5)


def test_an_index_is_judged_by_overlap_and_not_by_averages_of_its_own_texts():
    found = Overlap(among=OverlapShare(0.69, 0.67, 0.71), among_wider=0.99)
    judgement = replace(sample_judgement(), origin="index", similarity_source="index", student=found, start=None)
    record = RunRecord(overlap=judgement)
    item = Score("index-known-item", "retrieval", "ndcg@10", 98.9, {"ndcg@10": 98.9, "mrr@10": 98.2})
    mine = Score("mine", "retrieval", "ndcg@10", 60.0)
    verdict = make_verdict({"teacher": [item], "asymmetric": [item]}, record=record)
    expected = "finds 0.69 of the index's ten nearest (overlap@10) [0.67, 0.71] by cosine, as the index states; "
    expected += "judged on stored texts; queries are shorter; a stored text is found at rank 1 to 10 with MRR 0.98"
    assert verdict.text == expected and verdict.asymmetric_retention is None
    assert not score_table({"teacher": [item], "asymmetric": [item]}).foot
    both = score_table({"teacher": [item, mine], "asymmetric": [item, replace(mine, value=30.0)]})
    assert [[cell.text for cell in row][2:] for row in both.foot] == [["60.00", "30.00"], ["100.0", "50.0"]]
    verdict = make_verdict({"teacher": [item, mine], "asymmetric": [item, mine]}, record=record)
    assert verdict.text == f"{expected}; nDCG@10 60.0 on mine" and verdict.asymmetric_retention == 100.0


def test_a_labelled_task_comes_first():
    def verdict(task, kind, **scores):
        return make_verdict({}, record=RunRecord(supervised=LabelledScores(task, kind, 9, scores))).text

    accuracies = {"student": {"accuracy": 0.71}, "teacher": {"accuracy": 0.9}}
    assert verdict("intents {x}", "classification", **accuracies) == "71.0% right on intents {x}; the teacher has 90.0%"
    assert verdict("pairs", "sts", student={"spearman": 0.5, "pearson": 0.4}) == "spearman 50.0 on pairs"
    assert verdict("pairs", "sts", student={"spearman": None}) == "not evaluated"
