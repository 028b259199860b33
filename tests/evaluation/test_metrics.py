"""The metrics against loops written from their definitions, and against scipy and scikit-learn."""

import math

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.metrics import f1_score, ndcg_score

from distilvec.core.vectors import cosine_pairs
from distilvec.evaluation import metrics


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def test_unit_keeps_zero_rows_and_makes_the_rest_length_one(rng):
    vectors = rng.normal(size=(5, 8)) * 100
    vectors[2] = 0
    lengths = np.linalg.norm(metrics.unit(vectors), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 0, 1, 1], atol=1e-6)


def test_cosine_pairs_is_the_loop(rng):
    first, second = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    loop = [a @ b / math.sqrt(a @ a) / math.sqrt(b @ b) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(cosine_pairs(first, second), loop, atol=1e-6)
    first[0] = 0
    assert cosine_pairs(first, second)[0] == 0


def test_cosines_of_signs_tie_wherever_their_distances_do(rng):
    first, second = np.where(rng.normal(size=(2, 500, 48)) > 0, np.float32(1), np.float32(-1))
    different = np.sum(first != second, axis=1)
    assert len(np.unique(cosine_pairs(first, second))) == len(np.unique(different))
    np.testing.assert_allclose(cosine_pairs(first, second), 1 - different / 24, atol=1e-12)


def test_correlations_are_those_of_ranks_and_values(rng):
    x, y = np.round(rng.normal(size=40), 1), np.round(rng.normal(size=40), 1)
    ranks = np.corrcoef(rankdata(x), rankdata(y))[0, 1]
    assert metrics.correlations(x, y) == pytest.approx({"spearman": ranks, "pearson": np.corrcoef(x, y)[0, 1]})
    assert metrics.correlations(x, np.exp(3 * x))["spearman"] == pytest.approx(1)
    for constant in ((np.ones(4), np.arange(4.0)), (np.arange(4.0), np.ones(4))):
        assert all(math.isnan(value) for value in metrics.correlations(*constant).values())


@pytest.mark.parametrize("decimals", [1, 6])
def test_pair_metrics_are_the_loops_with_and_without_ties(rng, decimals):
    similarities, positive = np.round(rng.normal(size=60), decimals), rng.random(60) < 0.4
    thresholds = [math.inf, *similarities]
    accuracies = [np.mean((similarities >= t) == positive) for t in thresholds]
    f1s = [f1_score(positive, similarities >= t, zero_division=0) for t in thresholds]
    assert metrics.best_accuracy(similarities, positive) == pytest.approx(max(accuracies))
    assert metrics.best_f1(similarities, positive) == pytest.approx(max(f1s))


def test_rows_of_equal_similarity_fall_on_one_side():
    assert metrics.best_accuracy(np.zeros(4), np.array([True, False, False, False])) == 0.75


def loop_retrieval(ranking, gains, k):
    """nDCG@k, recall@k, MRR@k of one query from a list of document rows and a dictionary of gains."""
    dcg = sum(gains.get(d, 0) / math.log2(rank + 2) for rank, d in enumerate(ranking[:k]))
    ideal = sum(g / math.log2(rank + 2) for rank, g in enumerate(sorted(gains.values(), reverse=True)[:k]))
    relevant = {d for d, g in gains.items() if g > 0}
    ranks = [rank + 1 for rank, d in enumerate(ranking[:k]) if d in relevant]
    return dcg / ideal, len(ranks) / len(relevant), 1 / ranks[0] if ranks else 0.0


@pytest.mark.parametrize("k", [1, 3, 10])
def test_retrieval_metrics_are_the_loops(rng, k):
    columns = 25
    found = np.array([rng.permutation(columns)[:10] for _ in range(8)])
    judged = [
        {int(d): float(g) for d, g in zip(rng.permutation(columns)[:6], [3, 2, 1, 1, 0, 0], strict=True)}
        for _ in range(8)
    ]
    pairs = np.array([(q, d) for q, gains in enumerate(judged) for d in gains])
    gains = metrics.found_gains(found, columns, pairs, np.array([g for gains in judged for g in gains.values()]))
    ideal = np.array([list(g.values()) for g in judged])
    expected = np.array([loop_retrieval(list(row), g, k) for row, g in zip(found, judged, strict=True)])
    np.testing.assert_allclose(metrics.ndcg(gains, ideal, k), expected[:, 0])
    np.testing.assert_allclose(metrics.recall(gains, ideal, k), expected[:, 1])
    np.testing.assert_allclose(metrics.reciprocal_rank(gains, k), expected[:, 2])


def test_ndcg_is_scikit_learns_on_whole_rankings(rng):
    gains, scores = rng.integers(0, 4, size=(5, 12)).astype(float), rng.normal(size=(5, 12))
    ranked = np.take_along_axis(gains, np.argsort(-scores, axis=1), axis=1)
    for k in (1, 5, 12):
        assert metrics.ndcg(ranked, gains, k).mean() == pytest.approx(ndcg_score(gains, scores, k=k))


def test_negative_gains_count_as_not_relevant():
    found, ideal = np.array([[-1.0, 1.0]]), np.array([[1.0, -1.0]])
    assert metrics.ndcg(found, ideal, 10)[0] == pytest.approx(1 / math.log2(3))
    assert metrics.recall(found, ideal, 1)[0] == 0 and metrics.reciprocal_rank(found, 10)[0] == 0.5
