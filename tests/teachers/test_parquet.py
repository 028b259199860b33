"""Vectors leave as Parquet and come back bit for bit; tables of others are read in the forms they have."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts

from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import build_corpus, text_key
from distilvec.teachers.cache.fill import fill_cache
from distilvec.teachers.cache.parquet import FINAL, PRE_DENSE, export_parquet, import_parquet
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.open import load_teacher
from distilvec.teachers.table_embedder import TableEmbedder

PROMPTS = {"query": "find: ", "document": ""}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = make_texts(130)
    (folder / "documents.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "queries.txt").write_text("\n".join(texts[:20]), encoding="utf-8")
    sources = [SourceSection(path=folder / "documents.txt"), SourceSection(path=folder / "queries.txt", role="query")]
    return build_corpus(CorpusSection(sources=sources, validation_rows=8), PROMPTS, folder / "corpus")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    import architectures

    folder = tmp_path_factory.mktemp("model")
    architectures.sentence_transformer(
        folder / "model", architectures.bert(folder / "backbone"), "mean dense:24 normalize"
    )
    return load_teacher(TeacherSection(model=str(folder / "model"), prompts=PROMPTS), "cpu")


def test_some_documents_of_a_large_table_are_drawn_without_holding_it(tmp_path):
    """Their vectors, spread from the first document to the last; queries and empty texts are none."""
    count, dim = 120_000, 64
    texts = ["" if row % 7 == 0 else f"text {row}" for row in range(count)]
    vectors = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
    roles = ["query" if row % 5 == 0 else "document" for row in range(count)]
    pq.write_table(pa.table({"text": texts, FINAL: values, "role": roles}), tmp_path / "t.parquet")
    table = TableEmbedder(TeacherSection(vectors=tmp_path / "t.parquet"))
    tracemalloc.start()
    drawn, found = table.some_documents(9)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rows = [int(text.split()[1]) for text in drawn]
    assert len(rows) == 9 and rows == sorted(set(rows)) and rows[0] == 1 and rows[-1] == count - 1
    assert all(row % 5 and row % 7 for row in rows)
    np.testing.assert_allclose(found, vectors[rows])
    assert peak < vectors.nbytes


@pytest.mark.parametrize(("dtype", "pre_dense"), [("float16", False), ("float16", True), ("float32", True)])
def test_round_trip_is_bit_identical(corpus, teacher, tmp_path, dtype, pre_dense, monkeypatch):
    monkeypatch.setattr("distilvec.teachers.cache.parquet._ROWS", 37)
    manifest = teacher.manifest(dtype, pre_dense)
    cache = TeacherCache.create_or_open(tmp_path / "one", manifest, 64)
    fill_cache(cache, corpus, teacher)
    export_parquet(cache, corpus, tmp_path / "out" / "vectors.parquet")
    table = pq.read_table(tmp_path / "out" / "vectors.parquet")
    kind = pa.float16() if dtype == "float16" else pa.float32()
    assert table.schema.field(FINAL).type == pa.list_(kind, 24)
    assert (PRE_DENSE in table.schema.names) == pre_dense
    assert table["text"].to_pylist() == corpus.texts(range(len(corpus)))
    assert table["role"].to_pylist() == ["document"] * 130 + ["query"] * 20
    other = TeacherCache.create_or_open(tmp_path / "other", manifest, 64)
    assert import_parquet(tmp_path / "out", other) == len(corpus)
    assert import_parquet(tmp_path / "out" / "vectors.parquet", other) == 0
    for path in cache.folder.glob("*.npy"):
        assert (other.folder / path.name).read_bytes() == path.read_bytes()


def test_a_table_of_another_teacher_is_refused(corpus, teacher, tmp_path):
    cache = TeacherCache.create_or_open(tmp_path / "one", teacher.manifest(), 64)
    with pytest.raises(DistilvecError, match=r"have no vector in .*cache fill"):
        export_parquet(cache, corpus, tmp_path / "vectors.parquet")
    assert list(tmp_path.glob("*.parquet*")) == []
    fill_cache(cache, corpus, teacher)
    export_parquet(cache, corpus, tmp_path / "vectors.parquet")
    from dataclasses import replace

    other = TeacherCache.create_or_open(tmp_path / "other", replace(teacher.manifest("float32"), max_length=7), 64)
    with pytest.raises(DistilvecError, match="max_length: found 128, expected 7"):
        import_parquet(tmp_path / "vectors.parquet", other)
    assert len(other) == 0


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float16(), 24)]
)
def test_tables_of_others_are_read(teacher, tmp_path, kind):
    texts = make_texts(50)
    vectors = teacher.embed(texts).astype(np.float16)
    rows = [row.astype(np.float16 if kind.value_type == pa.float16() else np.float64) for row in vectors]
    pq.write_table(
        pa.table({"text": texts, "embedding": pa.array(rows, kind), "other": texts}),
        tmp_path / "t.parquet",
        row_group_size=7,
    )
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 16)
    assert import_parquet(tmp_path / "t.parquet", cache, role="query") == 50
    assert [shard.rows for shard in cache._shards] == [16, 16, 16, 2]
    keys = np.array([text_key("find: ", text) for text in texts], dtype="V16")
    np.testing.assert_array_equal(cache.read(cache.positions(keys)), vectors.astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"sentence": ["a"], FINAL: [[1.0]]}, r"columns sentence, .*usual name for text \(text: text, content, "),
        (
            {"text": ["a"], "weights": [[1.0]]},
            r"columns text, weights; .*for embedding \(embedding: embedding, vector, ",
        ),
        ({"text": ["a", "b"], FINAL: [[1.0, 2.0], [1.0]]}, "of different dimensions"),
        ({"text": ["a", "b"], FINAL: [[1.0, 2.0], None]}, "rows without a vector"),
        ({"text": ["a", "b"], FINAL: [[1.0, 2.0], [1.0, None]]}, "rows without a vector"),
        ({"text": ["a", None], FINAL: [[1.0, 2.0], [1.0, 1.0]]}, "text is None"),
        ({"text": ["a"], FINAL: [["x"]]}, "expected lists of floats"),
        ({"text": ["a", "b"], FINAL: [[1.0]] * 2, "role": ["query", "passage"]}, "role.*'passage'"),
        ({"text": ["a"], FINAL: [[1.0, 2.0]]}, r"shape \(1, 2\) .*expected \[1, 24\]"),
        ({"text": ["a"], FINAL: [[float("nan")] * 24]}, "NaN.*'a'"),
    ],
)
def test_bad_tables_are_explained(teacher, tmp_path, columns, words):
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 16)
    with pytest.raises(DistilvecError, match=words):
        import_parquet(tmp_path / "t.parquet", cache)
    assert len(cache) == 0


def test_import_refuses_rows_that_disagree_and_damaged_metadata(teacher, tmp_path):
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 16)
    vectors = np.random.default_rng(0).standard_normal((3, 24)).astype(np.float32)
    table = pa.table({"text": ["a", "b", "a"], FINAL: list(vectors)})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DistilvecError, match=r"^\[--table\].*'a', with different vectors"):
        import_parquet(tmp_path / "t.parquet", cache)
    pq.write_table(table.replace_schema_metadata({b"distilvec.manifest": b'{"width": 3}'}), tmp_path / "t.parquet")
    with pytest.raises(DistilvecError, match=r"^\[--table\].*damaged metadata"):
        import_parquet(tmp_path / "t.parquet", cache)
    assert len(cache) == 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_export_that_fails_keeps_what_was_there(corpus, teacher, tmp_path, monkeypatch, error):
    cache = TeacherCache.create_or_open(tmp_path / "one", teacher.manifest(), 64)
    fill_cache(cache, corpus, teacher)
    for name in ("vectors.parquet", "vectors.parquet.tmp"):
        (tmp_path / name).write_text("mine")

    def fail(*arguments):
        raise error

    with (
        monkeypatch.context() as patched,
        pytest.raises((DistilvecError, KeyboardInterrupt), match=r"^(\[--out\] no space left.*needed.*)?$"),
    ):
        patched.setattr(pq.ParquetWriter, "write_batch", fail)
        export_parquet(cache, corpus, tmp_path / "vectors.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "vectors.parquet", "vectors.parquet.tmp"]
    assert (tmp_path / "vectors.parquet").read_text() == "mine"
    export_parquet(cache, corpus, tmp_path / "vectors.parquet")
    assert (tmp_path / "vectors.parquet.tmp").read_text() == "mine" and pq.read_table(
        tmp_path / "vectors.parquet"
    ).num_rows == len(corpus)


def test_files_that_are_no_tables_are_explained(teacher, tmp_path):
    cache = TeacherCache.create_or_open(tmp_path / "cache", teacher.manifest(), 16)
    with pytest.raises(DistilvecError, match="no Parquet file"):
        import_parquet(tmp_path / "nothing.parquet", cache)
    (tmp_path / "t.parquet").write_text("text,vector\n")
    with refused("--table", "t.parquet: ArrowInvalid"):
        import_parquet(tmp_path / "t.parquet", cache)
