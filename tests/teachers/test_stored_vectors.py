"""A teacher's vectors of evaluation texts on disk: who shares them, what is not stored, what a kill leaves."""

from __future__ import annotations

import errno
import os
import shutil

import architectures
import numpy as np
import pytest
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import TeacherSection
from distilvec.teachers.cache import evaluation_vectors
from distilvec.teachers.cache.evaluation_vectors import evaluation_folder, evaluation_manifest, stored_batches
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.encode import EmbeddedBatch, collect
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher

TEXTS = make_texts(30)


def keeping(model, root, **settings):
    teacher = load_teacher(TeacherSection(model=str(model), **settings), "cpu")
    teacher.keep_in(root, teacher.manifest())
    return teacher


@pytest.fixture
def embedded(monkeypatch):
    """The texts that a model really embeds."""
    asked, batches = [], ModelEmbedder.batches

    def noted(self, prompted, *values, **named):
        asked.extend(prompted)
        return batches(self, prompted, *values, **named)

    monkeypatch.setattr(ModelEmbedder, "batches", noted)
    return asked


def test_kept_vectors_are_those_of_the_model(tiny_model, tmp_path, embedded):
    plain = load_teacher(TeacherSection(model=str(tiny_model)), "cpu").embed(TEXTS)
    del embedded[:]
    first = keeping(tiny_model, tmp_path)
    batches = list(first.embed_batches(TEXTS))
    vectors = collect(batches, len(TEXTS), 32)
    assert vectors.dtype == np.float32 and np.array_equal(vectors, plain), "float32, not a bit is lost"
    assert sum(batch.work for batch in batches) == pytest.approx(1)
    assert np.array_equal(keeping(tiny_model, tmp_path).embed(TEXTS[::-1]), plain[::-1])
    assert embedded == TEXTS, "once"


def test_only_what_is_missing_is_embedded_and_told(tiny_model, tmp_path, embedded):
    teacher = keeping(tiny_model, tmp_path)
    teacher.embed(TEXTS[:20])
    del embedded[:]
    stored, *computed = teacher.embed_batches(TEXTS)
    assert embedded == TEXTS[20:] and stored.rows.tolist() == list(range(20))
    assert sum(batch.work for batch in computed) == pytest.approx(10 / 30)


def test_the_content_of_the_model_decides(tiny_model, tmp_path, embedded):
    keeping(tiny_model, tmp_path).embed(TEXTS)
    moved = shutil.copytree(tiny_model, tmp_path / "moved")
    other = architectures.sentence_transformer(tmp_path / "other", architectures.bert(tmp_path / "backbone", seed=1))
    del embedded[:]
    keeping(moved, tmp_path, name="another name").embed(TEXTS)
    assert embedded == []
    for model, settings in ((other, {}), (moved, {"max_length": 5}), (moved, {"truncate_dim": 8})):
        del embedded[:]
        assert len(keeping(model, tmp_path, **settings).embed(TEXTS)) == 30 and embedded == TEXTS


def test_prompts_count_text_by_text(tiny_model, tmp_path, embedded):
    """A recipe with prompts and `evaluate --teacher` without share what both embed."""
    asking = keeping(tiny_model, tmp_path, prompts={"query": "query: ", "document": ""})
    queries = asking.embed(TEXTS[:3], "query")
    documents = asking.embed(TEXTS[:3], "document")
    assert not np.array_equal(queries, documents)
    del embedded[:]
    plain = keeping(tiny_model, tmp_path)
    assert np.array_equal(plain.embed(TEXTS[:3]), documents) and embedded == []


def test_a_model_in_memory_shares_them_too(tiny_model, tmp_path, embedded):
    section = TeacherSection(model=str(tiny_model))
    one = ModelEmbedder(SentenceTransformer(str(tiny_model), device="cpu"), "teacher")
    two = ModelEmbedder(SentenceTransformer(str(tiny_model), device="cpu"), "another")
    for model in (one, two):
        model.keep_in(tmp_path, model.manifest())
        model.embed(TEXTS)
    assert embedded == TEXTS and section.name is None


class Sums:
    """A model of bags of words: a text without any known word has a zero vector."""

    dim = 4

    def __init__(self):
        self.asked = []

    def batches(self, prompted):
        self.asked += prompted
        vectors = np.array([[len(text), *[text.count(letter) for letter in "abc"]] for text in prompted])
        yield EmbeddedBatch(np.arange(len(prompted)), {"embedding": vectors}, 1.0)


def embed(cache, model, texts, prompt):
    return collect(stored_batches(cache, model, texts, prompt), len(texts), model.dim)


@pytest.fixture
def store(tiny_model, tmp_path):
    manifest = evaluation_manifest(
        load_teacher(TeacherSection(model=str(tiny_model), truncate_dim=4), "cpu").manifest()
    )
    return lambda: TeacherCache.create_or_open(tmp_path / "kept", manifest, 8)


def test_vectors_that_no_cache_takes_are_returned_all_the_same(store):
    model, texts = Sums(), ["abba", "", "cab"]
    first = embed(store(), model, texts, "")
    again = embed(store(), model, texts, "")
    assert first.tolist() == again.tolist() == [[4, 2, 2, 0], [0, 0, 0, 0], [3, 1, 1, 1]]
    assert model.asked == [*texts, ""], "the zero vector is computed again"
    assert embed(store(), model, [], "").shape == (0, 4)


def test_repeated_texts_have_one_row(store):
    cache = store()
    assert embed(cache, Sums(), ["ab", "b", "ab"], "").tolist() == [[2, 1, 1, 0], [1, 0, 1, 0], [2, 1, 1, 0]]
    assert len(cache) == 2


def test_a_kill_loses_one_shard(store, monkeypatch):
    monkeypatch.setattr(evaluation_vectors, "SHARD_TEXTS", 8)
    model, batches, texts = Sums(), Sums.batches, [f"a{number}" for number in range(30)]

    def dying(self, prompted):
        if len(self.asked) >= 16:
            raise KeyboardInterrupt
        return batches(self, prompted)

    monkeypatch.setattr(Sums, "batches", dying)
    with pytest.raises(KeyboardInterrupt):
        embed(store(), model, texts, "")
    monkeypatch.setattr(Sums, "batches", batches)
    model = Sums()
    assert len(embed(store(), model, texts, "")) == 30 and model.asked == texts[16:]


@pytest.mark.parametrize("above", [False, True])
def test_without_a_place_to_keep_them_they_are_computed(tiny_model, tmp_path, embedded, capsys, above):
    manifest = load_teacher(TeacherSection(model=str(tiny_model)), "cpu").manifest()
    folder = evaluation_folder(tmp_path, manifest)
    place = folder.parent if above else folder
    place.parent.mkdir(exist_ok=True)
    place.write_text("a file where the folder should be")
    assert keeping(tiny_model, tmp_path).embed(TEXTS).shape == (30, 32) and embedded == TEXTS
    assert "are computed, and not stored" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_is_no_error_of_an_evaluation(store, monkeypatch, capsys, number):
    def refuse(*values):
        raise OSError(number, os.strerror(number))

    cache = store()
    monkeypatch.setattr("distilvec.teachers.cache.journal.write_shard", refuse)
    assert embed(cache, Sums(), ["ab", "b"], "").tolist() == [[2, 1, 1, 0], [1, 0, 1, 0]]
    assert "2 vectors of evaluation texts are not stored" in capsys.readouterr().err
