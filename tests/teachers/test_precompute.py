"""Filling a cache: every row once, in shards, and the same bytes however often the job is killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import SERVER
from samples import make_texts

from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import Corpus, build_corpus
from distilvec.teachers.cache.fill import count_missing, fill_cache
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.open import load_teacher

KILLS = int(os.environ.get("DISTILVEC_KILLS", "2"))
PROMPTS = {"query": "find: ", "document": ""}


def make_corpus(folder: Path, count: int):
    folder.mkdir(parents=True, exist_ok=True)
    texts = make_texts(count)
    (folder / "documents.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "queries.txt").write_text("\n".join(texts[: count // 10]), encoding="utf-8")
    sources = [SourceSection(path=folder / "documents.txt"), SourceSection(path=folder / "queries.txt", role="query")]
    return build_corpus(CorpusSection(sources=sources, validation_rows=8), PROMPTS, folder / "corpus")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}


@pytest.fixture
def teacher(tiny_model):
    return load_teacher(TeacherSection(model=str(tiny_model), prompts={"query": "find: "}), "cpu")


def test_every_row_gets_its_own_vector(teacher, tmp_path):
    corpus = make_corpus(tmp_path, 120)
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest("float32"), 50)
    told = [(step.done, step.total, step.work) for step in teacher.fill_steps(cache, corpus)]
    assert len(cache) == len(corpus) == 132
    assert [shard.rows for shard in cache._shards] == [50, 50, 32]
    found = cache.read(cache.positions(np.asarray(corpus.keys)))
    np.testing.assert_allclose(found, teacher.signals(corpus.prompted(range(132)))["embedding"], atol=1e-5)
    np.testing.assert_allclose(found[120:], teacher.embed(corpus.texts(range(120, 132)), "query"), atol=1e-5)
    assert told[0] == (0, 132, 0)
    assert told[-1] == (132, 132, 132)
    assert told == sorted(told)
    fill_cache(cache, corpus, None)  # nothing is missing: no teacher is needed


def test_only_missing_rows_are_embedded(teacher, tmp_path):
    small, large = make_corpus(tmp_path / "small", 60), make_corpus(tmp_path / "large", 100)
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 30)
    fill_cache(cache, small, teacher)
    embedded = []

    class Counting:
        def batches(self, prompted, pre_dense=False):
            embedded.extend(prompted)
            return teacher.batches(prompted, pre_dense)

    missing = count_missing(cache, large)
    fill_cache(cache, large, Counting())
    assert len(embedded) == missing == len(set(embedded)) < len(large)
    assert count_missing(cache, large) == count_missing(cache, small) == 0


def test_a_bad_vector_names_its_text_and_keeps_the_shards_before(teacher, tmp_path):
    corpus = make_corpus(tmp_path, 100)
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 40)

    class Broken:
        def batches(self, prompted, pre_dense=False):
            for batch in teacher.batches(prompted):
                batch.embedding[[prompted[row].endswith(" 57") for row in batch.rows]] = np.nan
                yield batch

    with pytest.raises(DistilvecError, match=r"NaN.* 57'"):
        fill_cache(cache, corpus, Broken())
    assert len(TeacherCache.open(cache.folder)) == 40
    fill_cache(cache, corpus, teacher)
    assert len(cache) == len(corpus)


def job(model: str, corpus: str, folder: str, most: int) -> None:
    """What is killed: one filling of the cache in `folder`, which goes no further than `most` rows."""
    torch.set_num_threads(1)
    teacher = load_teacher(TeacherSection(model=model, prompts={"query": "find: "}), "cpu")
    cache = TeacherCache.create_or_open(Path(folder), teacher.manifest(), 64)
    for step in teacher.fill_steps(cache, Corpus(Path(corpus))):
        if step.done > most:
            signal.pause()


def start(*arguments) -> multiprocessing.Process:
    process = SERVER.Process(target=job, args=arguments)
    process.start()
    return process


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tiny_model, tmp_path):
    """DISTILVEC_KILLS sets how many times the job is killed: a moment after some more shards are there."""
    corpus = make_corpus(tmp_path, max(1000, 64 * KILLS))
    rows, folder, generator, sizes = len(corpus), tmp_path / "killed", random.Random(0), [0]
    arguments = (str(tiny_model), str(corpus.folder))
    for number in range(1, KILLS + 1):
        process = start(*arguments, str(folder), rows * number // (KILLS + 1))
        files = 2 * generator.randint(sizes[-1], rows * number // (KILLS + 1) - 64) // 64
        while len(list(folder.glob("*"))) < files:
            assert process.is_alive()
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.02))
        process.kill()
        process.join()
        sizes.append(len(TeacherCache.open(folder)) if (folder / "manifest.json").exists() else 0)
    assert sizes == sorted(sizes) and 0 < sizes[-1] < rows, sizes
    ends = [start(*arguments, str(path), rows) for path in (folder, tmp_path / "whole")]
    for process in ends:
        process.join()
        assert process.exitcode == 0
    whole = content(tmp_path / "whole")
    assert content(folder) == whole
    assert len(whole) == 2 + 2 * -(-rows // 64)
