"""Figures of classes and scores, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.data.examples import Labelled
from distilvec.evaluation.diagnostics import (
    as_scores,
    class_metrics,
    score_metrics,
    several_classes_metrics,
    supervised_report,
)
from distilvec.evaluation.mistakes import ClassMistakes, WrongText, find_mistakes
from distilvec.report.sections import mistakes as page_section
from distilvec.report.values import Report


def test_class_metrics_by_hand():
    gold, predicted = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 0, 1])
    found = class_metrics(predicted, gold)
    precision, recall = [2 / 3, 1 / 3, 0], [2 / 3, 1 / 2, 0]
    f1 = [2 * p * r / (p + r) if p + r else 0 for p, r in zip(precision, recall, strict=True)]
    expected = {
        "accuracy": 3 / 6,
        "macro_precision": sum(precision) / 3,
        "macro_recall": sum(recall) / 3,
        "macro_f1": sum(f1) / 3,
    }
    assert found == pytest.approx(expected)


def test_score_metrics_and_constant_predictions():
    gold = np.array([0.0, 0.2, 0.5, 1.0])
    assert score_metrics(gold**2, gold)["spearman"] == pytest.approx(1.0)
    assert score_metrics(2 - gold, gold)["pearson"] == pytest.approx(-1.0)
    assert score_metrics(np.ones(4), gold) == {"spearman": None, "pearson": None}


def test_every_model_is_scored_on_the_same_examples_in_their_order(tiny_model):
    model, task = SentenceTransformer(str(tiny_model), device="cpu"), TaskInfo("classification", 2)
    heads = [TaskHead(32, task), TaskHead(32, task)]
    texts = [f"text {'long ' * (n % 7)}{n}" for n in range(40)]
    with torch.no_grad():
        pooled = model[1](model[0](model.preprocess(texts)))["sentence_embedding"]
        gold = heads[0](pooled).argmax(1).numpy()
    models = {"teacher": (model, heads[0]), "student": (model, heads[1])}
    report, samples, logits = supervised_report("toy", models, Labelled([(t,) for t in texts], gold))
    assert np.array_equal(samples["teacher"]["toy"].predicted, gold) and samples["student"]["toy"].metric == "accuracy"
    assert as_scores(report)["student"][0].value == 100 * report.scores["student"]["accuracy"]
    assert report.rows == 40 and report.type == "classification" and list(report.scores) == ["teacher", "student"]
    assert report.scores["teacher"]["accuracy"] == 1.0
    assert np.array_equal(logits.argmax(1), samples["student"]["toy"].predicted)
    assert report.scores["student"]["accuracy"] == pytest.approx(
        float((heads[1](pooled).argmax(1).numpy() == gold).mean())
    )


def test_mistakes_by_hand():
    # classes: a, b, c, d; d has no test row. Rows 1 and 3 are wrong, a taken for b and b for c.
    logits = np.log(np.array([
        [0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.05, 0.05, 0.8, 0.1], [0.1, 0.1, 0.7, 0.1]
    ]))  # fmt: skip
    inputs = [("one",), ("two",), ("three",), ("four",), (("five", "and"),)]
    test = Labelled(inputs, np.array([0, 0, 1, 1, 2]))
    found = find_mistakes(logits, test, ["a", "b", "c", "d"])
    assert (found.rows, found.wrong) == (5, 2)
    assert [(one.text, one.name, one.taken_for) for one in found.texts] == [
        ("four", "b", "c"),
        ("two", "a", "b"),
    ]
    assert [one.probability for one in found.texts] == pytest.approx([0.8, 0.6])
    lines = {one.name: one for one in found.classes}
    assert list(lines) == ["b", "a", "c"] and lines["b"] == ClassMistakes("b", 2, 0.5, 0.5, 0.5, "c")
    assert lines["c"].recall == 1 and lines["c"].precision == 0.5 and lines["c"].most_taken_for is None
    assert {(one.name, one.taken_for, one.rows) for one in found.confused} == {
        ("a", "b", 1),
        ("b", "c", 1),
    }
    told, texts = page_section.section(Report(mistakes=found)).blocks
    assert told.content[0].content == "The student is wrong on 2 of 5 test examples."
    assert texts.content.lines[0] == ["four", "b", "c", "80.0"]
    right = find_mistakes(logits[[0, 2]], Labelled([("one",), ("three",)], np.array([0, 1])), ["a", "b", "c", "d"])
    assert right.wrong == 0 and right.confused == right.texts == []


def test_mistakes_where_a_text_has_several_classes():
    logits = np.array([[3.0, -2, -1], [2, 1, -3], [-1, -1, -1]])
    gold = np.array([[1, 0, 0], [1, 0, 1], [0, 0, 0]], dtype=np.float32)
    found = find_mistakes(logits, Labelled([("one",), ("two",), ("three",)], gold), ["a", "b", "c"])
    assert (found.rows, found.wrong, found.confused) == (3, 1, [])
    worst = float(1 / (1 + np.exp(-3)))
    assert found.texts == [WrongText("two", "a, c", "a, b", pytest.approx(worst))]
    recall = {line.name: line.recall for line in found.classes}
    assert recall == {"a": 1.0, "c": 0.0}, "b has no test row"
    assert several_classes_metrics(logits > 0, gold) == pytest.approx(
        {"accuracy": 2 / 3, "f1": 2 / 3, "macro_f1": 1 / 3}
    )


def test_a_single_class_that_a_text_has_or_has_not():
    logits = np.array([[2.0], [-1.0], [-3.0], [-1.0]])
    gold = np.array([[1], [0], [1], [0]], dtype=np.float32)
    assert several_classes_metrics(logits > 0, gold) == pytest.approx(
        {"accuracy": 3 / 4, "f1": 2 / 3, "macro_f1": 2 / 3}
    )
    found = find_mistakes(logits, Labelled([("one",), ("two",), ("three",), ("four",)], gold), ["a"])
    assert found.classes == [ClassMistakes("a", 2, 1.0, 0.5, pytest.approx(2 / 3))]
    assert [text.text for text in found.texts] == ["three"]
