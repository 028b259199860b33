"""Paired bootstrap over test rows, significance stars, Holm's correction, spread over seeds.

Every resample computes the metric itself, because Spearman's correlation, average precision and macro F1 are no means
over rows. Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 6 and 13 (percentile
interval); Koehn (EMNLP 2004) for pairing; Phipson and Smyth (2010) for p-values above zero; Holm (1979).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array
from scipy.stats import binomtest

from distilvec.core.errors import DistilvecError

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Sample

Array = np.ndarray[Any, Any]
Metric = Callable[[Array], Array]  # counts [draws, rows] to values [draws]

_CELLS_AT_ONCE = 1_000_000
_DRAWS = 1000
_LEVEL = 0.95


def share_interval(right: int, rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of right rows (Wilson's)."""
    limits = binomtest(right, rows).proportion_ci(0.95, method="wilson")
    return float(limits.low), float(limits.high)


@dataclass(frozen=True)
class Interval:
    """Difference in points (x 100), its confidence interval, the two-sided p-value of "there is no difference"."""

    difference: float
    low: float
    high: float
    p: float


def average_interval(
    pairs: Sequence[tuple[Sample, Sample]],
    draws: int = _DRAWS,
    level: float = _LEVEL,
    seed: int = 0,
    weights: Sequence[float] | None = None,
) -> Interval:
    """Mean over tasks of the difference (ours - theirs) in points; every resample takes the same rows of both.

    `weights` are those of the tasks in the mean; by default all count alike.
    The interval is the percentile interval. p is twice the share of differences on the rarer side of 0, the observed
    one included, so at least 1 / (draws + 1). Resamples on which the metric is undefined are left out.
    Errors: DistilvecError if two are not of the same rows, or the metric is undefined on all resamples.
    """
    found = [_differences(*pair, draws, np.random.default_rng([seed, task])) for task, pair in enumerate(pairs)]
    observed, drawn = (np.average(values, axis=0, weights=weights) for values in zip(*found, strict=True))
    interval = percentile_interval(float(observed), drawn, level)
    if interval is None:
        metrics = ", ".join(dict.fromkeys(ours.metric for ours, _ in pairs))
        raise DistilvecError(
            "samples", f"the difference in {metrics} is undefined: all gold values are equal.", "Check them."
        )
    return interval


def percentile_interval(difference: float, drawn: Array, level: float = _LEVEL) -> Interval | None:
    """Interval and p of an observed difference from resampled ones, float64 [draws]; None if all are undefined."""
    values = drawn[np.isfinite(drawn)]
    if not np.isfinite(difference) or not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    rarer = min(int(np.sum(values <= 0)), int(np.sum(values >= 0)))
    return Interval(difference, float(low), float(high), min(1.0, (2 * rarer + 1) / (len(values) + 1)))


def resampled(sample: Sample, draws: Array) -> Array:
    """Main metric of a sample on every resample, 0..1 (correlations -1..1), float64 [draws].

    `draws` [draws, rows] counts each row's copies. NaN if the metric is undefined for every model: graded scores all
    equal, no positive pair. A correlation with constant similarities is 0. Errors: DistilvecError for an unknown
    metric.
    """
    return _metric(sample)(draws)


def draw_rows(rows: int, draws: int, generator: np.random.Generator) -> Iterator[Array]:
    """Resamples of `rows` rows with replacement as counts, int64 [some draws, rows], in blocks of a million cells."""
    block = max(1, _CELLS_AT_ONCE // rows)
    for start in range(0, draws, block):
        size = min(block, draws - start)
        cells = generator.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
        yield np.bincount(cells.ravel(), minlength=size * rows).reshape(size, rows)


def mean_interval(values: Array) -> tuple[float, float, float]:
    """Mean of `values`, float64 [rows], and its 95% percentile interval: (mean, low, high), in the unit of the values.

    1,000 resamples of the rows by a fixed seed.
    """
    generator = np.random.default_rng(0)
    means = [counts @ values / len(values) for counts in draw_rows(len(values), _DRAWS, generator)]
    low, high = np.quantile(np.concatenate(means), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(values.mean()), float(low), float(high)


def seed_summary(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1) over seeds; the deviation of a single value is None."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def significance_mark(p: float) -> str:
    """Stars: "***" below 0.001, "**" below 0.01, "*" below 0.05, else nothing."""
    return "*" * sum(p < level for level in (0.001, 0.01, 0.05))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for several comparisons, in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in adjusted]


def _differences(ours: Sample, theirs: Sample, draws: int, generator: np.random.Generator) -> tuple[float, Array]:
    """Observed difference and resampled ones, float64 [draws], in points."""
    rows = len(ours.gold)
    if (
        (ours.type, ours.metric) != (theirs.type, theirs.metric)
        or not np.array_equal(ours.gold, theirs.gold)
        or not rows
    ):
        raise DistilvecError(
            "samples",
            f"a paired bootstrap needs two results on the same rows; found {ours.metric} on {rows} and "
            f"{theirs.metric} on {len(theirs.gold)} rows, or other gold values.",
            "Evaluate both on one task.",
        )
    left, right = _metric(ours), _metric(theirs)
    every_row = np.ones((1, rows), dtype=np.int64)
    # one block at a time: those of all draws would grow with the rows
    blocks = chain([every_row], draw_rows(rows, draws, generator))
    found = 100 * np.concatenate([left(counts) - right(counts) for counts in blocks])
    return float(found[0]), found[1:]


# -- metrics of rows that count several times: orders and groups are computed once for all draws --------------------


def _metric(sample: Sample) -> Metric:
    predicted, gold = np.asarray(sample.predicted), np.asarray(sample.gold)
    match sample.metric:
        case _ if sample.type == "retrieval":
            return lambda counts: counts @ predicted / counts.sum(axis=1)
        case "spearman":
            return _spearman(predicted, gold)
        case "average_precision":
            return _average_precision(predicted, gold)
        case "accuracy":
            return lambda counts: counts @ (predicted == gold) / counts.sum(axis=1)
        case "macro_f1":
            return _macro_f1(predicted, gold)
    raise DistilvecError(
        "samples", f"cannot resample '{sample.metric}'.", "Choose spearman, average_precision, accuracy or macro_f1."
    )


def _spearman(similarities: Array, gold: Array) -> Metric:
    """Pearson's correlation of mean ranks; the copies of a row tie with each other."""
    inputs = [_groups(values) for values in (similarities, gold)]

    def metric(counts: Array) -> Array:
        spread, rows = [], []
        for codes, groups in inputs:
            totals = counts @ groups
            ranks = np.cumsum(totals, axis=1) - (totals + counts.sum(axis=1, keepdims=True)) / 2  # from the mean rank
            spread.append(np.einsum("dg,dg,dg->d", totals, ranks, ranks))
            rows.append(np.take(ranks, codes, axis=1))
        product = spread[0] * spread[1]
        values = np.einsum("dr,dr,dr->d", counts, *rows) / np.sqrt(np.where(product > 0, product, 1))
        return np.where(spread[1] > 0, values, np.nan)

    return metric


def _average_precision(similarities: Array, positive: Array) -> Metric:
    """Sum over distinct similarities, high to low, of (recall gained) * precision, as scikit-learn's."""
    _, groups = _groups(-similarities)

    def metric(counts: Array) -> Array:
        gained, called = (counts * positive) @ groups, np.cumsum(counts @ groups, axis=1)
        true = np.cumsum(gained, axis=1)
        area = np.sum(gained * true / np.maximum(called, 1), axis=1)
        return np.where(true[:, -1] > 0, area / np.maximum(true[:, -1], 1), np.nan)

    return metric


def _macro_f1(predicted: Array, gold: Array) -> Metric:
    """Mean F1 over the labels that a resample has in gold or predicted; of a label: 2 right / (predicted + gold)."""
    _, groups = _groups(np.concatenate([predicted, gold]))
    ours, theirs = groups[: len(gold)], groups[len(gold) :]

    def metric(counts: Array) -> Array:
        named = counts @ (ours + theirs)
        right = (counts * (predicted == gold)) @ theirs
        return np.asarray(np.sum(2 * right / np.maximum(named, 1), axis=1) / np.sum(named > 0, axis=1))

    return metric


def _groups(values: Array) -> tuple[Array, csr_array]:
    """Rank of every row's value among the distinct ones, int64 [rows]; the same as 0/1 [rows, distinct]."""
    distinct, codes = np.unique(values, return_inverse=True)
    rows = np.arange(len(codes))
    return codes, csr_array((np.ones(len(codes)), (rows, codes)), shape=(len(codes), len(distinct)))
