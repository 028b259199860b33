"""Advice follows from the numbers of the report, and is missing where they do not call for it."""

from __future__ import annotations

import pytest

from distilvec.evaluation.compression import CompressionScore
from distilvec.evaluation.overlap import Judgement, Overlap, OverlapShare
from distilvec.report import advice as rules
from distilvec.report.advice import index_advice
from distilvec.report.comparison import pareto
from distilvec.report.json_values import from_json
from distilvec.report.sections.compression import BITS, mean_rows
from tests.report.report_sample import as_report, sample_report
from tests.report.vocabulary_sample import sample_vocabulary


def of_json(rule):
    """A rule that takes the JSON of a report."""
    return lambda content: rule(as_report(content))


advice = of_json(rules.advice)
confused_classes = of_json(rules.confused_classes)
far_below_the_teacher = of_json(rules.far_below_the_teacher)
far_from_the_space = of_json(rules.far_from_the_space)
more_texts = of_json(rules.more_texts)
overfits = of_json(rules.overfits)
random_layer = of_json(rules.random_layer)
retrieval_falls = of_json(rules.retrieval_falls)
smaller_vectors = of_json(rules.smaller_vectors)
best_long_before = of_json(rules.best_long_before)
still_improves = of_json(rules.still_improves)
teacher_below = of_json(rules.teacher_below)
teachers_documents = of_json(rules.teachers_documents)
training_lowers = of_json(rules.training_lowers)


def verdict(**numbers):
    return {"verdict": {"retention": 97.7, **numbers}}


def shares(alone, among, spread=0.02):
    def share(mean):
        return None if mean is None else OverlapShare(mean, mean - spread, mean + spread)

    return Overlap(share(alone), share(among), None if among is None else 0.95)


def judged(student, start=None, trained=None, origin="teacher", cosine=0.9, candidates=9_000, **training):
    """A report with a judgement; `gain` is the difference, with the same interval."""
    gain = None
    if start is not None:
        means = [[None if s is None else s.mean for s in (one.alone, one.among)] for one in (student, start)]
        gain = shares(*(None if a is None or b is None else a - b for a, b in zip(*means, strict=True)))
    found = Judgement(origin, 500, candidates, 9_000, "cosine", student, start, gain, trained, (), cosine)
    return {"overlap": found.to_json(), "record": {"training": training}}


TASK = {"task": "intents", "type": "classification", "rows": 9}
LOST, FOUND, EITHER = [-9.0, -1.0, 0.002], [1.0, 9.0, 0.002], [-4.0, 4.0, 0.9]


def test_retrieval_that_falls_most():
    lost = {"intervals": {"student": {"average retrieval": LOST}}}
    text = retrieval_falls(verdict(retrieval=86.7) | lost)
    assert "86.7%" in text and "97.7%" in text and "train longer" in text and "student.layers" in text
    assert "student.vocabulary" in retrieval_falls(
        {**verdict(retrieval=86.7), **lost, "vocabulary": sample_vocabulary()}
    )
    assert retrieval_falls(verdict(retrieval=96.0) | lost) == retrieval_falls(verdict()) == retrieval_falls({}) == ""
    either = {"intervals": {"student": {"average retrieval": EITHER}}}
    assert retrieval_falls(verdict(retrieval=86.7) | either) == ""


def test_training_that_lowers_the_scores():
    def report(interval, **averages):
        scores = {
            name: [{"task": "search", "type": "retrieval", "metric": "ndcg@10", "value": value}]
            for name, value in averages.items()
        }
        changes = {"training": {"average": interval}}
        record = {"training": {"learning_rate": 3e-4}}
        intervals = {"student": {"average retrieval": LOST}}
        parts = {"scores": scores, "changes": changes, "record": record, "intervals": intervals}
        return {**verdict(retrieval=60.0), **parts}

    lowered = report(LOST, teacher=50.0, untrained=40.0, student=30.0)
    text = training_lowers(lowered)
    assert "fell from 40.0 to 30.0" in text and "train.learning_rate=0.0001 instead of 0.0003" in text
    assert "language" not in text and advice(lowered)[0] == text
    assert retrieval_falls(lowered) == ""  # its advice is to train longer
    for change in (EITHER, FOUND):  # no worse than chance
        silent = report(change, teacher=50.0, untrained=40.0, student=30.0)
        assert training_lowers(silent) == "" and retrieval_falls(silent) != ""
    assert training_lowers({}) == ""


def test_training_that_lowers_the_overlap():
    text = training_lowers(judged(shares(0.5, 0.6), shares(0.5, 0.7), learning_rate=1e-3))
    assert "overlap@10 fell from 0.70 to 0.60" in text and "train.learning_rate=0.0003 instead of 0.001" in text
    assert training_lowers(judged(shares(0.5, 0.69), shares(0.5, 0.7))) == ""  # within the interval of the change
    assert "overlap@10 fell from 0.50 to 0.40" in training_lowers(judged(shares(0.4, None), shares(0.5, None)))
    assert training_lowers(judged(shares(0.4, 0.9))) == ""


def test_a_student_that_is_not_in_the_teachers_space_yet():
    far = judged(shares(0.46, 0.10), linear_layer="random")
    text = far_from_the_space(far)
    assert "an overlap@10 of 0.10 instead of 0.46" in text and "student.start=ridge" in text
    assert random_layer(far) == ""  # said already
    fitted = far_from_the_space(judged(shares(0.46, 0.10), linear_layer="ridge"))
    assert "train longer" in fitted and "ridge" not in fitted
    assert far_from_the_space(judged(shares(0.46, 0.44))) == ""  # the intervals meet
    assert far_from_the_space(judged(shares(0.46, None))) == far_from_the_space({}) == ""
    scored = verdict(retrieval=66.1, asymmetric_retrieval=14.8)
    assert "14.8% of its retrieval score instead of 66.1%" in far_from_the_space(
        scored | {"changes": {"documents": {"average retrieval": LOST}}}
    )
    assert far_from_the_space(scored | {"changes": {"documents": {"average retrieval": EITHER}}}) == ""
    alone = {"verdict": {"retention": 61.0, "asymmetric_retention": 13.6}, "changes": {"documents": {"average": LOST}}}
    assert "13.6% of its retrieval score" in far_from_the_space(alone)


def test_overlap_is_not_the_aim_of_a_run_on_labels():
    found = judged(shares(0.46, 0.10), shares(0.7, 0.7), linear_layer="random")
    assert advice(found) != []
    found["record"]["supervised"] = {"task": "intents", "type": "classification", "rows": 9, "scores": {}}
    assert advice(found) == []


def test_a_linear_layer_that_started_at_random():
    assert "student.start=ridge" in random_layer(judged(shares(0.43, 0.56), linear_layer="random"))
    assert random_layer(judged(shares(0.8, 0.9), linear_layer="random")) == ""  # it has found its place
    assert random_layer(judged(shares(0.43, 0.56), linear_layer="ridge")) == ""
    assert random_layer(judged(shares(0.43, 0.56))) == random_layer({}) == ""


def test_texts_that_are_learned_by_heart():
    def report(seen, new, texts=2000, before=None):
        start = None if before is None else shares(0.4, before)
        found = judged(shares(0.4, new), start=start, trained=shares(0.4, seen), texts=texts)
        found["record"]["data"] = {"train_rows": 1000}
        return found

    text = overfits(report(0.62, 0.48))
    assert "0.62" in text and "0.48 for new texts" in text and "distinct texts" in text
    assert overfits(report(0.50, 0.48)) == ""  # the intervals meet
    assert overfits(report(0.62, 0.48, texts=999)) == overfits({}) == ""  # not every text was seen
    assert overfits(report(0.62, 0.48, before=0.40)) == text
    assert overfits(report(0.62, 0.48, before=0.48)) == ""  # what was not trained was not learned
    distances = {"texts": {"rows": 9, "mean": 0.5, "trained": {"rows": 9, "mean": 0.4}}}
    assert more_texts(report(0.50, 0.48) | distances) == ""  # overlap@10, with its interval, decides


@pytest.mark.parametrize(
    ("low", "words"),
    [
        (0.85, "Use it: the model fits"),
        (0.6, "Use it with a reranker: its first 100"),
        (0.3, "Do not use it: the model is in the index's space"),
    ],
)
def test_the_advice_about_an_index_comes_first(low, words):
    found = judged(shares(None, low + 0.02), origin="index")
    assert words in advice(found)[0] and index_advice(from_json(Judgement, found["overlap"])) == advice(found)[0]


def test_texts_of_other_vectors_are_no_reason_to_train_longer():
    """Models whose cosines are all high have one of 0.84 with any vector: the overlap@10 tells."""
    found = judged(shares(None, 0.05), origin="index", cosine=0.84, candidates=240)
    assert "chance" in advice(found)[0] and "order and ids" in advice(found)[0]
    assert "not close enough" in advice(judged(shares(None, 0.15), origin="index", cosine=0.84, candidates=240))[0]


def test_a_teacher_below_its_student_and_confused_classes():
    def report(interval=FOUND, **accuracy):
        scores = {name: {"accuracy": value} for name, value in accuracy.items()}
        intervals = {"student": {"intents": interval}}
        return {
            "record": {"supervised": {"task": "intents", "type": "classification", "rows": 9, "scores": scores}},
            "intervals": intervals,
        }

    text = teacher_below(report(teacher=0.8988, student=0.9538))
    assert "(89.9) is worse than its student (95.4)" in text and "--learning-rate" in text
    assert teacher_below(report(EITHER, teacher=0.8988, student=0.9538)) == ""
    assert teacher_below(report(teacher=0.95, student=0.955)) == teacher_below(report(student=0.9)) == ""
    far = report(LOST, teacher=0.76, student=0.538)
    smaller = {"verdict": {"times_smaller": 1.6}}
    assert "(53.8) is far below its teacher (76.0): take a larger student" in far_below_the_teacher(far | smaller)
    assert far_below_the_teacher(far | {"verdict": {"times_smaller": 1.0}}).endswith("(76.0): label more rows.")
    assert advice(far | smaller) == [far_below_the_teacher(far | smaller)]  # nothing about texts or spaces of vectors
    near = report(LOST, teacher=0.76, student=0.70)
    for silent in (near, report(EITHER, teacher=0.76, student=0.538), report(LOST, student=0.538)):
        assert far_below_the_teacher(silent | smaller) == ""
    pairs = [{"class": "card", "taken_for": "cash", "rows": 7}, {"class": "cash", "taken_for": "card", "rows": 1}]
    assert "card for cash (7 test rows)." in confused_classes({"mistakes": {"rows": 9, "wrong": 8, "confused": pairs}})
    assert confused_classes({"mistakes": {"rows": 9, "wrong": 1, "confused": pairs[1:]}}) == confused_classes({}) == ""


def test_the_teachers_documents():
    def documents(interval):
        return {"changes": {"documents": {"average": interval, "average retrieval": interval}}}

    several = verdict(retrieval=86.7, asymmetric_retrieval=88.5)
    assert "88.5%" in teachers_documents(several | documents(FOUND))
    assert teachers_documents(several | documents(EITHER)) == teachers_documents(several) == ""
    assert "98.9%" in teachers_documents(verdict(asymmetric_retention=98.9) | documents(FOUND))
    assert teachers_documents(verdict(retrieval=86.7, asymmetric_retrieval=86.9) | documents(FOUND)) == ""


@pytest.mark.parametrize(
    ("name", "values", "part"),
    [
        ("distance", [0.9, 0.6, 0.5, 0.45], "still improved at the end (0.5000 to 0.4500)"),
        ("distance", [0.9, 0.45, 0.47, 0.5], "best at step 10 of 30"),
        ("distance", [0.9, 0.6, 0.45, 0.4499], ""),
        ("distance", [0.9, 0.45, 0.5], "best at step 10 of 20"),
        ("distance", [0.9, 0.6, 0.5], ""),
        ("accuracy", [0.1, 0.6, 0.7, 0.8], "still improved"),
        ("accuracy", [0.1, 0.8, 0.7, 0.6], "best at step 10 of 30"),
    ],
)
def test_the_end_of_the_training(name, values, part):
    watched = {"watched": name, "better": "lower" if name == "distance" else "higher"}
    history = [{"step": 10 * step, f"eval/{name}": value} | watched for step, value in enumerate(values)]
    text = still_improves({"history": history}) + best_long_before({"history": history})
    assert (part in text) if part else text == ""
    for rule in (still_improves, best_long_before):
        assert rule({"history": history[:2]}) == rule({}) == ""


def test_a_student_of_higher_overlap_was_not_best_before():
    distances = [0.7, 0.75, 0.8, 0.85]
    watched = {"watched": "distance", "better": "lower"}
    history = [{"step": 10 * step, "eval/distance": value} | watched for step, value in enumerate(distances)]
    assert "best at step 10" in best_long_before({"history": history})
    with_overlap = [
        {**line, "eval/overlap_of_validation_texts": share}
        for line, share in zip(history, (0.1, 0.2, 0.3, 0.5), strict=True)
    ]
    assert best_long_before({"history": with_overlap}) == ""
    with_fewer = [
        {**line, "eval/overlap_of_validation_texts": share}
        for line, share in zip(history, (0.1, 0.5, 0.4, 0.3), strict=True)
    ]
    assert "best at step 10" in best_long_before({"history": with_fewer})


def test_texts_that_were_trained_on_are_nearer():
    def report(seen, texts=2000):
        record = {"training": {"texts": texts}, "data": {"train_rows": 1000}}
        return {"texts": {"rows": 9, "mean": 0.5, "trained": {"rows": 9, "mean": seen}}, "record": record}

    assert "is 0.45 for trained texts, 0.50 for new texts" in more_texts(report(0.45))
    assert (
        more_texts(report(0.49))
        == more_texts(report(0.45, texts=999))
        == more_texts({"texts": {"rows": 9, "mean": 0.5}})
        == ""
    )


def test_the_smallest_vectors_that_keep_the_score():
    report = sample_report()
    every = mean_rows(from_json(list[CompressionScore], report["compression"]["rows"]))
    rows = [row for row in every if row.column == "student"]
    whole = next(row.value for row in rows if (row.precision, row.width) == ("float32", 384))
    kept = [row for row in rows if row.value >= 0.99 * whole]
    least = min(BITS[row.precision] * row.width for row in kept)
    text = smaller_vectors(report)
    assert f": {32 * 384 / least:.0f} times smaller" in text and "vectors" in text
    assert smaller_vectors({}) == ""


def test_of_equally_small_vectors_the_better_are_advised():
    sizes = [("float32", 64, 80.0), ("binary", 64, 79.3), ("binary_rescored", 64, 79.9)]
    rows = [
        {"task": "cranfield", "column": "student", "precision": precision, "width": width, "value": value}
        for precision, width, value in sizes
    ]
    for order in (rows, rows[::-1]):
        text = smaller_vectors({"compression": {"rows": order}})
        assert "binary vectors, rescored" in text and "99.9% of the student's score" in text


def test_all_advice_of_a_report():
    report = sample_report()
    assert advice(report)[-1] == smaller_vectors(report) != "" and advice({}) == []


def test_the_pareto_front():
    points = [(4.8, 97.0), (8.7, 97.4), (8.7, 96.0), (15.6, 97.2), (17.4, 99.0)]
    assert pareto(points, -1) == [(4.8, 97.0), (8.7, 97.4), (17.4, 99.0)]
    assert pareto(points, 1) == [(17.4, 99.0)] and pareto([], 1) == []
