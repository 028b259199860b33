"""Tolerances of exported models."""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.evaluation.parity import Parity, Tolerance

INT8 = Tolerance(mean_cosine=0.99, ndcg_loss=0.5, labels=0.97)


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


def test_a_loss_within_its_interval_is_no_problem():
    assert parity().problems(INT8) == []
    assert parity(ndcg=61.8, ndcg_low=-0.3, ndcg_high=-0.1).problems(INT8) == [], "sure, and allowed"


@pytest.mark.parametrize("high", [-0.1, np.nan])
def test_a_loss_that_is_sure_or_not_a_number_is_a_problem(high):
    (problem,) = parity(ndcg_high=high, ndcg=np.nan if np.isnan(high) else 60.6).problems(INT8)
    assert "search" in problem


def test_vectors_that_differ_are_a_problem_whatever_the_search_finds():
    assert len(parity(mean_cosine=0.98).problems(INT8)) == 1
