"""A cache that several processes fill, in shares or on Ray, has the bytes of one process."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from commands import Command
from refusals import refused
from test_precompute import content, make_corpus

from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache import fill as filling
from distilvec.teachers.cache import parts
from distilvec.teachers.cache.fill import compute_vectors, count_missing, fill_cache
from distilvec.teachers.cache.parts import Share, fill_share, merge, part_folders
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.open import load_teacher

KILLS = int(os.environ.get("DISTILVEC_KILLS", "1"))


@pytest.fixture
def teacher(tiny_model):
    return load_teacher(TeacherSection(model=str(tiny_model), prompts={"query": "find: "}), "cpu")


class Work:
    """A corpus of 242 rows, caches of it in shards of 20 rows, and a count of the texts that were embedded."""

    def __init__(self, teacher, folder: Path):
        self.teacher, self.folder, self.corpus, self.embedded = teacher, folder, make_corpus(folder, 220), 0

    def cache(self, name: str) -> TeacherCache:
        return TeacherCache.create_or_open(self.folder / name, self.teacher.manifest(), 20)

    def batches(self, prompted, pre_dense=False):
        self.embedded += len(prompted)
        return self.teacher.batches(prompted, pre_dense)

    def share(self, cache: TeacherCache, text: str) -> TeacherCache:
        def compute(rows):
            return compute_vectors(cache.manifest, self.corpus, self, rows)

        part = Share.parse(text).open(cache)
        list(fill_share(cache, part, Share.parse(text), self.corpus, compute))
        return part


@pytest.fixture
def work(teacher, tmp_path):
    return Work(teacher, tmp_path)


def test_shares_merge_to_the_bytes_of_one_process(work):
    whole, cache = work.cache("whole"), work.cache("cache")
    fill_cache(whole, work.corpus, work)
    work.embedded = 0
    for text in ("2/3", "1/3", "3/3", "2/3"):  # the last one has nothing to do
        work.share(cache, text)
    assert work.embedded == len(work.corpus) == 242
    parts = part_folders(cache.folder)
    assert [part.name for part in parts] == ["cache.1-of-3", "cache.2-of-3", "cache.3-of-3"]
    assert [shard.number for shard in TeacherCache.open(parts[1])._shards] == [1, 4, 7, 10]
    assert merge(cache, parts) == 13 and not part_folders(cache.folder)
    assert content(cache.folder) == content(whole.folder) and not cache.verify()
    rows = np.arange(len(work.corpus))
    np.testing.assert_array_equal(cache.read(rows), whole.read(rows))


def test_a_share_of_a_changed_corpus_keeps_what_it_has(work):
    cache, whole = work.cache("main"), work.corpus
    work.corpus = make_corpus(work.folder / "before", 45)
    part = work.share(cache, "1/2")
    before = [part.positions(np.asarray(work.corpus.keys)) >= 0, np.asarray(work.corpus.keys)]
    work.corpus = whole
    found = TeacherCache.open(work.share(cache, "1/2").folder)
    assert before[0].any() and (found.positions(before[1][before[0]]) >= 0).all()
    assert TeacherCache.verify_folder(found.folder) == []


def test_late_shares_and_a_cache_that_has_some_rows_end_with_the_same_bytes(work, monkeypatch):
    whole, cache = work.cache("whole"), work.cache("cache")
    small = make_corpus(work.folder / "small", 50)
    for one in (whole, cache):
        fill_cache(one, small, work)
    fill_cache(whole, work.corpus, work)
    for text in ("2/2", "1/2"):  # merged one by one, on a file system without links
        work.share(cache, text)
        monkeypatch.setattr(os, "link", refuse_links)
        merge(cache, part_folders(cache.folder))
        assert not TeacherCache.open(cache.folder).verify()
        cache = work.cache("cache")
    assert not count_missing(cache, work.corpus)
    assert content(cache.folder) == content(whole.folder)


def refuse_links(*_):
    raise OSError("no links")


def test_a_share_is_resumed_and_a_merge_begun_again(work, monkeypatch):
    whole, cache = work.cache("whole"), work.cache("cache")
    fill_cache(whole, work.corpus, work)
    work.embedded, most = 0, 3

    class Killed(Exception):
        pass

    append = TeacherCache.append

    def until(self, *arguments):
        if len(self._shards) == most:
            raise Killed
        append(self, *arguments)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(TeacherCache, "append", until)
        work.share(cache, "1/2")
    work.share(cache, "1/2")
    work.share(cache, "2/2")
    assert work.embedded == len(work.corpus) + 20
    adopt = TeacherCache.adopt

    def one(self, *arguments):
        if len(self._shards) == 5:
            raise Killed
        adopt(self, *arguments)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(TeacherCache, "adopt", one)
        merge(cache, part_folders(cache.folder))
    assert merge(work.cache("cache"), part_folders(cache.folder)) == 8
    assert content(cache.folder) == content(whole.folder)


def test_a_merge_that_was_killed_while_it_removed_the_shares_is_begun_again(work, monkeypatch):
    cache = work.cache("cache")
    for text in ("1/2", "2/2"):
        work.share(cache, text)

    def killed(folder):
        """Remove the vectors, in whatever order a folder is removed, and no more."""
        for file in folder.glob("*.embedding.npy"):
            file.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(parts, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            merge(cache, part_folders(cache.folder))
    cache = work.cache("cache")
    assert merge(cache, part_folders(cache.folder)) == 0 and not cache.verify()
    assert not count_missing(cache, work.corpus)
    left = [path.name for path in work.folder.iterdir() if "-of-2" in path.name]
    assert left == [], "nothing of the shares is left"


def test_damaged_and_foreign_shares_are_refused(work):
    cache = work.cache("cache")
    part = work.share(cache, "1/2")
    file = part.folder / "00002.embedding.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with refused("cache.path", "00002.embedding.npy"):
        merge(work.cache("cache"), [part.folder])
    TeacherCache.verify_folder(part.folder, repair=True)
    work.share(cache, "1/2")
    TeacherCache.create_or_open(work.folder / "another", work.teacher.manifest("float32"))
    with refused("cache.path", "another"):
        merge(work.cache("cache"), [work.folder / "another"])
    fill_cache(work.cache("cache"), make_corpus(work.folder / "small", 45), work)
    with refused("cache.path", "5 of the 20"):
        merge(work.cache("cache"), [part.folder])


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/0", "-1/2"])
def test_a_share_is_a_number_of_a_number(text):
    with pytest.raises(DistilvecError, match=r"^\[--shard\].*2/4"):
        Share.parse(text)


def test_equal_keys_are_planned_once(work):
    class Twice:
        keys = np.concatenate([np.asarray(work.corpus.keys)] * 2)

        def __len__(self):
            return len(self.keys)

    planned = np.concatenate([rows for _, rows in filling.plan_shards(work.cache("cache"), Twice())])
    np.testing.assert_array_equal(planned, np.arange(len(work.corpus)))


# -- the command -------------------------------------------------------------------------------------------------------


def command_recipe(folder: Path, model: Path, texts: int, rows: int, **more) -> Path:
    from samples import make_texts

    (folder / "texts.txt").write_text("\n".join(make_texts(texts)), encoding="utf-8")
    tree = {
        "name": "shared",
        "teacher": {"model": str(model)},
        "student": {"model": "teacher", "layers": 2},
        "corpus": {"sources": [{"path": "texts.txt"}], "validation_rows": 16},
        "cache": {"shard_rows": rows},
        "method": {"name": "redact"},
        "train": {"batch_size": 8, "device": "cpu"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree | more), encoding="utf-8")
    return folder / "recipe.yaml"


def filled(*arguments: object, cache: Path) -> Path:
    command = Command("cache", *arguments, DISTILVEC_CACHE=str(cache))
    assert command.wait() == 0, command.communicate()[1]
    return Path(command.communicate()[0].strip())


def test_shares_by_the_command(tiny_model, tmp_path):
    from distilvec.__main__ import main  # noqa: F401 - the commands fork from a server that has it

    recipe = command_recipe(tmp_path, tiny_model, 120, 16)
    whole = filled("fill", recipe, cache=tmp_path / "one")
    for text in ("1/2", "2/2"):
        part = filled("fill", recipe, "--shard", text, cache=tmp_path / "two")
        if text == "1/2":
            command = Command("cache", "merge", recipe, DISTILVEC_CACHE=str(tmp_path / "two"))
            assert command.wait() == 2 and "[--shard] " in command.communicate()[1]
    assert not part.exists() or part.name.endswith(".2-of-2")
    assert content(filled("merge", recipe, cache=tmp_path / "two")) == content(whole)


def test_shares_of_a_sweep_are_merged_by_one_command(tiny_model, tmp_path):
    sweep = {"seeds": [0, 1], "grid": {"teacher.max_length": [8, 16]}}  # two caches: the seeds read the same vectors
    recipe = command_recipe(tmp_path, tiny_model, 60, 16, sweep=sweep)

    def folders(*arguments: object, cache: str) -> list[Path]:
        command = Command("cache", *arguments, DISTILVEC_CACHE=str(tmp_path / cache))
        assert command.wait() == 0, command.communicate()[1]
        return [Path(line) for line in command.communicate()[0].split()]

    whole = folders("fill", recipe, cache="one")
    assert len(whole) == 2
    for share in ("1/2", "2/2"):
        folders("fill", recipe, "--shard", share, cache="two")
    merged = folders("merge", recipe, cache="two")
    assert [content(folder) for folder in merged] == [content(folder) for folder in whole]


@pytest.mark.slow
def test_killed_workers_on_ray_change_no_byte(tiny_model, tmp_path):
    """DISTILVEC_KILLS sets how many workers are killed, at random moments."""
    pytest.importorskip("ray")
    recipe = command_recipe(tmp_path, tiny_model, 200 + 400 * KILLS, 16)
    whole = filled("fill", recipe, cache=tmp_path / "one")
    command = Command(
        "cache", "fill", recipe, "--ray", "local", "--workers", "2", DISTILVEC_CACHE=str(tmp_path / "two")
    )
    folder, generator, kills = tmp_path / "two" / "teachers" / whole.name, random.Random(0), 0
    while kills < KILLS:
        while len(list(folder.glob("*.embedding.npy"))) <= kills:  # in any order: a dead worker's shard comes later
            assert command.returncode is None, (kills, command.returncode, command.communicate())
            time.sleep(0.01)
        writer = psutil.Process(command.pid)
        writer.suspend()  # so that the shards that are left wait for the kill, however fast the machine is
        if workers := [one for one in writer.children(recursive=True) if is_worker(one)]:
            generator.choice(workers).kill()
            kills += 1
        writer.resume()
        time.sleep(generator.uniform(0, 0.05))
    assert command.wait() == 0, command.communicate()[1]
    assert content(folder) == content(whole)


def is_worker(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[0].startswith("ray::Worker")
    except (psutil.Error, IndexError):
        return False
