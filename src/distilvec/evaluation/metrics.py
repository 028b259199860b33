"""Metrics as pure functions of vectors and judgements. Values are in 0..1 (correlations in -1..1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import roc_curve

from distilvec.core.similarity import Similarity
from distilvec.core.vectors import cosine_pairs

Array = np.ndarray[Any, Any]


def unit(vectors: Array) -> Array:
    """Return the rows scaled to length 1, float32 [rows, dim]. A zero row stays zero: its cosine with anything is 0."""
    vectors = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1), dtype=np.float32)


def similarity_pairs(first: Array, second: Array, similarity: Similarity) -> Array:
    """Similarity of row i of `first` with row i of `second`, float64 [rows]; euclidean is the negative distance."""
    if similarity == "dot":
        return np.asarray(np.einsum("rd,rd->r", first, second, dtype=np.float64))
    if similarity == "euclidean":
        return np.asarray(-np.linalg.norm(first.astype(np.float64) - second, axis=1))
    return cosine_pairs(first, second)


def ranking_vectors(queries: Array, documents: Array, similarity: Similarity) -> tuple[Array, Array]:
    """Vectors whose products rank documents as the similarity does, float32.

    The squared distance is |q|^2 - 2 q·d + |d|^2. The query's length changes no order, so a further dimension with
    -|d|^2 / 2 turns a search for the least distance into one for the greatest product.
    """
    if similarity == "dot":
        return np.asarray(queries, dtype=np.float32), np.asarray(documents, dtype=np.float32)
    if similarity == "cosine":
        return unit(queries), unit(documents)
    halves = np.einsum("rd,rd->r", documents, documents, dtype=np.float64) / 2
    longer = np.concatenate([documents, -halves[:, None]], axis=1)
    return np.pad(queries, ((0, 0), (0, 1)), constant_values=1).astype(np.float32), longer.astype(np.float32)


def correlations(similarities: Array, gold: Array) -> dict[str, float]:
    """Spearman's rank correlation, ties by mean rank, and Pearson's; NaN if either input is constant.

    Both are float64 [rows].
    """
    constant = any(len(values) < 2 or np.ptp(values) == 0 for values in (similarities, gold))
    functions = {"spearman": spearmanr, "pearson": pearsonr}
    return {
        name: float("nan") if constant else float(metric(similarities, gold)[0]) for name, metric in functions.items()
    }


def best_accuracy(similarities: Array, positive: Array) -> float:
    """Highest accuracy over all thresholds, infinity included; rows at or above a threshold are called positive.

    `similarities` float64 [rows], `positive` bool [rows] with both values; the result is 0..1.
    """
    true, false, matches = _counts_by_threshold(similarities, positive)
    return float((true + len(positive) - matches - false).max() / len(positive))


def best_f1(similarities: Array, positive: Array) -> float:
    """Highest F1 of the positive class over all thresholds; inputs and thresholds as in `best_accuracy`."""
    true, false, matches = _counts_by_threshold(similarities, positive)
    return float((2 * true / (true + false + matches)).max())


def found_gains(ranked: Array, documents: int, judged: Array, gains: Array) -> Array:
    """Gain of every ranked document, 0 if not judged, float64 [queries, ranked].

    `judged` int64 [pairs, 2] holds distinct pairs of query row and document row, `gains` [pairs] their gains.
    """
    table = csr_array((np.asarray(gains, dtype=np.float64), tuple(judged.T)), shape=(len(ranked), documents))
    return np.asarray(table[np.arange(len(ranked))[:, None], ranked].toarray())


def ndcg(ranked_gains: Array, ideal: Array, k: int) -> Array:
    """nDCG@k of every query as trec_eval's ndcg_cut: gain (not 2^gain - 1) over log2(rank + 1), float64 [queries].

    `ranked_gains` [queries, ranks] holds the gains in ranking order. `ideal` [queries, judged] holds all gains
    of a query in any order, padded with 0. A query without a positive gain has 0.
    """
    best = _discounted(-np.sort(-ideal, axis=1), k)
    return np.asarray(_discounted(ranked_gains, k) / np.where(best > 0, best, 1))


def recall(ranked_gains: Array, ideal: Array, k: int) -> Array:
    """Share of a query's relevant documents (gain above 0) among its first k, float64 [queries]; 0 if it has none."""
    return np.asarray(np.sum(ranked_gains[:, :k] > 0, axis=1) / np.maximum(np.sum(ideal > 0, axis=1), 1))


def reciprocal_rank(ranked_gains: Array, k: int) -> Array:
    """1 / rank of the first relevant document among the first k, 0 if there is none, float64 [queries]."""
    hits = ranked_gains[:, :k] > 0
    return np.where(hits.any(axis=1), 1.0 / (np.argmax(hits, axis=1) + 1), 0.0)


def class_labels(classes: int) -> list[int]:
    """Return `labels` for scikit-learn's metrics of [rows, classes] of zeros and ones.

    It reads a single column as labels of two classes, of which 0 is none of ours.
    """
    return [1] if classes == 1 else list(range(classes))


def _discounted(gains: Array, k: int) -> Array:
    gains = np.maximum(gains[:, :k], 0)
    return np.asarray(gains @ (1 / np.log2(np.arange(2, gains.shape[1] + 2))))


def _counts_by_threshold(similarities: Array, positive: Array) -> tuple[Array, Array, int]:
    """True and false positives at every distinct threshold, and the number of positive rows."""
    matches = int(np.sum(positive))
    false, true, _ = roc_curve(positive, similarities, drop_intermediate=False)
    return np.rint(true * matches), np.rint(false * (len(positive) - matches)), matches
