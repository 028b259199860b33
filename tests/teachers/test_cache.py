"""The cache keeps what it is given, notices every damage, and refuses what must not be stored."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.core.files import scratch
from distilvec.core.hashing import checksum
from distilvec.teachers.cache import journal
from distilvec.teachers.cache.index import KeyIndex, WantedKeys
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache

MANIFEST = Manifest(
    model="teacher",
    revision=None,
    weights="00ff",
    prompts={"query": "", "document": ""},
    pooling="mean",
    normalized=True,
    width=8,
    pre_dense_width=None,
    max_length=128,
    truncation_side="right",
    truncate_dim=None,
    compute_dtype="float32",
    backend="sentence-transformers",
)


def keys(*numbers):
    return np.array([number.to_bytes(16, "little") for number in numbers], dtype="V16")


def vectors(rows, width=8, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def fill(cache, numbers, seed=0):
    numbers = list(numbers)
    found = vectors(len(numbers), seed=seed)
    cache.append(keys(*numbers), {"embedding": found}, lambda row: f"text {numbers[row]}")
    return found


@pytest.fixture
def cache(tmp_path):
    return TeacherCache.create_or_open(tmp_path / "teacher", MANIFEST, 16)


def test_vectors_come_back_by_key_in_any_order(cache):
    exact = np.concatenate([fill(cache, range(10)), fill(cache, range(10, 25), 1), fill(cache, range(25, 30), 2)])
    for opened in (cache, TeacherCache.open(cache.folder)):
        assert len(opened) == 30
        order = np.random.default_rng(3).permutation(30)
        positions = opened.positions(keys(*order.tolist()))
        np.testing.assert_array_equal(opened.read(positions), exact[order].astype(np.float16).astype(np.float32))
        assert opened.read(positions).dtype == np.float32
        np.testing.assert_array_equal(opened.read(np.arange(30)), exact.astype(np.float16))
        np.testing.assert_array_equal(opened.positions(keys(5, 1000, 29)) < 0, [False, True, False])
        assert opened.read(np.empty(0, dtype=np.int64)).shape == (0, 8)
        assert opened.read(np.array([4, 4, 5])).shape == (3, 8)
        for wrong in (-1, 30):
            with pytest.raises(IndexError):
                opened.read(np.array([wrong]))


def test_float32_is_exact_and_pre_dense_is_kept(tmp_path):
    cache = TeacherCache.create_or_open(tmp_path / "c", replace(MANIFEST, store_dtype="float32", pre_dense_width=3))
    exact = {"embedding": vectors(5), "pre_dense": vectors(5, 3)}
    cache.append(keys(*range(5)), exact, str)
    for name, values in exact.items():
        np.testing.assert_array_equal(TeacherCache.open(tmp_path / "c").read(np.arange(5), name), values)
    with pytest.raises(DistilvecError, match=r"^\[cache.path\] .*'tokens'"):
        cache.read(np.arange(5), "tokens")


def test_equal_keys_are_stored_once(cache):
    cache.append(keys(1, 2, 1, 3), {"embedding": vectors(4)}, str)
    cache.append(keys(3, 2), {"embedding": vectors(2, seed=9)}, str)
    cache.append(keys(3, 4), {"embedding": vectors(2, seed=8)}, str)
    assert len(cache) == 4
    np.testing.assert_array_equal(cache.positions(keys(1, 2, 3, 4)), [0, 1, 2, 3])
    np.testing.assert_array_equal(cache.read(np.array([2])), vectors(4)[3:].astype(np.float16))
    assert cache.inspect()["shards"] == 2


def test_index_finds_keys_that_share_their_first_half():
    index = KeyIndex()
    halves = np.random.default_rng(0).integers(0, 4, (500, 2), dtype=np.uint64) + np.arange(500, dtype=np.uint64)[
        :, None
    ] * [0, 8]
    shuffled = np.random.default_rng(1).permutation(halves)
    made = shuffled.astype(np.uint64).view("V16").reshape(-1)
    for start in range(0, 500, 37):
        index.add(made[start : start + 37])
    np.testing.assert_array_equal(index.positions(made), np.arange(500))
    missing = (shuffled.astype(np.uint64) + np.uint64(2**40)).view("V16").reshape(-1)
    assert (index.positions(missing) == -1).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", "11"),
        ("prompts", {"query": "q: ", "document": ""}),
        ("max_length", 64),
        ("pooling", "cls"),
        ("store_dtype", "float32"),
    ],
)
def test_another_manifest_is_refused_with_the_field_named(cache, field, value):
    fill(cache, range(3))
    with pytest.raises(
        DistilvecError, match=rf"\[cache.path\](.|\n)*{field}: found .*, expected .*(.|\n)*recipe"
    ) as error:
        TeacherCache.create_or_open(cache.folder, replace(MANIFEST, **{field: value}))
    assert len(str(error.value).splitlines()) == 3
    assert len(TeacherCache.create_or_open(cache.folder, replace(MANIFEST, model="the same elsewhere"))) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.__setitem__((3, 2), np.nan), "NaN or infinity.*'text 3'.*float32"),
        (lambda found: found.__setitem__((2, 0), np.inf), "NaN or infinity.*'text 2'"),
        (lambda found: found.__setitem__((1, 0), 70_000), "overflow float16.*'text 1'.*cache.dtype=float32"),
        (lambda found: found.__setitem__(0, 0), "all zeros.*'text 0'"),
        (lambda found: found.__setitem__(4, 1e-12), "all zeros in float16.*'text 4'.*cache.dtype=float32"),
    ],
)
def test_bad_values_are_refused_and_nothing_is_written(cache, change, words):
    fill(cache, range(10, 15))
    before = {path.name: path.read_bytes() for path in cache.folder.iterdir()}
    found = vectors(5)
    change(found)
    with pytest.raises(DistilvecError, match=words):
        cache.append(keys(*range(5)), {"embedding": found}, lambda row: f"text {row}")
    assert {path.name: path.read_bytes() for path in cache.folder.iterdir()} == before
    fill(cache, range(5))
    assert len(cache) == 10


def test_wrong_shapes_are_refused(cache):
    with pytest.raises(DistilvecError, match=r"shape \(5, 7\) .*expected \[5, 8\]"):
        cache.append(keys(*range(5)), {"embedding": vectors(5, 7)}, str)
    with pytest.raises(DistilvecError, match=r"shape \(4, 8\) .*expected \[5, 8\]"):
        cache.append(keys(*range(5)), {"embedding": vectors(4)}, str)


def test_long_texts_are_quoted_shortened(cache):
    with pytest.raises(DistilvecError) as error:
        cache.append(keys(1), {"embedding": np.zeros((1, 8), np.float32)}, lambda row: "word\n" * 5000)
    assert len(str(error.value)) < 500


def damage(path, kind):
    if kind == "missing":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("signal", ["keys", "embedding"])
@pytest.mark.parametrize("kind", ["missing", "truncated", "damaged"])
def test_damage_is_found_and_repaired(cache, kind, signal):
    for shard in range(3):
        fill(cache, range(shard * 5, shard * 5 + 5), shard)
    pristine = cache.folder.with_name("pristine")
    shutil.copytree(cache.folder, pristine)
    damage(cache.folder / f"00001.{signal}.npy", kind)
    (problem,) = cache.verify()
    assert all(words in problem for words in ("shard 1", f"00001.{signal}.npy", kind, "5 rows must be computed again"))
    if kind != "damaged":
        with refused("cache.path", f"00001.{signal}.npy is {kind}"):
            TeacherCache.open(cache.folder)
    assert TeacherCache.verify_folder(cache.folder, repair=True) == [problem]
    assert TeacherCache.verify_folder(cache.folder) == []
    repaired = TeacherCache.create_or_open(cache.folder, MANIFEST, 16)
    assert len(repaired) == 10
    np.testing.assert_array_equal(repaired.positions(keys(*range(5, 10))), [-1] * 5)
    fill(repaired, range(5, 10), 1)
    for path in pristine.glob("*.npy"):
        assert (cache.folder / path.name).read_bytes() == path.read_bytes()


def test_flipped_bits_are_noticed_when_a_file_is_first_read(cache, monkeypatch):
    for shard in range(3):
        fill(cache, range(shard * 5, shard * 5 + 5), shard)
    read = []
    monkeypatch.setattr("distilvec.core.hashing.checksum", lambda path: read.append(path.name) or checksum(path))
    damage(cache.folder / "00001.embedding.npy", "damaged")
    damage(cache.folder / "00002.keys.npy", "damaged")
    with refused("cache.path", "00002.keys.npy"):
        TeacherCache.open(cache.folder).positions(keys(1))
    damage(cache.folder / "00002.keys.npy", "damaged")  # back again
    opened = TeacherCache.open(cache.folder)
    assert opened.read(np.arange(5)).shape == (5, 8) and opened.read(np.arange(10, 15)).shape == (5, 8)
    with refused("cache.path", "00001.embedding.npy"):
        opened.read(np.arange(15))
    assert read.count("00000.embedding.npy") == 0, "written by this process"
    before = len(read)
    TeacherCache.open(cache.folder).read(np.arange(5))
    assert len(read) == before


def test_a_damaged_journal_line_is_named(cache):
    for shard in range(3):
        fill(cache, range(shard * 5, shard * 5 + 5), shard)
    journal = cache.folder / "shards.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(lines[0] + "{nonsense}\n" + lines[2])
    with pytest.raises(DistilvecError, match=r"line 2 is damaged.*--repair"):
        TeacherCache.open(cache.folder)
    assert "1 damaged line" in TeacherCache.verify_folder(cache.folder, repair=True)[0]
    assert len(TeacherCache.open(cache.folder)) == 10


def test_leftovers_of_a_killed_writer_go(cache):
    fill(cache, range(5))
    whole = (cache.folder / "shards.jsonl").read_bytes()
    (cache.folder / "shards.jsonl").write_bytes(whole + b'{"shard": 1, "rows"')
    left = scratch(cache.folder / "00001.embedding.npy").name.replace(f"-{os.getpid()}", "-99999999")
    (cache.folder / left).write_bytes(b"half")
    shutil.copy(cache.folder / "00000.keys.npy", cache.folder / "00001.keys.npy")
    others = [
        "12345.mine.npy",
        "00001.keys.tmp.npy",
        "notes.tmp",
        "my.tmp.folder",
        ".hidden",
        "x00001.keys.npy",
        "00001.keys.npy.bak",
    ]
    for name in others:
        (cache.folder / name).write_text("mine")
    reopened = TeacherCache.create_or_open(cache.folder, MANIFEST, 16)
    assert len(reopened) == 5
    fill(reopened, range(5, 8), 1)
    assert sorted(path.name for path in cache.folder.iterdir()) == sorted(
        [
            "manifest.json",
            "shards.jsonl",
            "lock",
            *others,
            *(f"0000{shard}.{name}.npy" for shard in (0, 1) for name in ("keys", "embedding")),
        ]
    )
    assert [(cache.folder / name).read_text() for name in others] == ["mine"] * len(others)
    assert (cache.folder / "shards.jsonl").read_bytes().startswith(whole)
    assert TeacherCache.open(cache.folder).verify() == []


@pytest.mark.parametrize("call", range(3))
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
    with refused("cache.path", "MB were needed"):
        fill(cache, range(5, 10), 1)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in cache.folder.iterdir() if path.name != "lock"} == before
    fill(cache, range(5, 10), 1)
    assert len(TeacherCache.open(cache.folder)) == len(cache) == 10


def _fill_after(start, folder, numbers):
    start.wait()
    fill(TeacherCache.create_or_open(folder, MANIFEST, 16), numbers)


def test_a_writer_waits_for_another_and_readers_do_not(cache):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    waiting = context.Process(target=_fill_after, args=(start, cache.folder, [1, 2, 7]))
    waiting.start()  # before the lock is taken: a child would share it
    with cache.writing():
        start.wait()
        fill(cache, range(3))
        with pytest.raises(DistilvecError, match=r"^\[cache.path\] process \d+ is writing"):
            TeacherCache.verify_folder(cache.folder, repair=True)
        waiting.join(0.5)
        assert waiting.is_alive() and len(TeacherCache.open(cache.folder)) == 3
    waiting.join()
    assert waiting.exitcode == 0
    assert len(TeacherCache.open(cache.folder)) == 4  # the other saw what was written meanwhile
    with (cache.folder / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write_part(folder, start, part):
    start.wait()
    cache = TeacherCache.create_or_open(folder, MANIFEST, 16)
    fill(cache, range(part * 10, part * 10 + 10))
    fill(cache, range(15))


def test_a_folder_that_another_process_makes_meanwhile_is_no_stranger(tmp_path, monkeypatch):
    """Between two looks at the folder it appears."""
    folder, is_dir = tmp_path / "cache", Path.is_dir

    def looked_at(path):
        found = is_dir(path)
        if path == folder and not found:
            folder.mkdir()
        return found

    monkeypatch.setattr(Path, "is_dir", looked_at)
    assert len(TeacherCache.create_or_open(folder, MANIFEST, 16)) == 0


def test_processes_begin_and_fill_one_cache_together(tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    workers = [
        context.Process(target=_write_part, args=(tmp_path / "deep" / "cache", start, part)) for part in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    cache = TeacherCache.open(tmp_path / "deep" / "cache")
    assert len(cache) == 40 and (cache.positions(keys(*range(40))) >= 0).all() and cache.verify() == []


def test_folders_that_hold_something_else_are_refused(tmp_path):
    for name in ("notes.txt", "lock", "manifest.json.tmp.npy"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(DistilvecError, match=r"^\[cache.path\].*is not a teacher cache"):
            TeacherCache.create_or_open(folder, MANIFEST)
        assert [(path.name, path.read_text()) for path in folder.iterdir()] == [(name, "mine")]
    with pytest.raises(DistilvecError, match=r"has no manifest.json"):
        TeacherCache.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with refused("cache.path", "manifest"):
        TeacherCache.open(tmp_path)
    changed = json.loads(MANIFEST.to_json())
    changed["manifest"]["max_length"] = 129
    (tmp_path / "manifest.json").write_text(json.dumps(changed))
    with pytest.raises(DistilvecError, match="fields do not match its fingerprint"):
        TeacherCache.open(tmp_path)
    newer = json.loads(MANIFEST.to_json()) | {"format": 99}
    (tmp_path / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(DistilvecError, match="format 99"):
        TeacherCache.open(tmp_path)


def test_inspect_counts_and_measures_the_number_format(cache):
    assert cache.inspect()["rows"] == 0
    exact = fill(cache, range(9))
    report = TeacherCache.open(cache.folder).inspect()
    stored = exact.astype(np.float16).astype(np.float64)
    cosine = (exact * stored).sum(1) / np.linalg.norm(exact.astype(np.float64), axis=1) / np.linalg.norm(stored, axis=1)
    assert report["worst_cosine"] == pytest.approx(cosine.min(), abs=1e-7)
    assert 0.9999 < report["worst_cosine"] < 1
    assert (report["rows"], report["shards"]) == (9, 1)
    assert report["bytes"] == sum(path.stat().st_size for path in cache.folder.glob("*.npy")) == 2 * 128 + 9 * 32
    assert report["manifest"]["max_length"] == 128


def test_files_of_further_signals_do_not_disturb(cache):
    exact = fill(cache, range(4))
    np.save(cache.folder / "00000.tokens.npy", np.arange(9))
    np.save(cache.folder / "00000.tokens-offsets.npy", np.arange(5))
    files = {
        name: [path.stat().st_size, checksum(path)]
        for name in ("tokens", "tokens-offsets")
        for path in [cache.folder / f"00000.{name}.npy"]
    }
    with (cache.folder / "shards.jsonl").open("a") as journal:
        journal.write(json.dumps({"shard": 0, "rows": 4, "files": files}) + "\n")
    opened = TeacherCache.create_or_open(cache.folder, MANIFEST, 16)
    np.testing.assert_array_equal(opened.read(np.arange(4)), exact.astype(np.float16))
    fill(opened, range(4, 6), 1)
    assert (cache.folder / "00000.tokens.npy").exists()
    assert opened.verify() == []
    damage(cache.folder / "00000.tokens.npy", "damaged")
    assert "00000.tokens.npy" in opened.verify()[0]


def test_files_stay_plain_npy_and_none_is_open(cache):
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for shard in range(5):
        fill(cache, range(shard * 3, shard * 3 + 3), shard)
    whole = np.concatenate([np.load(path, mmap_mode="r") for path in sorted(cache.folder.glob("*.embedding.npy"))])
    np.testing.assert_array_equal(cache.read(np.arange(14, -1, -1)), whole[::-1])
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    cache.close()
    np.testing.assert_array_equal(cache.read(np.array([7])), whole[7:8])


def test_rows_that_a_repair_has_replaced_are_found_again(cache):
    """Another process drops a damaged shard and fills other texts, whose shard has its number."""
    fill(cache, range(4))
    fill(cache, range(10, 14))
    other = TeacherCache.open(cache.folder)
    (cache.folder / "00001.embedding.npy").unlink()
    assert TeacherCache.verify_folder(cache.folder, repair=True)
    new = fill(TeacherCache.open(cache.folder), range(20, 24), seed=3)
    with other.writing():
        assert (other.positions(keys(*range(10, 14))) < 0).all()
        positions = other.positions(keys(*range(20, 24)))
        np.testing.assert_allclose(other.read(positions), new, atol=2e-3)


def test_an_index_of_many_rows_finds_them_in_all_parts(monkeypatch):
    """Keys move to several parts when there are many; some were added before, and some share their first half."""
    monkeypatch.setattr("distilvec.teachers.cache.index._ROWS_OF_ONE_PART", 1000)
    halves = np.random.default_rng(0).integers(0, 2**63, (5000, 2), dtype=np.uint64) * np.uint64(2)
    halves[1::2, 0] = halves[::2, 0]
    made = halves.view("V16").reshape(-1)
    index = KeyIndex()
    for start in range(0, 5000, 130):
        index.add(made[start : start + 130])
        np.testing.assert_array_equal(index.positions(made[: start + 130]), np.arange(min(5000, start + 130)))
    assert (index.positions((halves + np.uint64(1)).view("V16").reshape(-1)) == -1).all()
    wanted = WantedKeys(index)
    order = np.random.default_rng(1).integers(0, 5000, 9000)
    taken = np.concatenate([wanted.take(made[order[:4000]]), 4000 + wanted.take(made[order[4000:]])])
    np.testing.assert_array_equal(taken, np.sort(np.unique(order, return_index=True)[1]))
