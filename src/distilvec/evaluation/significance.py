"""Intervals of scores and of paired differences, a sign-flip test, significance stars, Holm's correction, seeds.

Every metric is a mean of values of the test rows. Accuracy and retrieval are; Spearman's correlation, average precision
and macro F1 have the jackknife's pseudo-values (Tukey 1958; Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 11). So all of them share one interval and one test:

    a score          Wilson's interval with the number of right or wrong rows that would scatter as the values do (Korn
                     and Graubard 1998), and Student's t in place of the normal quantile: it stays within the metric's
                     bounds, and is not a point where all rows are equal
    a difference     Student's t over rows, with an added row for what the rows at hand may not show yet (as Agresti
                     and Min 2005 add for paired shares)
    its p-value      two-sided, of the same t; and not below that of all sign flips of the rows that differ (Fisher
                     1935), of which n rows allow 2 / 2^n at the least

experiments/interval_coverage.py simulates how often they hold. Holm (1979) corrects for several comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import binomtest, permutation_test, rankdata
from scipy.stats import t as student_t

from distilvec.core.errors import DistilvecError

if TYPE_CHECKING:
    from distilvec.evaluation.evaluator import Sample

Array = np.ndarray[Any, Any]

LEVEL = 0.95
FEWEST = 6  # differing rows: all sign flips of five give no p below 2 / 2^5 = 0.06
_MOST_FLIPPED = 12  # rows whose sign flips are all counted; with more, Student's t gives the same p
_SAME = 1e-9  # least difference of two values of a row that is none of rounding
_MOST_BINS = 1000
METRICS = ("spearman", "average_precision", "accuracy", "macro_f1")  # that have values of rows, as every retrieval has


class ChangeInterval(NamedTuple):
    """The 95% interval of a difference in points, and the two-sided p-value of "there is no difference"."""

    low: float
    high: float
    p: float

    @property
    def is_loss(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0

    @property
    def is_gain(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0


@dataclass(frozen=True)
class Interval:
    """Difference in points (x 100), its interval, the two-sided p-value of "there is no difference".

    differing: test rows on which the two differ
    """

    difference: float
    low: float
    high: float
    p: float
    differing: int

    @property
    def least_p(self) -> float:
        """The least p-value that a test of so many differing rows can give."""
        return least_p(self.differing)


def least_p(differing: int) -> float:
    """Return the least two-sided p-value of a sign-flip test: all rows that differ do so in the same direction."""
    return float(min(1.0, 2.0 ** (1 - differing)))


def average_interval(
    pairs: Sequence[tuple[Sample, Sample]], weights: Sequence[float] | None = None, level: float = LEVEL
) -> Interval:
    """Mean over tasks of the difference of two models' scores (first - second), row by row.

    `weights` are those of the tasks in the mean; by default all count alike.
    """
    interval = difference_interval([_row_differences(*pair) for pair in pairs], weights, level)
    if interval is None:
        metrics = ", ".join(dict.fromkeys(first.metric for first, _ in pairs))
        raise DistilvecError(
            f"the difference in {metrics} is undefined: all gold values are equal.", "Check them.", key="samples"
        )
    return interval


def difference_interval(
    differences: Sequence[Array], weights: Sequence[float] | None = None, level: float = LEVEL
) -> Interval | None:
    """Interval of the mean over tasks of the mean over rows; None if a difference is undefined.

    `differences` are those of two models' row values by task, float64 [rows], -1..1 (of pseudo-values beyond).
    The interval reaches 0 wherever p is not below 1 - level, so that both say the same.
    """
    shares = np.ones(len(differences)) if weights is None else np.asarray(weights, dtype=np.float64)
    shares = shares / shares.sum()
    difference = 0.0
    variances, freedoms, differing = [], [], []
    for share, values in zip(shares, differences, strict=True):
        difference += float(share * values.mean())
        variances.append(share**2 * _variance(values))
        freedoms.append(max(1, len(values) - 1))
        differing.append(share * values[np.abs(values) > _SAME] / len(values))
    if not math.isfinite(difference):
        return None
    error = math.sqrt(sum(variances))
    # Welch and Satterthwaite: tasks have other rows and other spreads
    freedom = error**4 / sum(variance**2 / of_task for variance, of_task in zip(variances, freedoms, strict=True))

    flipped = np.concatenate(differing)
    p = max(2 * float(student_t.sf(abs(difference) / error, freedom)), least_p(len(flipped)))
    if 1 < len(flipped) <= _MOST_FLIPPED:
        # Two-sided, of the sum of differences among the sums with every combination of signs
        test = permutation_test((flipped,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=True)
        p = max(p, float(test.pvalue))

    half = float(student_t.ppf((1 + level) / 2, freedom)) * error
    low, high = difference - half, difference + half
    if p >= 1 - level:
        low, high = min(low, 0.0), max(high, 0.0)
    farthest = max(1.0, abs(difference))
    low, high = max(low, -farthest), min(high, farthest)
    return Interval(100 * difference, 100 * low, 100 * high, p, len(flipped))


def _variance(values: Array) -> float:
    """Variance of the mean of paired differences, float64 [rows].

    A row is added that is half of it positive, half negative: without it an interval of ten queries, most of which are
    equal, holds in 90% of the cases instead of 95%. It is as far from 0 as the farthest row, and 1 where few rows
    differ, or none, as these say little about how far others would.
    """
    distances = np.abs(values)
    added = float(distances.max())
    if np.sum(distances > _SAME) < FEWEST:
        added = max(1.0, added)
    rows = len(values) + 1
    return float((np.sum(values**2) + added**2) / rows - (values.sum() / rows) ** 2) / rows


# -- one score -------------------------------------------------------------------------------------------------------


def share_interval(right: int, rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of right rows (Wilson's)."""
    limits = binomtest(right, rows).proportion_ci(LEVEL, method="wilson")
    return float(limits.low), float(limits.high)


def score_interval(sample: Sample) -> tuple[float, float] | None:
    """Return the 95% interval of a sample's metric in points (x 100); None if it is undefined, or none of `METRICS`."""
    if sample.type != "retrieval" and sample.metric not in METRICS:
        return None
    mean, low, high = mean_interval(sample.row_values, least=-1 if sample.metric == "spearman" else 0)
    return (100 * low, 100 * high) if math.isfinite(mean) else None


def mean_interval(values: Array, least: float = 0.0) -> tuple[float, float, float]:
    """Mean of `values`, float64 [rows], and its 95% interval: (mean, low, high).

    The values are between `least` and 1. NaN as the mean gives NaN as bounds.
    """
    mean = float(values.mean())
    values = np.round(values, 12)  # else the rounding of sums is a variance
    if least == 0 and np.isin(values, (0, 1)).all():
        return mean, *share_interval(int(values.sum()), len(values))
    share = (mean - least) / (1 - least)
    spread = share * (1 - share)
    variance = float(values.var(ddof=1)) / (1 - least) ** 2 if np.ptp(values) > 0 else 0.0
    rows = len(values) * spread / variance if variance > 0 else len(values)
    quantile = float(student_t.ppf((1 + LEVEL) / 2, max(1, len(values) - 1)))
    weight = quantile**2 / rows
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * spread + weight**2 / 4) / (1 + weight)
    low, high = (least + (1 - least) * bound for bound in (centre - half, centre + half))
    return mean, max(low, least), min(high, 1.0)


# -- several comparisons and seeds -----------------------------------------------------------------------------------


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


# -- values of rows whose mean is the metric -------------------------------------------------------------------------


def row_values(sample: Sample) -> Array:
    """Values of the test rows whose mean is the sample's metric, 0..1 (correlations -1..1), float64 [rows].

    Of a metric that is no mean they are its pseudo-values, n * metric - (n - 1) * metric without the row, moved so that
    their mean is the metric. NaN if the metric is undefined for every model: graded scores all equal, no positive pair.
    A correlation with constant similarities is 0.
    """
    predicted, gold = np.asarray(sample.predicted), np.asarray(sample.gold)
    match sample.metric:
        case _ if sample.type == "retrieval":
            return np.asarray(predicted, dtype=np.float64)
        case "accuracy":
            return np.asarray(predicted == gold, dtype=np.float64)
        case "spearman":
            metric, without = _spearman(predicted, gold)
        case "average_precision":
            metric, without = _average_precision(predicted, gold)
        case "macro_f1":
            metric, without = _macro_f1(predicted, gold)
        case _:
            raise DistilvecError(
                f"'{sample.metric}' has no values of rows.", f"Choose one of {', '.join(METRICS)}.", key="samples"
            )
    defined = np.where(np.isfinite(without), without, metric)
    return metric + (len(gold) - 1) * (defined.mean() - defined)


def _row_differences(first: Sample, second: Sample) -> Array:
    rows = len(first.gold)
    is_same = (first.type, first.metric) == (second.type, second.metric) and np.array_equal(first.gold, second.gold)
    if not is_same or not rows:
        raise DistilvecError(
            f"a paired test needs two results on the same rows; found {first.metric} on {rows} and "
            f"{second.metric} on {len(second.gold)} rows, or other gold values.",
            "Evaluate both on one task.",
            key="samples",
        )
    return first.row_values - second.row_values


def _spearman(similarities: Array, gold: Array) -> tuple[float, Array]:
    """Spearman's correlation, Pearson's of mean ranks, of all rows, and without each: float64 [rows].

    Without row i a rank falls by 1 if it is above that of i, by a half if it is equal, and the mean rank by a half: all
    in all by half the sign of the two ranks' difference. So the sums of squares and products change by sums of signs.
    """
    first, second = _Ranks(similarities), _Ranks(gold)
    products = _without_rows(first, second)
    squares, gold_squares = _without_rows(first, first), _without_rows(second, second)
    whole = _correlation(
        *(np.sum(left.ranks * right.ranks) for left, right in ((first, second), (first, first), (second, second)))
    )
    return float(whole), _correlation(products, squares, gold_squares)


class _Ranks:
    """Mean ranks of values, less their mean, and the place of each among the distinct ones."""

    def __init__(self, values: Array) -> None:
        self.ranks = rankdata(values) - (len(values) + 1) / 2
        distinct, places = np.unique(values, return_inverse=True)
        # With thousands of rows the signs of those in one bin do not count: they are one part in the number of rows
        self.bins = places * min(len(distinct), _MOST_BINS) // len(distinct)
        self.places = places

    def signed_sums(self, values: Array) -> Array:
        """Sum of the values of rows with a higher rank than each row, less those of lower ones, float64 [rows]."""
        return np.asarray(_higher_less_lower(np.bincount(self.places, weights=values))[self.places])


def _without_rows(first: _Ranks, second: _Ranks) -> Array:
    """Sum of products of two ranks without each row, float64 [rows]."""
    products = first.ranks * second.ranks
    changes = first.signed_sums(second.ranks) + second.signed_sums(first.ranks)
    table = np.zeros((first.bins.max() + 1, second.bins.max() + 1))
    np.add.at(table, (first.bins, second.bins), 1)
    signs = _higher_less_lower(_higher_less_lower(table).T).T[first.bins, second.bins]
    return np.asarray(products.sum() - products - changes / 2 + signs / 4)


def _higher_less_lower(sums: Array) -> Array:
    """Sum of the entries after each one along the first axis, less those before."""
    upto = np.cumsum(sums, axis=0)
    return np.asarray(upto[-1] - 2 * upto + sums)


def _correlation(products: Array, squares: Array, gold_squares: Array) -> Array:
    """Correlation from sums: 0 where all similarities are equal, NaN where all gold values are."""
    spread = np.sqrt(np.where(squares > _SAME, squares, np.inf) * np.where(gold_squares > _SAME, gold_squares, np.nan))
    return np.asarray(products / spread)


def _average_precision(similarities: Array, positive: Array) -> tuple[float, Array]:
    """Sum over distinct similarities, high to low, of (recall gained) * precision, as scikit-learn's; without each row.

    Both are NaN where no pair is positive.
    """
    distinct, codes = np.unique(-similarities, return_inverse=True)
    gained = np.bincount(codes, weights=positive, minlength=len(distinct))
    true, called = np.cumsum(gained), np.cumsum(np.bincount(codes))
    area = gained * true / called
    matches = true[-1]
    without = np.empty((2, len(distinct)))
    for removed in (0, 1):  # a pair that is none, or a positive one
        precision = (true - removed) / np.maximum(called - 1, 1)
        above = np.cumsum(area) - area
        here = (gained - removed) * precision
        below = np.cumsum((gained * precision)[::-1])[::-1] - gained * precision
        left = matches - removed
        without[removed] = (above + here + below) / left if left > 0 else np.nan
    metric = area.sum() / matches if matches else np.nan
    return float(metric), without[np.asarray(positive, dtype=np.int64), codes]


def _macro_f1(predicted: Array, gold: Array) -> tuple[float, Array]:
    """Mean F1 over the labels in gold or predicted, of a label 2 right / (predicted + gold); without each row."""
    labels, codes = np.unique(np.concatenate([predicted, gold]), return_inverse=True)
    predicted, gold = codes[: len(gold)], codes[len(gold) :]
    is_right = predicted == gold
    named = np.bincount(codes)
    right = np.bincount(gold[is_right], minlength=len(labels))
    f1 = 2 * right / named
    total = np.full(len(gold), f1.sum())
    count = np.full(len(gold), len(labels))
    for label, is_counted in ((gold, True), (predicted, ~is_right)):  # a right row has one label
        left = named[label] - np.where(is_right, 2, 1)
        changed = 2 * (right[label] - is_right) / np.maximum(left, 1)
        total += is_counted * (changed - f1[label])
        count -= is_counted * (left == 0)
    return float(f1.mean()), total / np.where(count > 0, count, np.nan)
