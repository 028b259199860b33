"""Ranking agreement against whole rankings made with Python's sort, and by hand."""

import dataclasses
from dataclasses import astuple

import numpy as np
import pytest
from refusals import refused
from scipy.spatial.distance import cdist
from scipy.stats import kendalltau

from distilvec.core.errors import DistilvecError
from distilvec.evaluation import agreement
from distilvec.evaluation.agreement import TaskRankings, ranking_agreement
from distilvec.evaluation.evaluator import EmbeddingCache
from distilvec.evaluation.tasks import make_retrieval
from distilvec.report.json_values import from_json, to_json

DOCUMENTS = {f"d{i:03}": f"document {i} " + "x" * 200 for i in range(60)} | {"d999": " "}
QUERIES = {f"q{i}": f"query {i}" for i in range(9)}
TASK = make_retrieval(
    "search", DOCUMENTS, QUERIES, {(f"q{i}", f"d{j:03}"): j % 2 for i in range(9) for j in range(2 * i, 2 * i + 20)}
)


class Mixed:
    """Vectors between those of two embedders, so that rankings agree in part."""

    def __init__(self, first, second, share):
        self.name, self.first, self.second, self.share = "mixed", first, second, share
        self.similarity = first.similarity

    def embed(self, texts, role="document"):
        return self.first.embed(texts, role) + self.share * self.second.embed(texts, role)


def make_columns(embedder, similarity="cosine"):
    teacher = embedder("teacher", similarity=similarity)
    student = Mixed(teacher, embedder("other", seed="o"), 0.5)
    return {"teacher": (teacher, teacher), "asymmetric": (student, teacher), "student": (student, student)}


@pytest.fixture
def columns(embedder):
    return make_columns(embedder)


def rankings(task, pair):
    """Every query's whole ranking of document rows, from float64 similarities and a plain sort."""
    query, document = pair
    vectors, asked = np.float64(document.embed(task.documents)), np.float64(query.embed(task.queries, "query"))
    if document.similarity == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    cosines = -cdist(asked, vectors) if document.similarity == "euclidean" else asked @ vectors.T
    cosines[:, [not text.strip() for text in task.documents]] = -np.inf
    return [sorted(range(len(row)), key=lambda place, row=row: (-row[place], place)) for row in cosines], cosines


def agreements(task, ours, theirs):
    """Overlap at 10 and tau over the union of both top-10 lists, from whole rankings."""
    found = []
    for left, right in zip(rankings(task, ours)[0], rankings(task, theirs)[0], strict=True):
        union = sorted({*left[:10], *right[:10]})
        tau = kendalltau([left.index(d) for d in union], [right.index(d) for d in union]).statistic
        found.append((len({*left[:10]} & {*right[:10]}) / min(10, len(left)), tau))
    return np.array(found)


@pytest.mark.parametrize(
    ("cells", "similarity"), [(100, "cosine"), (4_000_000, "cosine"), (100, "dot"), (100, "euclidean")]
)
def test_figures_are_those_of_whole_rankings(embedder, monkeypatch, cells, similarity):
    columns = make_columns(embedder, similarity)
    monkeypatch.setattr(agreement, "_SCORES_AT_ONCE", cells)
    report = ranking_agreement(TASK, columns, EmbeddingCache())
    for name in ("asymmetric", "student"):
        expected = agreements(TASK, columns[name], columns["teacher"])
        assert 0.2 < expected[:, 0].mean() < 0.95  # the case is not a trivial one
        found = report.models[name]
        assert (found.overlap, found.overlap_std) == pytest.approx((expected[:, 0].mean(), expected[:, 0].std()))
        assert (found.kendall_tau, found.kendall_tau_std) == pytest.approx(
            (expected[:, 1].mean(), expected[:, 1].std())
        )


def test_lists_by_hand(embedder):
    """Three documents on a circle: the student swaps the last two, so 1 of 3 pairs is out of order."""
    teacher = embedder(
        "teacher",
        known={"q": np.array([1.0, 0]), "a": np.array([1, 0.0]), "b": np.array([1, 1.0]), "c": np.array([0, 1.0])},
    )
    student = embedder(
        "student",
        known={"q": np.array([1.0, 0]), "a": np.array([2, 0.0]), "b": np.array([-1, 0]), "c": np.array([0, 5.0])},
    )
    teacher.width = student.width = 2
    task = make_retrieval("three", {"3": "a", "2": "b", "1": "c"}, {"q": "q"}, {("q", "1"): 1, ("q", "2"): 0})
    report = ranking_agreement(task, {"teacher": (teacher, teacher), "student": (student, student)}, EmbeddingCache())
    assert astuple(report.models["student"]) == pytest.approx((1, 1 / 3, 0, 0))
    listed = report.queries.rows[0]
    assert listed.found == {"teacher": ["3", "2", "1"], "student": ["3", "1", "2"]} and listed.relevant == ["1"]


def test_the_teacher_agrees_with_itself_and_reversed_scores_do_not(embedder, columns):
    teacher = columns["teacher"][0]
    opposite = embedder("opposite", known={text: -teacher.vector(text) for text in TASK.queries})
    report = ranking_agreement(
        TASK,
        {"teacher": (teacher, teacher), "same": (teacher, teacher), "reversed": (opposite, teacher)},
        EmbeddingCache(),
    )
    assert astuple(report.models["same"]) == pytest.approx((1, 1, 0, 0))
    # -1 needs the true places: cut off at 11, the ten documents outside either list would tie
    assert report.models["reversed"].overlap == 0 and report.models["reversed"].kendall_tau == pytest.approx(-1)


def test_equal_scores_and_empty_documents_keep_one_order(embedder):
    """Everything ties: both columns rank in the task's order, empty documents last, so they agree in full."""
    one = np.ones(16)
    documents = {f"{i:02}": " " if i % 3 == 0 else f"t{i}" for i in range(30)}
    task = make_retrieval("ties", documents, {"q": "q"}, {("q", "01"): 1})
    equal = [embedder(name, known=dict.fromkeys([*documents.values(), "q"], one)) for name in ("a", "b")]
    report = ranking_agreement(task, {"teacher": (equal[0],) * 2, "student": (equal[1],) * 2}, EmbeddingCache())
    assert report.models["student"].overlap == 1 and report.models["student"].kendall_tau == pytest.approx(1)
    few = make_retrieval("few", {"1": "t1", "2": "", "3": "", "4": "t2"}, {"q": "q"}, {("q", "1"): 1})
    models = {"teacher": (equal[0],) * 2, "student": (embedder("s"),) * 2}
    (row,) = ranking_agreement(few, models, EmbeddingCache()).queries.rows
    assert row.found["teacher"] == ["4", "1", "3", "2"] and row.found["student"][2:] == ["3", "2"]


def test_queries_show_what_each_model_found_and_what_was_judged(columns):
    report = ranking_agreement(TASK, columns, EmbeddingCache())
    listed = report.queries
    assert listed.count == len(listed.rows) == 9
    losses = [row.scores["student"] - row.scores["teacher"] for row in listed.rows]
    assert losses == sorted(losses)
    for row in listed.rows:
        query = TASK.queries.index(row.query)
        gains = {TASK.document_ids[d]: gain for (q, d), gain in zip(TASK.judged, TASK.gains, strict=True) if q == query}
        for name, found in row.found.items():
            order, _ = rankings(TASK, columns[name])
            assert found == [TASK.document_ids[d] for d in order[query][:10]]
        shown = {one for found in row.found.values() for one in found}
        assert set(row.relevant) == {one for one in shown if gains.get(one, 0) > 0}
        assert shown <= set(listed.documents)
    assert any(row.relevant for row in listed.rows) and {*map(len, listed.documents.values())} == {160}
    assert from_json(TaskRankings, to_json(report)) == report


def test_nothing_is_embedded_twice(embedder):
    teacher, student, memo = embedder("teacher"), embedder("student", seed="s"), EmbeddingCache()
    ranking_agreement(
        TASK, {"teacher": (teacher, teacher), "asymmetric": (student, teacher), "student": (student, student)}, memo
    )
    for model in (teacher, student):
        assert len(model.asked) == len(set(model.asked)) == 60 + 9


def test_one_document_is_full_agreement(embedder):
    task = make_retrieval("one", {"1": "a"}, {"q": "q"}, {("q", "1"): 1})
    report = ranking_agreement(
        task, {"teacher": (embedder("t"),) * 2, "student": (embedder("s", seed="s"),) * 2}, EmbeddingCache()
    )
    assert report.models["student"].overlap == 1 and report.models["student"].kendall_tau == 1


def test_what_cannot_be_compared_is_named(embedder, columns):
    task = dataclasses.replace(TASK, name="cranfield")
    with refused("evaluation.columns", "found teacher"):
        ranking_agreement(task, {"teacher": columns["teacher"]}, EmbeddingCache())
    with pytest.raises(DistilvecError, match="found student"):
        ranking_agreement(task, {"student": columns["student"]}, EmbeddingCache())
    narrow = embedder("narrow", width=8)
    with refused("model", "'narrow'"):
        ranking_agreement(task, {**columns, "asymmetric": (narrow, columns["teacher"][0])}, EmbeddingCache())
