"""Pure functions from vectors and judgements to figures. Values lie in 0..1 (correlations -1..1); nothing here is scaled."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

Array = np.ndarray[Any, Any]


def unit(vectors: Array) -> Array:
    """Rows scaled to length 1, float32 [rows, width]; a zero row stays zero, so that its cosine to anything is 0."""
    vectors = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1), dtype=np.float32)


def cosine_pairs(first: Array, second: Array) -> Array:
    """Cosine of row i of `first` with row i of `second`, float64 [rows]; 0 where either is zero.

    Vectors are not rounded to length 1 before, so that products of whole numbers (int8, signs) stay exact and equal ones tie.
    """
    products, left, right = (
        np.einsum("rw,rw->r", a, b, dtype=np.float64) for a, b in ((first, second), (first, first), (second, second))
    )
    squares = left * right
    return np.asarray(products / np.sqrt(np.where(squares > 0, squares, 1)))


# -- graded similarity -----------------------------------------------------------------------------------------------


def spearman(similarities: Array, gold: Array) -> float:
    """Spearman's rank correlation, ties by mean rank; NaN if either side is constant."""
    if _constant(similarities) or _constant(gold):
        return float("nan")
    return float(spearmanr(similarities, gold).statistic)


def pearson(similarities: Array, gold: Array) -> float:
    """Pearson's correlation; NaN if either side is constant."""
    if _constant(similarities) or _constant(gold):
        return float("nan")
    return float(pearsonr(similarities, gold).statistic)


# -- pairs that match or not -----------------------------------------------------------------------------------------


def average_precision(similarities: Array, positive: Array) -> float:
    """Area under the precision-recall steps (scikit-learn's definition: tied rows enter together)."""
    return float(average_precision_score(positive, similarities))


def best_accuracy(similarities: Array, positive: Array) -> tuple[float, float]:
    """The best accuracy any threshold reaches, and that threshold: rows at or above it are called positive.

    Every distinct similarity is tried, and infinity (all negative); the highest threshold wins among equals. Rows of
    equal similarity always fall on the same side.
    """
    thresholds, true_positives, called = _threshold_counts(similarities, positive)
    negatives = len(positive) - int(np.sum(positive))
    correct = true_positives + negatives - (called - true_positives)
    best = int(np.argmax(correct))
    return float(correct[best] / len(positive)), float(thresholds[best])


def best_f1(similarities: Array, positive: Array) -> tuple[float, float]:
    """The best F1 of the positive class any threshold reaches, and that threshold (as in `best_accuracy`)."""
    thresholds, true_positives, called = _threshold_counts(similarities, positive)
    values = 2 * true_positives / (called + int(np.sum(positive)))
    best = int(np.argmax(values))
    return float(values[best]), float(thresholds[best])


# -- classes ---------------------------------------------------------------------------------------------------------


def accuracy(predicted: Array, gold: Array) -> float:
    """Share of rows whose predicted label is the right one."""
    return float(accuracy_score(gold, predicted))


def macro_f1(predicted: Array, gold: Array) -> float:
    """Mean of the F1 of every label that occurs in `gold` or `predicted`, each label counting the same."""
    return float(f1_score(gold, predicted, average="macro", zero_division=0))


# -- ranked documents ------------------------------------------------------------------------------------------------


def found_gains(found: Array, columns: int, judged: Array, gains: Array) -> Array:
    """The gain of every found document, 0 where it was not judged, float64 [queries, found].

    `judged` holds distinct pairs [pairs, 2] of query row and document row, `gains` [pairs] their gains; `columns` is
    the number of documents.
    """
    keys = judged[:, 0].astype(np.int64) * columns + judged[:, 1]
    order = np.argsort(keys)
    keys, gains = keys[order], np.asarray(gains, dtype=np.float64)[order]
    wanted = np.arange(len(found))[:, None] * columns + found
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, gains[places], 0.0)


def ndcg(found: Array, ideal: Array, k: int) -> Array:
    """nDCG@k of every query, as trec_eval's ndcg_cut: the gain itself (not 2^gain - 1) over log2(rank + 1), float64 [queries].

    `found` [queries, ranks] holds the gains in the order found, `ideal` [queries, judged] all gains of the query, in any
    order, padded with 0. Queries without a positive gain get 0.
    """
    best = _discounted(-np.sort(-ideal, axis=1), k)
    return np.asarray(_discounted(found, k) / np.where(best > 0, best, 1))


def recall(found: Array, ideal: Array, k: int) -> Array:
    """Share of a query's relevant documents (gain above 0) among its first k, float64 [queries]; 0 if it has none."""
    relevant = np.sum(ideal > 0, axis=1)
    return np.asarray(np.sum(found[:, :k] > 0, axis=1) / np.maximum(relevant, 1))


def reciprocal_rank(found: Array, k: int) -> Array:
    """1 / rank of the first relevant document among the first k, 0 if there is none, float64 [queries]."""
    hits = found[:, :k] > 0
    return np.where(hits.any(axis=1), 1.0 / (np.argmax(hits, axis=1) + 1), 0.0)


def _discounted(gains: Array, k: int) -> Array:
    gains = np.maximum(gains[:, :k], 0)
    return np.asarray(gains @ (1 / np.log2(np.arange(2, gains.shape[1] + 2))))


def _threshold_counts(similarities: Array, positive: Array) -> tuple[Array, Array, Array]:
    """Thresholds from high to low (infinity first) with the true positives and all rows at or above each."""
    order = np.argsort(-similarities, kind="stable")
    ranked, hits = similarities[order], np.cumsum(np.asarray(positive, dtype=np.int64)[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    return np.append(np.inf, ranked[ends]), np.append(0, hits[ends]), np.append(0, ends + 1)


def _constant(values: Array) -> bool:
    return bool(len(values) < 2 or np.ptp(values) == 0)
