"""Tolerances of exported models."""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.evaluation.parity import Parity, Tolerance

INT8 = Tolerance(mean_cosine=0.99, overlap=0.8, labels=0.97)


def parity(**changes):
    figures = {
        "task": "search",
        "queries": 60,
        "documents": 600,
        "mean_cosine": 0.999,
        "min_cosine": 0.99,
        "similarity_error": 0.01,
        "overlap": 0.9,
        "ndcg": 60.6,
        "pytorch_ndcg": 62.0,
        "ndcg_low": -3.0,
        "ndcg_high": 0.2,
        "labels": None,
        "megabytes": 6.0,
        "pytorch_megabytes": 23.0,
        "latency_ms": 1.0,
        "pytorch_latency_ms": 2.0,
    }
    return Parity(**{**figures, **changes})


def test_the_score_of_a_few_dozen_queries_decides_nothing():
    """An int8 form of README's own example, as measured: the vectors are PyTorch's, fourteen queries are few."""
    assert parity(queries=14, ndcg=37.07, pytorch_ndcg=42.76, ndcg_low=-13.5, ndcg_high=-0.1).problems(INT8) == []


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"mean_cosine": 0.98}, "mean cosine 0.98"),
        ({"overlap": 0.79}, "overlap@10 0.79"),
        ({"labels": 0.5}, "50.0% equal labels"),
        ({"mean_cosine": np.nan}, "mean cosine nan"),
        ({"overlap": np.nan}, "overlap@10 nan"),
    ],
)
def test_other_vectors_rankings_or_labels_are_a_problem(figures, named):
    (problem,) = parity(**figures).problems(INT8)
    assert named in problem


@pytest.mark.parametrize(
    ("queries", "labels", "is_refused"), [(14, 13 / 14, False), (14, 11 / 14, True), (100, 0.9, True)]
)
def test_one_of_a_few_labels_decides_nothing(queries, labels, is_refused):
    assert bool(parity(queries=queries, labels=labels).problems(INT8)) == is_refused
