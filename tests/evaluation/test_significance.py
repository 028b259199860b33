"""Row values against scikit-learn and scipy without each row, ties included; intervals and p-values against scipy's,
exact tests and simulated populations.
"""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import binomtest, spearmanr, ttest_1samp
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.evaluator import Sample, row_keys
from distilvec.evaluation.significance import (
    average_interval,
    difference_interval,
    holm,
    mean_interval,
    score_interval,
    seed_summary,
    significance_mark,
)


def paired_interval(first, second, **options):
    return average_interval([(first, second)], **options)


def sample_of(metric, generator, rows, values=5):
    """A sample with many ties where `values` is small."""
    tied = generator.integers(values, size=rows) / values
    match metric:
        case "spearman":
            return Sample("sts", metric, tied, generator.integers(values, size=rows).astype(np.float64))
        case "average_precision":
            return Sample("pair", metric, tied, generator.random(rows) < 0.4)
        case "ndcg@10":
            return Sample("retrieval", metric, generator.random(rows), np.ones(rows))
    return Sample(
        "classification", metric, generator.integers(values, size=rows), generator.integers(values, size=rows)
    )


def expected(sample, rows):
    """The metric of the repeated rows, by the reference libraries."""
    predicted, gold = sample.predicted[rows], sample.gold[rows]
    match sample.metric:
        case "spearman":
            if np.ptp(gold) == 0:
                return np.nan
            return spearmanr(predicted, gold).statistic if np.ptp(predicted) else 0.0
        case "average_precision":
            return average_precision_score(gold, predicted) if gold.any() else np.nan
        case "accuracy":
            return accuracy_score(gold, predicted)
        case "macro_f1":
            return f1_score(gold, predicted, average="macro", zero_division=0)
    return predicted.mean()


METRICS = ["spearman", "average_precision", "accuracy", "macro_f1", "ndcg@10"]


@pytest.mark.parametrize("metric", METRICS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(3, 30), values=st.integers(1, 40))
def test_the_mean_of_row_values_is_the_metric_and_each_says_what_its_row_changes(metric, seed, rows, values):
    sample = sample_of(metric, np.random.default_rng(seed), rows, values)
    whole = expected(sample, np.arange(rows))
    if not np.isfinite(whole):
        assert np.isnan(sample.row_values).all() and score_interval(sample) is None
        return
    without = np.array([expected(sample, np.delete(np.arange(rows), row)) for row in range(rows)])
    without = np.where(np.isfinite(without), without, whole)
    assert sample.row_values.mean() == pytest.approx(whole, abs=1e-12)
    np.testing.assert_allclose(sample.row_values - whole, (rows - 1) * (without.mean() - without), atol=1e-9)


def test_metrics_of_a_collapsed_model_and_of_gold_that_says_nothing():
    assert Sample("sts", "spearman", np.ones(4), np.arange(4.0)).row_values.tolist() == [0, 0, 0, 0]
    assert np.isnan(Sample("sts", "spearman", np.arange(4.0), np.ones(4)).row_values).all()
    assert np.isnan(Sample("pair", "average_precision", np.arange(4.0), np.zeros(4, dtype=bool)).row_values).all()


def pair_of(rows=400, better=0.1, seed=0):
    """Per-query figures of a column that is `better` on average, and of the teacher, correlated as real ones are."""
    generator = np.random.default_rng(seed)
    theirs = generator.random(rows)
    return (
        Sample("retrieval", "ndcg@10", theirs + better + generator.normal(size=rows) * 0.2, np.ones(rows)),
        Sample("retrieval", "ndcg@10", theirs, np.ones(rows)),
    )


def test_interval_and_p_of_many_rows_are_students():
    first, second = pair_of(better=-0.02)
    interval = paired_interval(first, second, level=0.9)
    reference = ttest_1samp(100 * (first.predicted - second.predicted), 0)
    bounds = reference.confidence_interval(0.9)
    assert interval.difference == pytest.approx(100 * np.mean(first.predicted - second.predicted))
    assert (interval.low, interval.high) == pytest.approx((bounds.low, bounds.high), abs=0.05)
    assert interval.p == pytest.approx(reference.pvalue, rel=0.1) and interval.differing == 400


@pytest.mark.parametrize("rows", [1, 3, 5, 6, 9])
def test_no_p_is_below_what_the_rows_allow(rows):
    """Three queries that are all better by nearly the same: an exact test gives 2 / 2^3, whatever the spread."""
    gains = 0.4 + 0.01 * np.arange(rows)
    interval = difference_interval([gains])
    assert interval.p >= min(1, 2 / 2**rows) == interval.least_p
    assert (interval.low > 0) == (rows >= 6) == (interval.p < 0.05)


def test_p_of_few_rows_is_that_of_all_signs():
    gaps = np.array([0.3, -0.05, 0.2, 0.4, 0.1, 0.25, 0.0, -0.02, 0.0])
    moved = gaps[gaps != 0]
    sums = [np.dot(signs, moved) for signs in itertools.product((1, -1), repeat=len(moved))]
    exact = np.mean(np.abs(sums) >= abs(moved.sum()) - 1e-12)
    assert difference_interval([gaps]).p >= exact > 0.02 and difference_interval([gaps]).differing == 7


def test_two_that_are_equal_on_every_row_may_differ_on_others():
    """None of 200 rows differs: up to three in 200 others may (the rule of three)."""
    second = pair_of(200)[1]
    interval = paired_interval(second, second)
    assert (interval.difference, interval.p, interval.differing) == (0, 1, 0)
    assert interval.low == -interval.high and 0.5 < interval.high < 1.5


@pytest.mark.parametrize("metric", METRICS)
def test_p_and_interval_agree_and_the_sides_mirror(metric):
    generator = np.random.default_rng(1)
    second = sample_of(metric, generator, 80, values=4)
    changed = np.where(generator.random(80) < 0.3, generator.permutation(second.predicted), second.predicted)
    first = Sample(second.type, metric, changed, second.gold)
    there, back = paired_interval(first, second), paired_interval(second, first)
    assert (back.difference, back.low, back.high, back.p) == pytest.approx(
        (-there.difference, -there.high, -there.low, there.p)
    )
    assert there.low <= there.difference <= there.high and there.difference == pytest.approx(
        100 * (expected(first, np.arange(80)) - expected(second, np.arange(80)))
    )
    assert (there.p < 0.05) == (there.low > 0 or there.high < 0)


@pytest.mark.parametrize("rows", [5, 7, 10])
def test_equal_models_are_told_apart_one_time_in_twenty_at_most(rows):
    """With 5 to 10 queries, 13 to 16% of the intervals of a percentile bootstrap exclude 0."""
    found = [paired_interval(*pair_of(rows, better=0.0, seed=seed)) for seed in range(300)]
    told_apart = [interval.low > 0 or interval.high < 0 for interval in found]
    assert told_apart == [interval.p < 0.05 for interval in found] and np.mean(told_apart) < 0.07


def share_that_holds(intervals, truth):
    return np.mean([low <= truth <= high for low, high in intervals])


@pytest.mark.parametrize("rows", [10, 20])
def test_nineteen_of_twenty_intervals_of_few_queries_hold(rows):
    """Most queries are equal, others change much: a percentile bootstrap of 20 queries holds in 84% of the cases."""
    generator = np.random.default_rng(rows)
    chosen = (np.array([0, -0.37, -0.5, 0.63, -1]), np.array([0.6, 0.15, 0.1, 0.1, 0.05]))
    drawn = [difference_interval([generator.choice(chosen[0], rows, p=chosen[1])]) for _ in range(400)]
    assert share_that_holds([(one.low, one.high) for one in drawn], 100 * chosen[0] @ chosen[1]) > 0.93


def test_nineteen_of_twenty_intervals_hold_where_five_rows_in_a_hundred_differ():
    """Accuracy of 200 rows: a percentile bootstrap holds in 91% of the cases."""
    generator = np.random.default_rng(0)
    drawn = [difference_interval([generator.choice([-1.0, 1, 0], 200, p=[0.04, 0.01, 0.95])]) for _ in range(600)]
    assert share_that_holds([(one.low, one.high) for one in drawn], -3) > 0.93


@pytest.mark.parametrize("rows", [10, 60])
def test_nineteen_of_twenty_intervals_of_shares_hold(rows):
    generator = np.random.default_rng(rows)
    drawn = [mean_interval(generator.binomial(10, generator.beta(9, 1, rows)) / 10)[1:] for _ in range(600)]
    assert share_that_holds(drawn, 0.9) > 0.93


def test_the_interval_of_a_score_stays_within_its_bounds():
    """Wilson's for rows that are right or wrong; of ten queries that are all 1, others may be less."""
    right = np.array([1.0] * 47 + [0] * 3)
    limits = binomtest(47, 50).proportion_ci(0.95, method="wilson")
    assert mean_interval(right) == pytest.approx((0.94, limits.low, limits.high))
    mean, low, high = mean_interval(np.array([1.0] * 9 + [0.9]))
    assert 0.8 < low < mean < high <= 1
    assert 0.6 < mean_interval(np.ones(10))[1] < 0.8
    generator = np.random.default_rng(0)
    gold = generator.random(200)
    sample = Sample("sts", "spearman", gold + generator.normal(0, 0.01, 200), gold)
    low, high = score_interval(sample)
    assert 99 < low < 100 * sample.row_values.mean() < high <= 100
    assert score_interval(Sample("sts", "pearson", gold, gold)) is None


@pytest.mark.parametrize("value", [0.9, 0.7, 1 / 3])
def test_equal_rows_are_no_point_whatever_the_rounding_of_sums(value):
    _, low, high = mean_interval(np.full(20, value))
    assert low < value - 0.05 and value + 0.03 < high <= 1
    sums = np.array([1.0, 1 + 2e-16, 1 - 2e-16, 1.0])
    assert mean_interval(sums) == pytest.approx(mean_interval(np.ones(4)))


def test_average_of_tasks_adds_their_variances():
    pairs = [pair_of(better=0.1, seed=1), pair_of(better=-0.04, seed=2)]
    single = [paired_interval(*pair) for pair in pairs]
    both = average_interval(pairs)
    assert both.difference == pytest.approx(np.mean([interval.difference for interval in single]))
    widths = np.array([interval.high - interval.low for interval in single])
    assert both.high - both.low == pytest.approx(np.sqrt((widths**2).sum()) / 2, rel=0.01)
    weighted = average_interval(pairs, [3, 1])
    assert weighted.difference == pytest.approx(np.average([one.difference for one in single], weights=[3, 1]))


def test_rows_without_which_a_metric_is_undefined_say_nothing():
    """Of three pairs with one match, there is no average precision without that one."""
    gold = np.array([True, False, False])
    first = Sample("pair", "average_precision", np.array([0.9, 0.2, 0.1]), gold)
    second = Sample("pair", "average_precision", np.array([0.5, 0.7, 0.1]), gold)
    interval = paired_interval(first, second)
    assert np.isfinite([interval.low, interval.high, interval.p]).all() and interval.difference == pytest.approx(50)


def test_samples_that_cannot_be_compared():
    first, second = pair_of(20)
    with refused("samples", "ndcg@10 on 10 rows"):
        paired_interval(first, Sample("retrieval", "ndcg@10", second.predicted[:10], second.gold[:10]))
    with refused("samples", "macro_f1 on 3 rows"):
        paired_interval(
            *(Sample("classification", metric, np.arange(3), np.arange(3)) for metric in ("accuracy", "macro_f1"))
        )
    with pytest.raises(DistilvecError, match="difference in spearman is undefined"):
        paired_interval(*(Sample("sts", "spearman", np.arange(4.0), np.ones(4)) for _ in range(2)))
    with pytest.raises(DistilvecError, match="same rows; found spearman on 0"):
        paired_interval(*(Sample("sts", "spearman", np.empty(0), np.empty(0)) for _ in range(2)))
    with refused("samples", "'pearson'"):
        _ = Sample("sts", "pearson", np.arange(3.0), np.arange(3.0)).row_values


def test_seeds_marks_and_holm():
    assert seed_summary([1.0, 2.0, 6.0]) == pytest.approx((3, np.std([1, 2, 6], ddof=1)))
    assert seed_summary([4.0]) == (4.0, None)
    assert [significance_mark(p) for p in (0.0009, 0.001, 0.009, 0.01, 0.049, 0.05, 1)] == [
        "***",
        "**",
        "**",
        "*",
        "*",
        "",
        "",
    ]
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1] and holm([0.02]) == [0.02] and holm([]) == []


@pytest.mark.parametrize("metric", METRICS)
def test_ten_thousand_rows_take_a_second(metric):
    second = sample_of(metric, np.random.default_rng(0), 10_000, values=5_000 if metric != "macro_f1" else 150)
    first = Sample(second.type, metric, np.roll(second.predicted, 1), second.gold)
    start = time.process_time()
    paired_interval(first, second)
    assert time.process_time() - start < 5  # a loop over rows takes minutes


def test_rows_are_the_same_where_their_texts_and_those_that_they_are_searched_among_are():
    queries, documents = [f"query {number}" for number in range(50)], ["one", "two", ("first", "second")]
    keys = row_keys(queries, documents)
    assert keys.dtype == np.int64 and len({*keys.tolist()}) == 50
    assert np.array_equal(keys, row_keys(list(queries), list(documents)))
    assert not (keys == row_keys([f"other {number}" for number in range(50)], documents)).any()
    assert not (keys == row_keys(queries, [*documents, "three"])).any(), "an index that has grown"
    assert row_keys([]).shape == (0,)
