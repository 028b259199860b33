import numpy as np
import pytest

from distilvec.data import corpus_files as selection
from distilvec.data.corpus_files import as_keys, first_occurrences, thin


@pytest.mark.parametrize("chunk", [7, 100, 65_536])
def test_first_occurrences_against_a_set(monkeypatch, chunk):
    monkeypatch.setattr(selection, "CHUNK", chunk)
    generator = np.random.default_rng(0)
    values = [bytes([*generator.integers(0, 2, 6).tolist(), *[7] * 9, i % 3]) for i in range(1000)]
    reported = []
    keep = first_occurrences(as_keys(values), lambda stage, rows: reported.append(rows))
    seen: set[bytes] = set()
    for value, kept in zip(values, keep, strict=True):
        assert kept == (value not in seen)
        seen.add(value)
    assert reported[-1] == 1000


def test_thin_keeps_so_many_evenly(monkeypatch):
    monkeypatch.setattr(selection, "CHUNK", 10)
    hits = np.zeros(45)
    allowed = np.arange(45) % 3 != 0
    for seed in range(3000):
        mask = allowed.copy()
        thin(mask, 12, np.random.default_rng(seed))
        assert mask.sum() == 12 and not (mask & ~allowed).any()
        hits += mask
    expected = 3000 * 12 / 30
    assert np.abs(hits[allowed] - expected).max() < 5 * np.sqrt(expected)


def test_thin_to_all_and_to_none():
    mask = np.ones(20, dtype=bool)
    thin(mask, 20, np.random.default_rng(0))
    assert mask.all()
    thin(mask, 0, np.random.default_rng(0))
    assert not mask.any()
