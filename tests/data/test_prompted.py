"""A corpus behind another teacher's prompts: its texts and keys, kept by content, and caches of rows that share a key."""  # noqa: E501

from __future__ import annotations

import numpy as np
import pytest
from samples import make_texts

from distilvec.config.schema import CorpusSection, SourceSection
from distilvec.data.corpus import build_corpus, text_key, with_prompts
from distilvec.teachers.cache.fill import fill_cache
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.encode import EmbeddedBatch

PROMPTS = {"query": "find: ", "document": "read: "}


@pytest.fixture
def corpus(tmp_path):
    """Queries and documents, twenty texts of which are both."""
    texts = make_texts(60)
    for name, part in (("queries", texts[:40]), ("documents", texts[20:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(part), encoding="utf-8")
    sources = [
        SourceSection(path=tmp_path / "queries.txt", role="query"),
        SourceSection(path=tmp_path / "documents.txt"),
    ]
    return build_corpus(CorpusSection(sources=sources, validation_rows=8), PROMPTS, tmp_path / "corpus")


def test_texts_and_keys_follow_the_prompts(corpus, tmp_path):
    found = with_prompts(corpus, {"query": "q ", "document": ""}, tmp_path / "keys")
    texts = corpus.texts(range(80))
    expected = ["q " + text for text in texts[:40]] + texts[40:]
    assert found.prompted(range(80)) == expected and corpus.prompted([0]) == ["find: " + texts[0]], (
        "the first one is as it was"
    )
    assert [key.tobytes() for key in found.keys[:40]] == [text_key("q ", text) for text in texts[:40]]
    assert [key.tobytes() for key in found.keys[40:]] == [text_key("", text) for text in texts[40:]]
    assert found.fingerprint != corpus.fingerprint and len(corpus) == len(found) == 80


def test_it_is_the_corpus_itself_where_its_prompts_are_the_same(corpus, tmp_path):
    assert with_prompts(corpus, dict(PROMPTS), tmp_path / "keys") is corpus and not (tmp_path / "keys").exists()


def test_it_is_kept_and_damage_is_mended(corpus, tmp_path):
    first = with_prompts(corpus, {}, tmp_path / "keys")
    (folder,) = (path for path in (tmp_path / "keys").iterdir() if path.is_dir())
    before = (folder / "keys.npy").stat()
    assert with_prompts(corpus, {}, tmp_path / "keys").fingerprint == first.fingerprint
    assert (folder / "keys.npy").stat().st_mtime_ns == before.st_mtime_ns
    keys = first.keys.tolist()
    (folder / "keys.npy").write_bytes((folder / "keys.npy").read_bytes()[:-5])
    assert with_prompts(corpus, {}, tmp_path / "keys").keys.tolist() == keys


class Letters:
    """A teacher whose vectors count letters; it dies after so many texts."""

    def __init__(self, most=10_000):
        self.left = most

    def batches(self, prompted, pre_dense=False):
        self.left -= len(prompted)
        if self.left < 0:
            raise KeyboardInterrupt
        vectors = np.array([[len(text), text.count("e"), 1] for text in prompted], dtype=np.float32)
        yield EmbeddedBatch(np.arange(len(prompted)), {"embedding": vectors}, 1.0)


def test_rows_with_one_key_are_computed_once_and_a_killed_fill_ends_with_the_same_bytes(corpus, tmp_path):
    found = with_prompts(corpus, {}, tmp_path / "keys")
    manifest = Manifest(
        model="letters", revision=None, weights="w", prompts={}, pooling=None, normalized=False, width=3,
        pre_dense_width=None, max_length=None, truncation_side=None, truncate_dim=None, compute_dtype="float32",
        backend="test", store_dtype="float32",
    )  # fmt: skip

    def fill(name, teacher):
        cache = TeacherCache.create_or_open(tmp_path / name, manifest, 16)
        fill_cache(cache, found, teacher)
        return cache

    cache = fill("whole", Letters(most=60))
    assert len(cache) == 60 and [shard.rows for shard in cache._shards] == [16, 16, 16, 12]
    rows = cache.read(cache.positions(found.keys))
    np.testing.assert_array_equal(rows, next(Letters().batches(found.prompted(range(80)))).embedding)
    with pytest.raises(KeyboardInterrupt):
        fill("killed", Letters(most=35))
    fill("killed", Letters())
    for path in sorted((tmp_path / "whole").glob("*.npy")):
        assert (tmp_path / "killed" / path.name).read_bytes() == path.read_bytes()
