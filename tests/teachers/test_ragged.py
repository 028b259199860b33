"""Signals of uneven length lie in a cache beside the others and are as safe there."""

from __future__ import annotations

import errno
from dataclasses import replace

import numpy as np
import pytest
from teachers.test_cache import MANIFEST, damage, keys, vectors

from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache import journal
from distilvec.teachers.cache.manifest import read_manifest
from distilvec.teachers.cache.signals import Ragged, TokenSettings, join_ragged
from distilvec.teachers.cache.store import TeacherCache

TOKENS = TokenSettings("int8", 6, (-1,), True, (3, 4), 3, "offsets", "cafe", 64)
WITH_TOKENS = replace(MANIFEST, tokens=TOKENS)


def rows_of(numbers, seed=0):
    """Random signals of these rows, and the uneven ones as lists of one array a row."""
    generator = np.random.default_rng(seed)
    tokens, selected = generator.integers(1, 9, len(numbers)), generator.integers(0, 4, len(numbers))
    lists = {
        "hidden": [generator.integers(-127, 128, (n, 10)).astype(np.int8) for n in tokens],
        "importance": [generator.random((n, 1)).astype(np.float16) for n in tokens],
        "selected": [generator.integers(0, 99, (m, 2)).astype(np.int16) for m in selected],
        "grams": [generator.random((m * (m + 1) // 2, 2)).astype(np.float16) for m in selected],
    }
    ragged = {
        name: Ragged(np.concatenate(parts), np.array([len(part) for part in parts])) for name, parts in lists.items()
    }
    return {"embedding": vectors(len(numbers), seed=seed), **ragged}, lists


def fill(cache, numbers, seed=0):
    numbers = list(numbers)
    signals, lists = rows_of(numbers, seed)
    cache.append(keys(*numbers), signals, lambda row: f"text {numbers[row]}")
    return lists


@pytest.fixture
def cache(tmp_path):
    return TeacherCache.create_or_open(tmp_path / "teacher", WITH_TOKENS, 16)


def test_rows_come_back_in_any_order(cache):
    parts = [fill(cache, range(7)), fill(cache, range(7, 20), 1), fill(cache, [20], 2)]
    for opened in (cache, TeacherCache.open(cache.folder)):
        for order in (
            np.random.default_rng(3).permutation(21),
            np.arange(21),
            np.array([5, 5, 6, 7, 8, 0]),
            np.array([], dtype=np.int64),
        ):
            for name, signal in opened.signals.items():
                if not signal.uneven:
                    continue
                every = [row for part in parts for row in part[name]]
                found = opened.read_ragged(order, name)
                assert found.values.dtype == signal.dtype and found.values.shape[1] == signal.width
                np.testing.assert_array_equal(found.lengths, [len(every[row]) for row in order])
                expected = np.concatenate([every[row] for row in order]) if len(order) else np.empty((0, signal.width))
                np.testing.assert_array_equal(found.values, expected)
        for wrong in (-1, 21):
            with pytest.raises(IndexError):
                opened.read_ragged(np.array([wrong]), "hidden")


def test_equal_keys_are_stored_once(cache):
    first, _ = rows_of(range(4))
    cache.append(keys(1, 2, 1, 3), first, str)
    again, lists = rows_of(range(3), 5)
    cache.append(keys(3, 9, 2), again, str)
    assert len(cache) == 4
    np.testing.assert_array_equal(
        cache.read_ragged(np.array([2]), "hidden").values, first["hidden"].take(np.array([3])).values
    )
    np.testing.assert_array_equal(cache.read_ragged(np.array([3]), "grams").values, lists["grams"][1])


def test_taking_and_joining_rows_is_what_lists_give():
    generator = np.random.default_rng(0)
    lists = [generator.random((n, 2)) for n in generator.integers(0, 5, 12)]
    whole = Ragged(np.concatenate(lists), np.array([len(part) for part in lists]))
    order = generator.permutation(12)
    np.testing.assert_array_equal(whole.take(order).values, np.concatenate([lists[row] for row in order]))
    both = join_ragged([whole.take(np.arange(5)), whole.take(np.arange(5, 12))])
    np.testing.assert_array_equal(both.values, whole.values)
    np.testing.assert_array_equal(both.offsets, whole.offsets)


def test_what_a_row_has_is_named(cache):
    assert list(cache.signals) == ["embedding", "hidden", "importance", "selected", "grams"]
    with pytest.raises(DistilvecError, match=r"^\[cache.path\] .*'embedding'"):
        cache.read_ragged(np.array([0]), "embedding")
    with pytest.raises(DistilvecError, match=r"^\[cache.path\] .*'hidden'"):
        cache.read(np.array([0]), "hidden")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("hidden", lambda found: Ragged(found.values[:, 1:], found.lengths), "hidden .*shape"),
        ("hidden", lambda found: Ragged(found.values.astype(np.int16), found.lengths), "type int16"),
        ("grams", lambda found: Ragged(found.values, found.lengths + 1), "grams .*shape"),
        ("importance", lambda found: replace(found, values=spoilt(found, 2)), "importance holds NaN.*'text 2'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(cache, name, change, words):
    fill(cache, range(10, 13))
    before = {path.name: path.read_bytes() for path in cache.folder.iterdir()}
    signals, _ = rows_of(range(5))
    with pytest.raises(DistilvecError, match=words):
        cache.append(keys(*range(5)), {**signals, name: change(signals[name])}, lambda row: f"text {row}")
    assert {path.name: path.read_bytes() for path in cache.folder.iterdir()} == before


def spoilt(found, row):
    values = found.values.copy()
    values[found.offsets[row]] = np.nan
    return values


@pytest.mark.parametrize("signal", ["hidden", "hidden-offsets", "grams"])
@pytest.mark.parametrize("kind", ["missing", "truncated", "damaged"])
def test_damage_is_found_and_repaired(cache, kind, signal):
    for shard in range(3):
        fill(cache, range(shard * 5, shard * 5 + 5), shard)
    pristine = {path.name: path.read_bytes() for path in cache.folder.glob("*.npy")}
    damage(cache.folder / f"00001.{signal}.npy", kind)
    (problem,) = cache.verify()
    assert all(words in problem for words in (f"00001.{signal}.npy", kind, "5 rows must be computed again"))
    TeacherCache.verify_folder(cache.folder, repair=True)
    repaired = TeacherCache.create_or_open(cache.folder, WITH_TOKENS, 16)
    assert len(repaired) == 10 and repaired.verify() == []
    fill(repaired, range(5, 10), 1)
    assert {path.name: path.read_bytes() for path in cache.folder.glob("*.npy")} == pristine


@pytest.mark.parametrize("call", [0, 3, 9])
def test_a_full_disk_is_told_and_leaves_nothing(cache, monkeypatch, call):
    fill(cache, range(5))
    before = {path.name: path.read_bytes() for path in cache.folder.iterdir() if path.name != "lock"}
    write, calls = journal.write_synced, []

    def fails_half_way(file, content):
        calls.append(1)
        if len(calls) == call + 1:
            file.write(bytes(content)[:7])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(journal, "write_synced", fails_half_way)
    with pytest.raises(DistilvecError, match="no space left"):
        fill(cache, range(5, 10), 1)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in cache.folder.iterdir() if path.name != "lock"} == before
    fill(cache, range(5, 10), 1)
    assert len(TeacherCache.open(cache.folder)) == 10


def test_bytes_are_told_by_signal(cache):
    fill(cache, range(9))
    report = TeacherCache.open(cache.folder).inspect()
    by_signal = report["bytes_per_text_by_signal"]
    assert list(by_signal) == ["keys", "embedding", "hidden", "importance", "selected", "grams"]
    files = [cache.folder / f"00000.hidden{part}.npy" for part in ("", "-offsets")]
    assert by_signal["hidden"] == pytest.approx(sum(path.stat().st_size for path in files) / 9, abs=0.1)
    assert sum(by_signal.values()) == pytest.approx(report["bytes_per_text"], abs=0.5)
    assert report["manifest"]["tokens"]["divisor"] == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden", "float16"),
        ("gram_layers", (4,)),
        ("divisor", 2),
        ("student_tokenizer", "beef"),
        ("alignment", "mined"),
    ],
)
def test_other_tokens_are_refused_with_the_field_named(cache, field, value):
    with pytest.raises(DistilvecError, match=rf"tokens\.{field}: found .*, expected .*") as error:
        TeacherCache.create_or_open(cache.folder, replace(MANIFEST, tokens=replace(TOKENS, **{field: value})))
    assert len(str(error.value).splitlines()) == 3
    assert "hidden" in TeacherCache.create_or_open(cache.folder, MANIFEST).signals, (
        "it answers for those who want no tokens"
    )


def test_a_manifest_comes_back_from_its_file(tmp_path):
    for manifest in (MANIFEST, WITH_TOKENS):
        (tmp_path / "manifest.json").write_text(manifest.to_json())
        assert read_manifest(tmp_path / "manifest.json") == manifest
    assert MANIFEST.fingerprint != WITH_TOKENS.fingerprint
