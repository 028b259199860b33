"""A table of vectors as the teacher."""

from __future__ import annotations

import shutil
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts

from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.info import TeacherInfo
from distilvec.data.corpus import build_corpus
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.open import open_maker, open_teacher
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(100)


def unit(rows, width=12, seed=0):
    found = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def write(path, texts, vectors, **columns):
    flat = pa.array(vectors.astype(np.float32).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    pq.write_table(pa.table({"text": texts, "teacher_embedding_final": lists, **columns}), path)
    return path


def corpus_of(folder, texts, queries=(), prompts=None):
    folder.mkdir(exist_ok=True)
    sources = []
    for name, role, lines in (("documents", "document", texts), ("queries", "query", queries)):
        if lines:
            (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
            sources.append(SourceSection(path=folder / f"{name}.txt", role=role))
    prompts = prompts or {"query": "", "document": ""}
    return build_corpus(CorpusSection(sources=sources, validation_rows=4), prompts, folder / "corpus")


def test_two_columns_of_vectors_are_two_teachers(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"text": TEXTS, "a": list(unit(100)), "b": list(unit(100, seed=1))}), path)
    names = ({"embedding": "a"}, {"embedding": "b"}, {"embedding": "a"})
    marks = [TableEmbedder(TeacherSection(vectors=path, columns=one)).manifest().fingerprint for one in names]
    assert marks[0] == marks[2] != marks[1]


def test_vectors_of_the_corpus_are_taken_whatever_the_order(tmp_path):
    vectors = unit(100)
    order = np.random.default_rng(1).permutation(100)
    table = write(tmp_path / "api.parquet", [TEXTS[i] for i in order], vectors[order])
    teacher = TableEmbedder(TeacherSection(vectors=table))
    assert teacher.info() == TeacherInfo(12, True, prompts={"query": "", "document": ""}, name="api")
    corpus = corpus_of(tmp_path / "c", TEXTS[:70])
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest("float32"), 32)
    told = [(step.done, step.total, step.work) for step in teacher.fill_steps(cache, corpus)]
    assert told == [(32, 70, 32), (64, 70, 64), (70, 70, 70)]
    np.testing.assert_array_equal(cache.read(cache.positions(np.asarray(corpus.keys))), vectors[:70])
    before = sorted(path.name for path in cache.folder.iterdir())
    list(teacher.fill_steps(cache, corpus))
    assert sorted(path.name for path in cache.folder.iterdir()) == before


def test_interrupted_it_ends_with_the_same_bytes(tmp_path):
    texts = [*TEXTS[:60], *TEXTS[10:30], *TEXTS[60:]]  # some stand twice
    table = write(tmp_path / "api.parquet", texts, unit(100)[[TEXTS.index(text) for text in texts]])
    teacher = TableEmbedder(TeacherSection(vectors=table))
    corpus = corpus_of(tmp_path / "c", TEXTS)

    whole, stopped = (
        TeacherCache.create_or_open(tmp_path / name, teacher.manifest(), 30) for name in ("whole", "stopped")
    )
    list(teacher.fill_steps(whole, corpus))
    for _ in range(2):
        with closing(teacher.fill_steps(stopped, corpus)) as steps:
            next(steps)
    list(teacher.fill_steps(stopped, corpus))
    assert len(stopped) == 100
    for path in whole.folder.iterdir():
        assert (stopped.folder / path.name).read_bytes() == path.read_bytes()


def test_missing_texts_are_counted_and_one_is_quoted(tmp_path):
    teacher = TableEmbedder(TeacherSection(vectors=write(tmp_path / "api.parquet", TEXTS[:90], unit(90))))
    corpus = corpus_of(tmp_path / "c", TEXTS)
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 32)
    with refused(".vectors", TEXTS[90][:60]):
        list(teacher.fill_steps(cache, corpus))
    assert len(cache) == 0


def test_a_text_that_a_corpus_cuts_has_its_vector(tmp_path):
    texts = [*TEXTS[:20], "word " * 260_000]
    teacher = TableEmbedder(TeacherSection(vectors=write(tmp_path / "api.parquet", texts, unit(21))))
    corpus = corpus_of(tmp_path / "c", texts)
    assert corpus.report["cut"] == 1
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest("float32"), 32)
    list(teacher.fill_steps(cache, corpus))
    np.testing.assert_array_equal(cache.read(cache.positions(np.asarray(corpus.keys))), unit(21))
    for long_texts in (texts, corpus.texts(range(21))):
        np.testing.assert_array_equal(teacher.embed(long_texts), unit(21))


def test_roles_and_prompts(tmp_path):
    prompts = {"query": "find: ", "document": ""}
    vectors = unit(60)
    texts, roles = [*TEXTS[:40], *TEXTS[:20]], ["document"] * 40 + ["query"] * 20
    corpus = corpus_of(tmp_path / "c", TEXTS[:40], TEXTS[:20], prompts)
    with_roles = TableEmbedder(
        TeacherSection(vectors=write(tmp_path / "roles.parquet", texts, vectors, role=roles), prompts=prompts)
    )
    cache = TeacherCache.create_or_open(tmp_path / "roles", with_roles.manifest("float32"), 100)
    list(with_roles.fill_steps(cache, corpus))
    np.testing.assert_array_equal(cache.read(cache.positions(np.asarray(corpus.keys))), vectors)
    without = TableEmbedder(
        TeacherSection(vectors=write(tmp_path / "plain.parquet", TEXTS[:40], vectors[:40]), prompts=prompts)
    )
    cache = TeacherCache.create_or_open(tmp_path / "plain", without.manifest("float32"), 100)
    list(without.fill_steps(cache, corpus))
    np.testing.assert_array_equal(
        cache.read(cache.positions(np.asarray(corpus.keys))), vectors[[*range(40), *range(20)]]
    )


def test_lengths_are_measured_and_dimensions_cut(tmp_path):
    long = TableEmbedder(TeacherSection(vectors=write(tmp_path / "long.parquet", TEXTS, unit(100) * 3), truncate_dim=5))
    assert (long.normalized, long.dim) == (False, 5)
    cut = TableEmbedder(TeacherSection(vectors=write(tmp_path / "unit.parquet", TEXTS, unit(100)), truncate_dim=5))
    (rows,) = cut.rows(["embedding"])
    np.testing.assert_allclose(np.linalg.norm(rows.vectors["embedding"], axis=1), 1, atol=1e-6)
    with refused(".truncate_dim", "found 13"):
        TableEmbedder(TeacherSection(vectors=tmp_path / "unit.parquet", truncate_dim=13))


def test_one_vector_of_another_length_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.teachers.table_embedder._MEASURED", 10)
    monkeypatch.setattr("distilvec.teachers.cache.parquet._ROWS", 10)
    vectors = unit(100)
    vectors[50] *= 2
    teacher = TableEmbedder(TeacherSection(vectors=write(tmp_path / "t.parquet", TEXTS, vectors)))
    assert teacher.normalized
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 200)
    with pytest.raises(DistilvecError, match=rf"{TEXTS[50]}'. Normalise"):
        list(teacher.fill_steps(cache, corpus_of(tmp_path / "c", TEXTS)))


@pytest.mark.parametrize(("scale", "differs"), [(1.0, False), (1.0005, False), (1.2, True), (-1.0, True)])
def test_rows_of_one_text_must_agree(tmp_path, monkeypatch, scale, differs):
    monkeypatch.setattr("distilvec.teachers.cache.parquet._ROWS", 30)
    monkeypatch.setattr("distilvec.teachers.cache.parquet._MAX_BYTES", 12 * 4 * 2)  # two vectors together
    vectors = unit(100) * 3
    texts, rows = [*TEXTS, *TEXTS[40:45], TEXTS[3]], np.concatenate([vectors, vectors[40:45], vectors[3:4] * scale])
    teacher = TableEmbedder(TeacherSection(vectors=write(tmp_path / "t.parquet", texts, rows)))
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest("float32"), 32)
    corpus = corpus_of(tmp_path / "c", TEXTS)
    if not differs:
        list(teacher.fill_steps(cache, corpus))
        np.testing.assert_array_equal(cache.read(cache.positions(np.asarray(corpus.keys))), vectors)
        return
    with refused(".vectors", TEXTS[3]):
        list(teacher.fill_steps(cache, corpus))
    assert len(cache) == 0


def test_one_text_in_two_roles_needs_two_prompts(tmp_path):
    texts, roles = TEXTS[:40] * 2, ["document"] * 40 + ["query"] * 40
    for prompts, fits in (({"query": "find: "}, True), ({}, False)):
        table = write(tmp_path / "t.parquet", texts, unit(80), role=roles)
        teacher = TableEmbedder(TeacherSection(vectors=table, prompts=prompts))
        folder = tmp_path / str(fits)
        corpus = corpus_of(folder, TEXTS[:40], TEXTS[:40], {"query": "", "document": "", **prompts})
        cache = TeacherCache.create_or_open(folder / "cache", teacher.manifest(), 32)
        if fits:
            list(teacher.fill_steps(cache, corpus))
            assert len(cache) == 80
        else:
            with pytest.raises(DistilvecError, match="different vectors.*prompts"):
                list(teacher.fill_steps(cache, corpus))


@pytest.mark.parametrize(
    ("unit_rows", "zeros", "expected"), [(100, 0, True), (90, 10, True), (10, 0, False), (0, 0, False), (5, 50, False)]
)
def test_zero_vectors_and_a_few_of_length_1_do_not_count(tmp_path, unit_rows, zeros, expected):
    vectors = unit(100) * 3
    vectors[:unit_rows] = unit(unit_rows)
    vectors[100 - zeros :] = 0
    assert TableEmbedder(TeacherSection(vectors=write(tmp_path / "t.parquet", TEXTS, vectors))).normalized is expected


@pytest.mark.parametrize("rows", [11, 50, 99])
def test_tables_of_which_only_some_have_length_1_are_refused(tmp_path, rows):
    mixed = unit(100) * 3
    mixed[100 - rows :] = unit(rows)
    teacher = TableEmbedder(TeacherSection(vectors=write(tmp_path / "t.parquet", TEXTS, mixed)))
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 32)
    with refused(".vectors", TEXTS[0][:60]):
        list(teacher.fill_steps(cache, corpus_of(tmp_path / "c", TEXTS)))
    assert len(cache) == 0


def test_files_of_other_widths_are_refused(tmp_path):
    (tmp_path / "t").mkdir()
    write(tmp_path / "t" / "a.parquet", TEXTS[:50], unit(50))
    write(tmp_path / "t" / "b.parquet", TEXTS[40:], unit(60, 8))
    with refused(".vectors", "b.parquet"):
        TableEmbedder(TeacherSection(vectors=tmp_path / "t"))


def test_the_manifest_follows_the_content(tmp_path):
    one = TableEmbedder(TeacherSection(vectors=write(tmp_path / "a.parquet", TEXTS, unit(100)))).manifest()
    other = TableEmbedder(TeacherSection(vectors=write(tmp_path / "a.parquet", TEXTS, unit(100, seed=1)))).manifest()
    assert any(line.startswith("weights") for line in one.differences(other))
    assert one.backend == "table"
    with pytest.raises(DistilvecError, match="teacher_embedding_pre_dense"):
        TableEmbedder(TeacherSection(vectors=tmp_path / "a.parquet")).manifest(pre_dense=True)


def test_missing_tables_are_explained(tmp_path):
    with refused(".vectors", "no Parquet file"):
        TableEmbedder(TeacherSection(vectors=tmp_path / "none.parquet"))


def test_vectors_that_say_nothing_of_a_model_are_not_compared_with_it(tiny_model, tmp_path):
    """Zeros, NaN and empty texts neither hide another model nor accuse the one that made the table."""
    stored = open_maker(str(tiny_model)).embed(TEXTS[:20])
    corpus = corpus_of(tmp_path / "corpus", TEXTS[5:30])
    stored[3] = 0

    def fill(name, vectors):
        path = write(tmp_path / name, [*TEXTS[:20], ""], np.vstack([vectors, -vectors[:1]]))
        table = open_teacher(TeacherSection(vectors=path, made_by=str(tiny_model)), "cpu")
        cache = TeacherCache.create_or_open(tmp_path / f"{name}.cache", table.manifest())
        list(table.fill_steps(cache, corpus))
        return cache

    assert len(fill("right.parquet", stored)) == 25
    others = np.random.default_rng(0).permuted(stored, axis=1)
    others[1] = np.nan
    with refused(".made_by", "did not make the table"):
        fill("wrong.parquet", others)


def test_the_first_rows_of_a_table_may_be_empty(tiny_model, tmp_path, monkeypatch):
    """The model is compared with the first texts that there are, however many rows are before them."""
    monkeypatch.setattr("distilvec.teachers.cache.parquet._ROWS", 4)
    vectors = open_maker(str(tiny_model)).embed(TEXTS[:20])
    corpus = corpus_of(tmp_path / "corpus", TEXTS[5:30])
    zeros = np.zeros((8, vectors.shape[1]), dtype=np.float32)
    path = write(tmp_path / "t.parquet", [*[""] * 4, *TEXTS[40:44], *TEXTS[:20]], np.vstack([zeros, vectors]))
    table = open_teacher(TeacherSection(vectors=path, made_by=str(tiny_model)), "cpu")
    cache = TeacherCache.create_or_open(tmp_path / "cache", table.manifest())
    list(table.fill_steps(cache, corpus))
    assert len(cache) == 25
    nothing = TableEmbedder(TeacherSection(vectors=write(tmp_path / "n.parquet", [""] * 4, zeros[:4])))
    with refused(".vectors", "no row with a text"):
        nothing._sample(2)


def test_the_model_that_made_a_table_counts_by_its_content(tiny_model, tmp_path):
    path = write(tmp_path / "t.parquet", TEXTS[:20], unit(20, 32))
    maker = tmp_path / "maker"
    shutil.copytree(tiny_model, maker)

    def weights(name):
        return TableEmbedder(TeacherSection(vectors=path, made_by=name)).manifest().weights

    before = weights(str(maker))
    assert weights(str(maker)) == before != weights("openai:some-model") != weights("http://127.0.0.1/v1#m")
    (maker / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "cls"}')
    assert weights(str(maker)) != before
