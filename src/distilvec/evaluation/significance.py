"""Is a difference between two columns more than the luck of the test rows? Paired bootstrap, marks, Holm, spread over seeds.

The metric itself is computed anew on every resample, so that metrics that are no means over rows (Spearman's correlation,
average precision, macro F1) are treated as what they are. Sources: Efron and Tibshirani, An Introduction to the Bootstrap
(1993), chapters 6 and 13 (percentile interval); Koehn, Statistical Significance Tests for Machine Translation Evaluation
(EMNLP 2004) for pairing; Phipson and Smyth (2010) for p-values that are never zero; Holm (1979) for several comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from distilvec.core.errors import DistilvecError

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Sample

Array = np.ndarray[Any, Any]
Metric = Callable[[Array], Array]

_CELLS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Interval:
    """A difference in points (x 100), its confidence interval and the two-sided p-value of "there is no difference"."""

    difference: float
    low: float
    high: float
    p: float


def paired_interval(ours: Sample, theirs: Sample, draws: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """How far `ours` is above `theirs` on one task, in points: every resample takes the same rows of both.

    The interval is the percentile interval of the resampled differences. Twice the share of differences on the rarer
    side of 0, the observed one counted with it, is p: below 1 - level only where the interval leaves out 0, and at
    least 1 / (draws + 1), so that "***" needs 1,000 draws. Resamples on which the metric is undefined are left out.
    Errors: DistilvecError if the two are not of the same rows, or the metric is undefined on all of them.
    """
    return average_interval([(ours, theirs)], draws, level, seed)


def average_interval(
    pairs: Sequence[tuple[Sample, Sample]], draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """`paired_interval` for the plain mean over tasks of (ours - theirs); every task's rows are drawn independently."""
    if not pairs:
        raise DistilvecError("[samples] there is no average difference of no tasks; give at least one pair of samples.")
    if draws < 1 or not 0 < level < 1:
        raise DistilvecError(
            f"[draws] a bootstrap needs at least one draw and a level between 0 and 1; got draws {draws}, level {level}."
        )
    found = [
        _differences(ours, theirs, draws, np.random.default_rng([seed, task]))
        for task, (ours, theirs) in enumerate(pairs)
    ]
    difference = float(np.mean([observed for observed, _ in found]))
    interval = percentile_interval(difference, np.mean([drawn for _, drawn in found], axis=0), level)
    if interval is None:
        metrics = ", ".join(dict.fromkeys(ours.metric for ours, _ in pairs))
        raise DistilvecError(
            f"[samples] the difference in {metrics} is undefined: a task's gold scores or labels are all equal. Check its files."
        )
    return interval


def percentile_interval(difference: float, drawn: Array, level: float = 0.95) -> Interval | None:
    """The interval and p of an observed difference from its resampled ones, float64 [draws]; None where all are undefined."""
    values = drawn[np.isfinite(drawn)]
    if not np.isfinite(difference) or not len(values):
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    rarer = min(int(np.sum(values <= 0)), int(np.sum(values >= 0)))
    return Interval(difference, float(low), float(high), min(1.0, (2 * rarer + 1) / (len(values) + 1)))


def resampled(sample: Sample, draws: Array) -> Array:
    """The sample's main metric on every resample, 0..1 (correlations -1..1), float64 [draws].

    `draws` [draws, rows] says how often each resample holds each row. Equals the metric of the rows repeated as often.
    NaN where it says nothing about any model: graded scores all equal, no positive pair. As in `evaluate`, a
    correlation with similarities that are all equal is 0. Errors: DistilvecError for a metric that is not known.
    """
    return _metric(sample)(draws)


def draw_rows(rows: int, draws: int, generator: np.random.Generator) -> Iterator[Array]:
    """Resamples of `rows` rows with replacement, as counts, int64 [some draws, rows], in blocks of about a million cells."""
    block = max(1, _CELLS_AT_ONCE // rows)
    for start in range(0, draws, block):
        size = min(block, draws - start)
        cells = generator.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
        yield np.bincount(cells.ravel(), minlength=size * rows).reshape(size, rows)


def seed_summary(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation (n - 1) over seeds; None for the deviation of a single value."""
    if not values:
        raise DistilvecError("[values] there is no mean of no values; give the figure of at least one seed.")
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None


def significance_mark(p: float) -> str:
    """The usual stars: "***" below 0.001, "**" below 0.01, "*" below 0.05, else nothing."""
    return "***" if p < 0.001 else "**" if p < 0.01 else "*" if p < 0.05 else ""


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being several, in the order given (Holm, A Simple Sequentially Rejective Procedure, 1979)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [float(value) for value in adjusted]


def _differences(ours: Sample, theirs: Sample, draws: int, generator: np.random.Generator) -> tuple[float, Array]:
    """The observed difference and the resampled ones, float64 [draws], in points."""
    if (ours.type, ours.metric) != (theirs.type, theirs.metric) or not np.array_equal(ours.gold, theirs.gold):
        raise DistilvecError(
            f"[samples] two results must be on the same rows; found {ours.metric} on {len(ours.gold)} and {theirs.metric} on "
            f"{len(theirs.gold)} rows, or other gold values. Evaluate both on one version of the task."
        )
    rows = len(ours.gold)
    if not rows:
        raise DistilvecError("[samples] a paired bootstrap needs rows; the samples are empty. Evaluate the task again.")
    left, right = _metric(ours), _metric(theirs)
    once = np.ones((1, rows), dtype=np.int64)
    blocks = [left(counts) - right(counts) for counts in draw_rows(rows, draws, generator)]
    return 100 * float((left(once) - right(once))[0]), 100 * np.concatenate(blocks)


# -- metrics of rows that count several times ------------------------------------------------------------------------


def _metric(sample: Sample) -> Metric:
    """The sample's metric as a function of counts [draws, rows]; what all draws share (orders, groups) is done once."""
    predicted, gold = np.asarray(sample.predicted), np.asarray(sample.gold)
    if sample.type == "retrieval":
        return _mean(predicted)
    match sample.metric:
        case "spearman":
            return _spearman(predicted, gold)
        case "average_precision":
            return _average_precision(predicted, gold)
        case "accuracy":
            return _mean(predicted == gold)
        case "macro_f1":
            return _macro_f1(predicted, gold)
    raise DistilvecError(
        f"[samples] cannot resample metric '{sample.metric}'; expected spearman, average_precision, accuracy or macro_f1."
    )


def _mean(values: Array) -> Metric:
    values = values.astype(np.float64)
    return lambda counts: np.asarray(counts @ values / counts.sum(axis=1))


def _spearman(similarities: Array, gold: Array) -> Metric:
    """Pearson's correlation of mean ranks, where the copies of a row are ties of each other."""
    sides = [_groups(values) for values in (similarities, gold)]

    def metric(counts: Array) -> Array:
        centre = (counts.sum(axis=1, keepdims=True) + 1) / 2
        spread, rows = [], []
        for codes, groups in sides:
            totals = counts @ groups
            ranks = np.cumsum(totals, axis=1) - (totals - 1) / 2 - centre  # from the middle rank, [draws, groups]
            spread.append(np.einsum("dg,dg,dg->d", totals, ranks, ranks))
            rows.append(np.take(ranks, codes, axis=1))
        together = np.einsum("dr,dr,dr->d", counts, *rows)
        values = together / np.sqrt(np.where(spread[0] * spread[1] > 0, spread[0] * spread[1], 1))
        return np.where(spread[1] > 0, values, np.nan)

    return metric


def _average_precision(similarities: Array, positive: Array) -> Metric:
    """Sum over distinct similarities, high to low, of (recall gained) * precision, as scikit-learn's."""
    codes, groups = _groups(-similarities)
    matches = csr_array((positive.astype(np.float64), (np.arange(len(codes)), codes)), shape=groups.shape)

    def metric(counts: Array) -> Array:
        gained, called = counts @ matches, np.cumsum(counts @ groups, axis=1)
        true = np.cumsum(gained, axis=1)
        area = np.sum(gained * true / np.maximum(called, 1), axis=1)
        return np.where(true[:, -1] > 0, area / np.maximum(true[:, -1], 1), np.nan)

    return metric


def _macro_f1(predicted: Array, gold: Array) -> Metric:
    """Mean F1 of the labels that a resample has in gold or predicted; of a label: 2 right / (predicted + gold)."""
    rows = len(gold)
    codes, _ = _groups(np.concatenate([predicted, gold]))
    labels = int(codes.max()) + 1

    def membership(labelled: Array, kept: Array) -> csr_array:
        return csr_array((kept.astype(np.float64), (np.arange(rows), labelled)), shape=(rows, labels))

    right = membership(codes[rows:], predicted == gold)
    either = membership(codes[:rows], np.ones(rows)) + membership(codes[rows:], np.ones(rows))

    def metric(counts: Array) -> Array:
        named = counts @ either
        return np.asarray(np.sum(2 * (counts @ right) / np.maximum(named, 1), axis=1) / np.sum(named > 0, axis=1))

    return metric


def _groups(values: Array) -> tuple[Array, csr_array]:
    """The place of every row's value among the distinct ones, low to high, int64 [rows], and that as 0/1 [rows, distinct]."""
    distinct, codes = np.unique(values, return_inverse=True)
    return codes, csr_array((np.ones(len(codes)), (np.arange(len(codes)), codes)), shape=(len(codes), len(distinct)))
