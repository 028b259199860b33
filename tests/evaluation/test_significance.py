"""Resampled metrics against scikit-learn and scipy on the repeated rows, ties included; the bootstrap against known
spreads.
"""

import time
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import bootstrap, spearmanr
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from distilvec.core.errors import DistilvecError
from distilvec.evaluation import significance
from distilvec.evaluation.evaluator import Sample, row_keys
from distilvec.evaluation.significance import (
    Interval,
    average_interval,
    draw_rows,
    holm,
    resampled,
    seed_summary,
    significance_mark,
)


def paired_interval(ours, theirs, **options):
    return average_interval([(ours, theirs)], **options)


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
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 30), values=st.integers(1, 40))
def test_resampled_metrics_are_those_of_the_repeated_rows(metric, seed, rows, values):
    generator = np.random.default_rng(seed)
    sample = sample_of(metric, generator, rows, values)
    picks = generator.integers(rows, size=(6, rows))
    counts = np.array([np.bincount(row, minlength=rows) for row in picks])
    np.testing.assert_allclose(resampled(sample, counts), [expected(sample, row) for row in picks], atol=1e-12)


@pytest.mark.parametrize("metric", METRICS)
def test_every_row_once_is_the_plain_metric(metric):
    sample = sample_of(metric, np.random.default_rng(3), 500, values=300)
    np.testing.assert_allclose(
        resampled(sample, np.ones((1, 500), dtype=np.int64)), [expected(sample, np.arange(500))], rtol=1e-12
    )


def test_metrics_of_a_collapsed_model_and_of_gold_that_says_nothing():
    counts = np.array([[1, 1, 1, 1], [0, 4, 0, 0]])
    graded = Sample("sts", "spearman", np.ones(4), np.arange(4.0))
    np.testing.assert_array_equal(resampled(graded, counts), [0, np.nan])  # equal similarities; one row four times
    pairs = Sample("pair", "average_precision", np.arange(4.0), np.array([True, False, True, False]))
    np.testing.assert_allclose(resampled(pairs, counts), [average_precision_score([1, 0, 1, 0], [0, 1, 2, 3]), np.nan])


def test_draws_are_uniform_with_replacement_and_blocks_change_nothing(monkeypatch):
    whole = np.concatenate(list(draw_rows(7, 1000, np.random.default_rng(5))))
    assert whole.shape == (1000, 7) and (whole.sum(axis=1) == 7).all()
    assert whole.mean(axis=0) == pytest.approx(np.ones(7), abs=0.1) and whole.var(axis=0) == pytest.approx(
        np.full(7, 6 / 7), abs=0.15
    )
    monkeypatch.setattr(significance, "_CELLS_AT_ONCE", 20)
    blocks = list(draw_rows(7, 1000, np.random.default_rng(5)))
    assert len(blocks) == 500
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


def pair_of(rows=400, better=0.1, seed=0):
    """Per-query figures of a column that is `better` on average, and of the teacher, correlated as real ones are."""
    generator = np.random.default_rng(seed)
    theirs = generator.random(rows)
    return (
        Sample("retrieval", "ndcg@10", theirs + better + generator.normal(size=rows) * 0.2, np.ones(rows)),
        Sample("retrieval", "ndcg@10", theirs, np.ones(rows)),
    )


def test_interval_of_means_is_scipys():
    ours, theirs = pair_of(better=-0.02)
    interval = paired_interval(ours, theirs, draws=20_000, level=0.9)
    gaps = 100 * (ours.predicted - theirs.predicted)
    reference = bootstrap(
        (gaps,), np.mean, n_resamples=20_000, confidence_level=0.9, method="percentile", rng=1
    ).confidence_interval
    assert interval.difference == pytest.approx(gaps.mean())
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high), abs=0.06)


def test_both_columns_take_the_same_rows():
    """A constant gap leaves no spread, whatever the rows; unpaired, it would be wide."""
    theirs = pair_of()[1]
    ours = Sample("retrieval", "ndcg@10", theirs.predicted + 0.03, theirs.gold)
    interval = paired_interval(ours, theirs)
    assert (interval.difference, interval.low, interval.high) == pytest.approx((3, 3, 3))
    assert interval.p == pytest.approx(1 / 1001) and significance_mark(interval.p) == "***"
    assert paired_interval(theirs, theirs) == Interval(0, 0, 0, 1)


@pytest.mark.parametrize("metric", METRICS)
def test_p_and_interval_agree_and_the_seed_repeats(metric):
    generator = np.random.default_rng(1)
    theirs = sample_of(metric, generator, 80, values=4)
    changed = np.where(generator.random(80) < 0.3, generator.permutation(theirs.predicted), theirs.predicted)
    ours = Sample(theirs.type, metric, changed, theirs.gold)
    there, back = paired_interval(ours, theirs), paired_interval(theirs, ours)
    assert there == paired_interval(ours, theirs) != paired_interval(ours, theirs, seed=1)
    assert (back.difference, back.low, back.high, back.p) == pytest.approx(
        (-there.difference, -there.high, -there.low, there.p)
    )
    assert there.low <= there.high and there.difference == pytest.approx(
        100 * (expected(ours, np.arange(80)) - expected(theirs, np.arange(80)))
    )
    if there.p < 0.05:
        assert there.low > 0 or there.high < 0


def test_p_below_005_means_an_interval_without_0_and_comes_up_one_time_in_20_by_chance():
    found = [paired_interval(*pair_of(150, better=0.0, seed=seed), draws=400, seed=seed) for seed in range(300)]
    assert all(interval.low > 0 or interval.high < 0 for interval in found if interval.p < 0.05)
    assert 0.02 < np.mean([interval.p < 0.05 for interval in found]) < 0.09


def test_average_draws_tasks_independently():
    pairs = [pair_of(better=0.1, seed=1), pair_of(better=-0.04, seed=2)]
    single = [paired_interval(*pair, draws=4000) for pair in pairs]
    both = average_interval(pairs, draws=4000)
    assert both.difference == pytest.approx(np.mean([interval.difference for interval in single]))
    widths = np.array([interval.high - interval.low for interval in single])
    assert both.high - both.low == pytest.approx(
        np.sqrt((widths**2).sum()) / 2, rel=0.06
    )  # variances add, halved twice
    twice = average_interval([pairs[0], pairs[0]], draws=4000)
    assert twice.high - twice.low == pytest.approx(widths[0] / np.sqrt(2), rel=0.06)


def test_undefined_resamples_are_left_out():
    """Of three pairs with one match, 8 in 27 resamples have none; they neither widen the interval nor make it NaN."""
    gold = np.array([True, False, False])
    ours = Sample("pair", "average_precision", np.array([0.9, 0.2, 0.1]), gold)
    theirs = Sample("pair", "average_precision", np.array([0.5, 0.7, 0.1]), gold)
    interval = paired_interval(ours, theirs)
    assert np.isfinite(
        [interval.difference, interval.low, interval.high, interval.p]
    ).all() and interval.difference == pytest.approx(50)


def test_samples_that_cannot_be_compared():
    ours, theirs = pair_of(20)
    with refused("samples", "ndcg@10 on 10 rows"):
        paired_interval(ours, Sample("retrieval", "ndcg@10", theirs.predicted[:10], theirs.gold[:10]))
    with refused("samples", "macro_f1 on 3 rows"):
        paired_interval(
            *(Sample("classification", metric, np.arange(3), np.arange(3)) for metric in ("accuracy", "macro_f1"))
        )
    with pytest.raises(DistilvecError, match="difference in spearman is undefined"):
        paired_interval(*(Sample("sts", "spearman", np.arange(4.0), np.ones(4)) for _ in range(2)))
    with pytest.raises(DistilvecError, match="same rows; found spearman on 0"):
        paired_interval(*(Sample("sts", "spearman", np.empty(0), np.empty(0)) for _ in range(2)))
    with pytest.raises(DistilvecError, match="cannot resample 'pearson'"):
        resampled(Sample("sts", "pearson", np.arange(3.0), np.arange(3.0)), np.ones((1, 3)))


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
def test_a_thousand_draws_of_ten_thousand_rows_take_seconds(metric):
    theirs = sample_of(metric, np.random.default_rng(0), 10_000, values=5_000 if metric != "macro_f1" else 150)
    ours = Sample(theirs.type, metric, np.roll(theirs.predicted, 1), theirs.gold)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.process_time()
        paired_interval(ours, theirs, draws=1000)
    assert time.process_time() - start < 20  # a loop over rows or draws takes minutes


def test_memory_holds_some_resamples_at_a_time_whatever_the_number_of_rows():
    theirs = sample_of("ndcg@10", np.random.default_rng(0), 40_000)
    ours = Sample(theirs.type, theirs.metric, np.roll(theirs.predicted, 1), theirs.gold)
    tracemalloc.start()
    try:
        paired_interval(ours, theirs, draws=400)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64e6  # the counts of all resamples take 128 MB


def test_rows_are_the_same_where_their_texts_and_those_that_they_are_searched_among_are():
    queries, documents = [f"query {number}" for number in range(50)], ["one", "two", ("first", "second")]
    keys = row_keys(queries, documents)
    assert keys.dtype == np.int64 and len({*keys.tolist()}) == 50
    assert np.array_equal(keys, row_keys(list(queries), list(documents)))
    assert not (keys == row_keys([f"other {number}" for number in range(50)], documents)).any()
    assert not (keys == row_keys(queries, [*documents, "three"])).any(), "an index that has grown"
    assert row_keys([]).shape == (0,)
