"""How fast a model embeds texts, measured on long and on short ones: for estimates before the work.

A token of a long text takes longer than one of a short text (attention), and texts differ in length by a factor of 50.
So seconds are added up token by token; the seconds of a token are interpolated between both measured lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.batch import Text
from distilvec.core.spread import spread_items
from distilvec.data.corpus import Corpus
from distilvec.teachers.model_embedder import ModelEmbedder

SAMPLE_TEXTS = 2048  # whose lengths are looked at
MEASURED_TOKENS = 1024  # that are embedded to measure a rate
SHORT_QUANTILE = 0.25
Lengths = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PerToken:
    """A quantity for each token (seconds, bytes) of texts of two lengths, the shorter first."""

    lengths: tuple[int, int]
    values: tuple[float, float]

    def total(self, lengths: Lengths) -> float:
        """The quantity for texts of these lengths; beyond both measured lengths a token counts as at the nearer one."""
        return float((lengths * np.interp(lengths, self.lengths, self.values)).sum())

    def mean(self, lengths: Lengths) -> float:
        """The quantity for one text, on average over a sample of lengths."""
        return self.total(lengths) / max(1, len(lengths))


def sample_rows(corpus: Corpus) -> Rows:
    """At most SAMPLE_TEXTS rows of the corpus, drawn by a fixed seed, sorted, int64."""
    return np.sort(np.random.default_rng(0).choice(len(corpus), min(SAMPLE_TEXTS, len(corpus)), replace=False))


def measured_rows(lengths: Lengths) -> tuple[Rows, Rows]:
    """Rows of short and of long texts with about MEASURED_TOKENS tokens each, out of a sample's lengths."""
    by_length = np.argsort(lengths, kind="stable")
    from_a_quarter = by_length[int(SHORT_QUANTILE * len(by_length)) :]
    return _first_rows(from_a_quarter, lengths), _first_rows(by_length[::-1], lengths)


def _first_rows(rows: Rows, lengths: Lengths) -> Rows:
    """The first rows with at most MEASURED_TOKENS tokens together, at least one row."""
    tokens = np.cumsum(lengths[rows])
    count = int(np.searchsorted(tokens, MEASURED_TOKENS, side="right"))
    return rows[: max(1, count)]


def measure_rate(compute: Callable[[Rows], Any], lengths: Lengths) -> tuple[PerToken, list[Any]]:
    """Seconds for each token, from two calls of `compute` on rows of a sample; and what the calls returned."""
    groups = measured_rows(lengths)
    compute(groups[0][:8])  # warm-up
    results = []
    seconds = []
    for rows in groups:
        began = time.perf_counter()
        results.append(compute(rows))
        seconds.append((time.perf_counter() - began) / int(lengths[rows].sum()))
    return PerToken(mean_lengths(lengths, groups), (seconds[0], seconds[1])), results


def mean_lengths(lengths: Lengths, groups: tuple[Rows, Rows]) -> tuple[int, int]:
    """The mean length of the short and of the long texts, the first never above the second."""
    short_rows, long_rows = groups
    short = round(float(lengths[short_rows].mean()))
    long = round(float(lengths[long_rows].mean()))
    return min(short, long), long


def embedding_rate(model: ModelEmbedder, texts: Sequence[Text]) -> tuple[PerToken, Lengths]:
    """Seconds for each token of texts with their prompts, and the lengths of a sample of them."""
    sample = spread_items(texts, SAMPLE_TEXTS)
    lengths = model.lengths(sample)
    rate, _ = measure_rate(lambda rows: model.signals([sample[row] for row in rows]), lengths)
    return rate, lengths


def rate_text(rate: PerToken, lengths: Lengths) -> str:
    """A rate in words: texts a second on average, and tokens a second on short and on long texts."""
    short, long = rate.lengths
    short_seconds, long_seconds = rate.values
    by_length = f"{1 / short_seconds:,.0f} tokens/s on texts of {short} tokens"
    if short != long:
        by_length += f", {1 / long_seconds:,.0f} on texts of {long}"
    return f"{1 / max(rate.mean(lengths), 1e-9):,.1f} texts/s on average ({by_length})"
