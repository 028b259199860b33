"""Advice follows from the numbers of the report, and is missing where they do not call for it."""

from __future__ import annotations

import pytest

from distilvec.report.advice import (
    advice,
    confused_classes,
    more_texts,
    retrieval_falls,
    smaller_vectors,
    smaller_weights,
    still_better,
    teacher_below,
    teachers_documents,
    training_lowers,
)
from distilvec.report.comparison import pareto
from distilvec.report.sections.compression import BITS, mean_rows
from tests.report.report_sample import sample_report


def verdict(**numbers):
    return {"verdict": {"retention": 97.7, **numbers}}


def test_retrieval_that_falls_most():
    text = retrieval_falls(verdict(retrieval=86.7))
    assert "86.7 %" in text and "97.7 %" in text and "train longer" in text and "student.layers" in text
    assert "student.vocabulary" in retrieval_falls({**verdict(retrieval=86.7), "vocabulary": {"before": {}}})
    assert retrieval_falls(verdict(retrieval=96.0)) == retrieval_falls(verdict()) == retrieval_falls({}) == ""


def test_training_that_lowers_the_scores():
    def report(**averages):
        scores = {
            name: [{"task": "search", "type": "retrieval", "metric": "ndcg@10", "value": value}]
            for name, value in averages.items()
        }
        return {**verdict(retrieval=60.0), "scores": scores}

    lowered = report(teacher=50.0, untrained=40.0, student=30.0)
    text = training_lowers(lowered)
    assert "from 80.0 % of the teacher's to 60.0 %" in text and "language" in text and advice(lowered)[0] == text
    assert retrieval_falls(lowered) == ""  # its advice is to train longer
    assert training_lowers(report(untrained=40.0, student=30.0)).startswith("Training lowered the average. ")
    kept = report(teacher=50.0, untrained=40.0, student=39.8)
    assert training_lowers(kept) == training_lowers({}) == "" and retrieval_falls(kept) != ""


def test_a_teacher_below_its_student_and_confused_classes():
    def report(**accuracy):
        return {"record": {"supervised": {"scores": {name: {"accuracy": value} for name, value in accuracy.items()}}}}

    text = teacher_below(report(teacher=0.8988, student=0.9538))
    assert "(89.9) is below its student (95.4)" in text and "--learning-rate" in text
    assert teacher_below(report(teacher=0.95, student=0.955)) == teacher_below(report(student=0.9)) == ""
    pairs = [{"class": "card", "taken_for": "cash", "rows": 7}, {"class": "cash", "taken_for": "card", "rows": 1}]
    assert "card for cash (7 test rows)." in confused_classes({"mistakes": {"confused": pairs}})
    assert confused_classes({"mistakes": {"confused": pairs[1:]}}) == confused_classes({}) == ""


def test_the_teachers_documents():
    assert "88.5 %" in teachers_documents(verdict(retrieval=86.7, asymmetric_retrieval=88.5))
    assert "98.9 %" in teachers_documents(verdict(asymmetric_retention=98.9))
    assert teachers_documents(verdict(retrieval=86.7, asymmetric_retrieval=86.9)) == ""


@pytest.mark.parametrize(
    ("name", "values", "part"),
    [
        ("distance", [0.9, 0.6, 0.5, 0.45], "still improved at the end (0.5000 to 0.4500)"),
        ("distance", [0.9, 0.45, 0.47, 0.5], "best at step 10 of 30"),
        ("distance", [0.9, 0.6, 0.45, 0.4499], ""),
        ("accuracy", [0.1, 0.6, 0.7, 0.8], "still improved"),
        ("accuracy", [0.1, 0.8, 0.7, 0.6], "best at step 10 of 30"),
    ],
)
def test_the_end_of_the_training(name, values, part):
    history = [{"step": 10 * step, f"eval/{name}": value} for step, value in enumerate(values)]
    text = still_better({"history": history})
    assert (part in text) if part else text == ""
    assert still_better({"history": history[:2]}) == still_better({}) == ""


def test_texts_that_were_trained_on_are_nearer():
    def report(seen, texts=2000):
        record = {"training": {"texts": texts}, "data": {"train_rows": 1000}}
        return {"texts": {"mean": 0.5, "trained": {"mean": seen}}, "record": record}

    assert "(0.450) than new ones (0.500)" in more_texts(report(0.45))
    assert more_texts(report(0.49)) == more_texts(report(0.45, texts=999)) == more_texts({"texts": {"mean": 0.5}}) == ""


def test_the_smallest_vectors_that_keep_the_score():
    report = sample_report()
    rows = [row for row in mean_rows(report["compression"]["rows"]) if row["column"] == "student"]
    whole = next(row["value"] for row in rows if (row["precision"], row["width"]) == ("float32", 384))
    kept = [row for row in rows if row["value"] >= 0.99 * whole]
    least = min(BITS[row["precision"]] * row["width"] for row in kept)
    text = smaller_vectors(report)
    assert f": {32 * 384 / least:.0f} times smaller" in text and "vectors" in text
    assert smaller_vectors({}) == ""


def test_all_advice_of_a_report():
    report = sample_report()
    assert advice(report)[-1] == smaller_weights(report) != "" and advice({}) == []
    assert smaller_weights({**report, "exports": {"onnx-int8": {}}}) == ""


def test_the_pareto_front():
    points = [(4.8, 97.0), (8.7, 97.4), (8.7, 96.0), (15.6, 97.2), (17.4, 99.0)]
    assert pareto(points, -1) == [(4.8, 97.0), (8.7, 97.4), (17.4, 99.0)]
    assert pareto(points, 1) == [(17.4, 99.0)] and pareto([], 1) == []
