import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distilvec.data.sampler import epoch_batches


def batches_of(rows, lengths, **options):
    defaults = {"batch_size": 4, "max_tokens": None, "window": 3, "seed": 0, "epoch": 0}
    return epoch_batches(np.asarray(rows), np.asarray(lengths, dtype=np.int32), **(defaults | options))


cases = {
    "lengths": st.lists(st.integers(0, 60), max_size=120),
    "batch_size": st.integers(1, 9),
    "window": st.integers(1, 5),
    "seed": st.integers(0, 3),
}


@settings(max_examples=150, deadline=None)
@given(**cases)
def test_every_row_once_in_batches_of_one_size(lengths, batch_size, window, seed):
    rows = np.flatnonzero(np.arange(len(lengths)) % 5 != 2)
    batches = batches_of(rows, lengths, batch_size=batch_size, window=window, seed=seed)
    assert (
        sorted(
            np.concatenate([batches[i] for i in range(len(batches))], dtype=np.int64).tolist() if len(batches) else []
        )
        == rows.tolist()
    )
    sizes = sorted(len(batch) for batch in batches)
    assert all(size == batch_size for size in sizes[1:]) and all(0 < size <= batch_size for size in sizes)
    dropped = batches_of(rows, lengths, batch_size=batch_size, window=window, seed=seed, drop_last=True)
    size = max(1, min(batch_size, len(rows)))  # fewer rows than a batch are one batch
    assert all(len(batch) == size for batch in dropped) and len(dropped) == len(rows) // size
    assert len(np.unique(dropped.rows)) == len(dropped.rows)


@settings(max_examples=150, deadline=None)
@given(**cases, max_tokens=st.integers(1, 200))
def test_budget_is_kept_and_every_row_once(lengths, batch_size, window, seed, max_tokens):
    batches = batches_of(
        np.arange(len(lengths)), lengths, batch_size=batch_size, window=window, seed=seed, max_tokens=max_tokens
    )
    assert sorted(batches.rows.tolist()) == list(range(len(lengths)))
    for i in range(len(batches)):
        longest = max(lengths[row] for row in batches[i])
        assert len(batches[i]) == 1 or longest * len(batches[i]) <= max_tokens


@settings(max_examples=100, deadline=None)
@given(**cases, max_tokens=st.none() | st.integers(1, 200), drop_last=st.booleans())
def test_fixed_batches_are_those_of_the_first_epoch_in_another_order(
    lengths, batch_size, window, seed, max_tokens, drop_last
):
    options = {"batch_size": batch_size, "window": window, "seed": seed, "max_tokens": max_tokens}
    options["drop_last"] = drop_last
    first, fixed, fourth = (
        batches_of(range(len(lengths)), lengths, **options, epoch=epoch, fixed=fixed)
        for epoch, fixed in ((0, False), (0, True), (4, True))
    )
    assert np.array_equal(first.rows, fixed.rows) and np.array_equal(first.bounds, fixed.bounds)
    assert sorted(batch.tolist() for batch in fourth) == sorted(batch.tolist() for batch in first)


def test_the_order_of_fixed_batches_changes_with_the_epoch():
    lengths = np.random.default_rng(0).integers(3, 100, 1000)
    second, third = (batches_of(range(1000), lengths, epoch=epoch, fixed=True) for epoch in (1, 2))
    assert not np.array_equal(second.rows, third.rows)
    assert np.array_equal(np.sort(second.rows), np.arange(1000))


def test_epochs_differ_and_are_repeatable():
    lengths = np.random.default_rng(0).integers(3, 100, 1000)
    one, again = batches_of(range(1000), lengths, epoch=1), batches_of(range(1000), lengths, epoch=1)
    assert np.array_equal(one.rows, again.rows) and np.array_equal(one.bounds, again.bounds)
    assert not np.array_equal(one.rows, batches_of(range(1000), lengths, epoch=2).rows)
    assert not np.array_equal(one.rows, batches_of(range(1000), lengths, epoch=1, seed=1).rows)


@pytest.mark.parametrize("max_tokens", [None, 1024])
def test_padding_is_small_and_order_is_random(max_tokens):
    lengths = np.random.default_rng(0).lognormal(3, 0.7, 20_000).astype(np.int32) + 2
    batches = batches_of(range(20_000), lengths, batch_size=32, window=50, max_tokens=max_tokens)
    computed = sum(len(rows) * lengths[rows].max() for rows in batches)
    assert lengths.sum() / computed > 0.9
    means = np.array([lengths[rows].mean() for rows in batches])
    assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.12
    if max_tokens:
        assert len(batches) < 1.15 * lengths.sum() / max_tokens + 1


def test_batches_are_indexed_like_a_list():
    batches = batches_of(range(10), [5] * 10)
    assert len(batches) == 3 and len(list(batches)) == 3
    assert np.array_equal(batches[-1], batches[2])
    with pytest.raises(IndexError):
        batches[3]
    assert len(batches_of([], [])) == 0 and list(batches_of([], [], max_tokens=9)) == []


def test_rows_given_are_left_alone():
    rows = np.arange(50)
    rows.flags.writeable = False
    assert sorted(batches_of(rows, [3] * 50).rows.tolist()) == list(range(50))
