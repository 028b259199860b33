"""Whether a stage that learns from clicks is kept: by pairs that it has not seen, and by what it costs elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distilvec.core.similarity import Similarity
from distilvec.evaluation.metrics import found_gains, ndcg
from distilvec.evaluation.search import top_k
from distilvec.evaluation.significance import difference_interval

Array = np.ndarray[Any, Any]

DEPTH = 10
MOST_OVERLAP_LOST = 0.02  # of overlap@10 on stored texts


@dataclass(frozen=True)
class PairScore:
    """nDCG@10 of clicked documents before and after a stage, over so many queries."""

    queries: int
    before: float
    after: float


@dataclass(frozen=True)
class PairJudgement:
    """What validation pairs say of a stage, and overlap@10 of held-out stored texts before and after it.

    `low` and `high` bound the paired difference of nDCG@10 at 95%; without an interval they are 0. `seen` has the
    documents that other queries were trained on, `unseen` the others; None where there are none. `repeats_search`: they
    are clicks on an old search, which do not count by the chance that their position is looked at.
    """

    stage: str
    score: PairScore
    low: float
    high: float
    overlap_before: float
    overlap_after: float
    seen: PairScore | None
    unseen: PairScore | None
    repeats_search: bool

    @property
    def is_gain(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0

    @property
    def holds_overlap(self) -> bool:
        """Whether overlap@10 falls by two points at most."""
        return self.overlap_before - self.overlap_after <= MOST_OVERLAP_LOST

    @property
    def is_kept(self) -> bool:
        """Whether the stage is kept."""
        return self.is_gain and self.holds_overlap


def scores_by_query(queries: Array, documents: Array, answers: Array, similarity: Similarity) -> Array:
    """nDCG@10 of each query's answers among all documents, float64 [queries]; 0 without an answer.

    `queries` [queries, dim], `documents` [documents, dim]; `answers` int64 [pairs, 2] are rows of both.
    """
    ranked = top_k(queries, documents, DEPTH, similarity=similarity)[0]
    gains = found_gains(ranked, len(documents), answers, np.ones(len(answers)))
    counts = np.bincount(answers[:, 0], minlength=len(queries))
    ideal = np.arange(DEPTH) < counts[:, None]
    return ndcg(gains, ideal.astype(np.float64), DEPTH)


def compare_on_pairs(
    before: Array, after: Array, documents: Array, answers: Array, is_seen: Array, similarity: Similarity
) -> tuple[PairScore, tuple[float, float], PairScore | None, PairScore | None]:
    """Compare two models' vectors of queries: the score of all answers, its interval, and those seen and unseen."""
    scores: list[PairScore | None] = []
    interval = None
    for chosen in (np.ones(len(answers), dtype=np.bool_), is_seen, ~is_seen):
        group = answers[chosen]
        rows = np.unique(group[:, 0])
        if not len(rows):
            scores.append(None)
            continue
        first = scores_by_query(before, documents, group, similarity)[rows]
        second = scores_by_query(after, documents, group, similarity)[rows]
        scores.append(PairScore(len(rows), float(first.mean()), float(second.mean())))
        if interval is None:
            interval = difference_interval([second - first])
    score, seen, unseen = scores
    assert score is not None  # a validation query has an answer
    low, high = (0.0, 0.0) if interval is None else (interval.low / 100, interval.high / 100)
    return score, (low, high), seen, unseen
