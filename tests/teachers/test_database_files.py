"""Files of DuckDB, sqlite-vec and usearch: what their packages delete, update and round, and what no search would see.

Each file, with all that lies beside it, has the same bytes after it is read.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts
from store_packages import needed

from benchmarks.indexes import vec_database
from distilvec.config.schema import TeacherSection
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
DIM = 8
VECTORS = np.random.default_rng(0).standard_normal((60, DIM)).astype(np.float32)


def read(address, folder, **keys):
    """The rows of the copy: its section, and vectors by text. Nothing beside the index changes."""
    before = content(folder / "db")
    table = local_table(TeacherSection(vectors=address, **keys), folder / "cache")
    assert content(folder / "db") == before
    texts, vectors = TableEmbedder(table).documents()
    return table, dict(zip(texts, vectors, strict=True))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def ids(table):
    return pq.read_table(sorted(table.vectors.glob("part-*.parquet"))).column("id").to_pylist()


def expect(rows, numbers, vectors=VECTORS, tolerance=0.0):
    assert sorted(rows) == sorted(TEXTS[number] for number in numbers)
    for number in numbers:
        np.testing.assert_allclose(rows[TEXTS[number]], vectors[number], atol=tolerance)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "db").mkdir()
    return tmp_path


# -- DuckDB ----------------------------------------------------------------------------------------------------------


@contextmanager
def duck(folder):
    needed("duckdb")
    import duckdb

    with duckdb.connect(str(folder / "db" / "my.duckdb")) as connection:
        yield connection


def fill(connection, table="docs", kind=f"FLOAT[{DIM}]"):
    columns = f"key VARCHAR, content VARCHAR, vector {kind}, meta JSON, place STRUCT(url VARCHAR)"
    connection.execute(f"CREATE TABLE {table} ({columns})")
    for row in range(60):
        meta = json.dumps({"body": TEXTS[row], "a": {"b": f"document {row // 3}"}})
        values = [f"k{row}", TEXTS[row], VECTORS[row].tolist(), meta, {"url": f"u{row}"}]
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", values)


@pytest.mark.parametrize("kind", [f"FLOAT[{DIM}]", "FLOAT[]", "DOUBLE[]"])
def test_a_table_of_duckdb_is_what_its_owner_sees(kind, folder):
    changed = VECTORS.copy()
    changed[7] = -VECTORS[0]
    with duck(folder) as connection:
        fill(connection, kind=kind)
        connection.execute("DELETE FROM docs WHERE key IN ('k3', 'k4', 'k59')")
        connection.execute("UPDATE docs SET vector = ? WHERE key = 'k7'", [changed[7].tolist()])
        connection.execute("UPDATE docs SET vector = NULL WHERE key = 'k9'")
        connection.execute("INSERT INTO docs SELECT * FROM docs WHERE key = 'k11'")
    table, rows = read(f"duckdb://{folder}/db/my.duckdb/docs", folder, columns={"id": "key"})
    expect(rows, set(range(60)) - {3, 4, 59, 9}, changed)
    assert ids(table).count("k11") == 2 and table.name == "docs" and table.similarity is None


def test_a_missing_vector_that_arrow_cannot_read_is_said_with_the_remedy(folder):
    """DuckDB writes no numbers for it, where Parquet's readers expect them; as a list it is read."""
    with duck(folder) as connection:
        fill(connection)
        connection.execute("UPDATE docs SET vector = NULL WHERE key = 'k9'")
        connection.execute(f"COPY docs TO '{folder}/array.parquet'")
        connection.execute(f"COPY (SELECT * REPLACE (vector::FLOAT[] AS vector) FROM docs) TO '{folder}/list.parquet'")
    with refused("teacher.vectors", "FLOAT[]"):
        read(f"{folder}/array.parquet", folder)
    _, rows = read(f"{folder}/list.parquet", folder)
    expect(rows, set(range(60)) - {9})


def test_rows_in_the_log_of_duckdb_count(folder, tmp_path):
    with duck(folder) as connection:
        fill(connection)
        connection.execute("CHECKPOINT")
        connection.execute("DELETE FROM docs WHERE key = 'k3'")
        for name in ("my.duckdb", "my.duckdb.wal"):  # as a program that was killed leaves them
            shutil.copy(folder / "db" / name, tmp_path / name)
    shutil.rmtree(folder / "db")
    (folder / "db").mkdir()
    for name in ("my.duckdb", "my.duckdb.wal"):
        shutil.copy(tmp_path / name, folder / "db" / name)
    _, rows = read(f"duckdb://{folder}/db/my.duckdb/docs", folder)
    expect(rows, set(range(60)) - {3})


def test_fields_of_structs_and_of_json_in_duckdb(folder, monkeypatch):
    with duck(folder) as connection:
        connection.execute('CREATE SCHEMA "my schema"')
        fill(connection, '"my schema".docs')
    names = {"text": "meta.body", "id": "place.url", "origin": "meta.a.b"}
    table, rows = read(f"duckdb://{folder}/db/my.duckdb/my%20schema.docs", folder, columns=names)
    expect(rows, range(60))
    assert ids(table)[:2] == ["u0", "u1"]
    monkeypatch.chdir(folder)
    _, rows = read("duckdb://db/my.duckdb/my schema.docs", folder, columns=names)
    expect(rows, range(60))


def test_what_is_no_table_of_duckdb_is_refused(folder):
    with duck(folder) as connection:
        fill(connection)
        connection.execute("CREATE TABLE odd AS SELECT 1 AS rowid, content, vector FROM docs")
    with refused("teacher.vectors", "has no table 'docz'; it has docs, odd."):
        read(f"duckdb://{folder}/db/my.duckdb/docz", folder)
    with refused("teacher.vectors", "hides DuckDB's own"):
        read(f"duckdb://{folder}/db/my.duckdb/odd", folder)
    with refused("teacher.vectors", "no file at"):
        read(f"duckdb://{folder}/db/absent.duckdb/docs", folder)
    assert not (folder / "db" / "absent.duckdb").exists()


# -- sqlite-vec ------------------------------------------------------------------------------------------------------


def vec(folder, definition, rows, *further):
    """A table of sqlite-vec: `rows` are values by column name."""
    needed("sqlite-vec")
    with vec_database(folder / "db" / "my.db") as connection:
        connection.execute(f"CREATE VIRTUAL TABLE docs USING vec0({definition})")
        for row in rows:
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO docs({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        for statement, *values in further:
            connection.execute(statement, tuple(values))
    return f"sqlite-vec://{folder}/db/my.db/docs"


def blobs(**columns):
    """Rows of vectors v, and of other columns."""
    rows = []
    for row in range(60):
        others = {name: values[row] for name, values in columns.items()}
        rows.append({"rowid": row + 1, "v": VECTORS[row].tobytes(), **others})
    return rows


@pytest.mark.parametrize("chunk", [8, 1024])
def test_a_table_of_sqlite_vec_is_what_a_search_sees(chunk, folder):
    changed = VECTORS.copy()
    changed[7] = -VECTORS[0]
    address = vec(
        folder,
        f"v float[{DIM}], +content text, part text partition key, chunk_size={chunk}",
        blobs(content=TEXTS, part=["a", "b", "c"] * 20),
        ("DELETE FROM docs WHERE rowid IN (4, 5, 60)",),
        ("UPDATE docs SET v = ? WHERE rowid = 8", changed[7].tobytes()),
        ("INSERT INTO docs(rowid, v, content, part) VALUES (99, ?, ?, 'b')", VECTORS[3].tobytes(), TEXTS[3]),
    )
    table, rows = read(address, folder, columns={"embedding": "v", "origin": "part"})
    expect(rows, set(range(60)) - {4, 59}, changed)
    assert sorted(map(int, ids(table))) == sorted({*range(1, 61), 99} - {4, 5, 60})
    assert table.similarity == "euclidean"


def test_texts_of_sqlite_vec_may_be_metadata(folder):
    texts = ["çay", "twelve bytes", "\0zero at the end\0", *TEXTS[3:]]
    definition = f"content text, n integer, key text primary key, v float[{DIM}] distance_metric=cosine"
    rows = []
    for row, text in enumerate(texts):
        rows.append({"key": f"k{row}", "n": row, "content": text, "v": VECTORS[row].tobytes()})
    table, found = read(vec(folder, definition, rows), folder, columns={"embedding": "v", "id": "key"})
    assert set(found) == set(texts) and table.similarity == "cosine"
    np.testing.assert_allclose(found["çay"], VECTORS[0] / np.linalg.norm(VECTORS[0]), atol=1e-6)
    assert ids(table)[:2] == ["k0", "k1"]


@pytest.mark.parametrize("key", ["", "key text primary key, "])
def test_texts_of_sqlite_vec_may_be_in_another_table(key, folder):
    """As LangChain's SQLiteVec makes them."""
    rows = [{"v": VECTORS[row].tobytes()} | ({"key": f"k{row}"} if key else {"rowid": row + 1}) for row in range(60)]
    kind = "text" if key else "integer"
    address = vec(
        folder,
        f"{key}v float[{DIM}]",
        rows,
        (f'CREATE TABLE "my texts" (id {kind} primary key, body text, url text)',),
        *[
            ('INSERT INTO "my texts" VALUES (?, ?, ?)', f"k{row}" if key else row + 1, TEXTS[row], f"u{row}")
            for row in range(59)
        ],
        ('DELETE FROM "my texts" WHERE body = ?', TEXTS[4]),
    )
    with refused("teacher.columns", "my texts.body"):
        read(address, folder)
    names = {"embedding": "v", "text": "my texts.body", "origin": "my texts.url"}
    _, found = read(address, folder, columns=names)
    expect(found, set(range(59)) - {4})


def test_int8_and_bits_of_sqlite_vec(folder):
    small = np.round(VECTORS * 40).astype(np.int8)
    needed("sqlite-vec")
    with vec_database(folder / "db" / "my.db") as connection:
        connection.execute(f"CREATE VIRTUAL TABLE docs USING vec0(v int8[{DIM}], b bit[{DIM}], +content text)")
        for row in range(60):
            values = (small[row].tobytes(), np.packbits(VECTORS[row] > 0).tobytes(), TEXTS[row])
            connection.execute("INSERT INTO docs(v, b, content) VALUES (vec_int8(?), vec_bit(?), ?)", values)
    address = f"sqlite-vec://{folder}/db/my.db/docs"
    _, rows = read(address, folder, columns={"embedding": "v"})
    expect(rows, range(60), small)
    with refused("teacher.columns", "'b' does not hold vectors"):
        read(address, folder, columns={"embedding": "b"})


def test_rows_in_the_log_of_sqlite_count_and_it_stays(folder):
    needed("sqlite-vec")
    import apsw
    import sqlite_vec

    connection = apsw.Connection(str(folder / "db" / "my.db"))
    connection.execute("PRAGMA journal_mode = wal")
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.execute(f"CREATE VIRTUAL TABLE docs USING vec0(v float[{DIM}], +content text)")
    for row in range(60):
        connection.execute("INSERT INTO docs(v, content) VALUES (?, ?)", (VECTORS[row].tobytes(), TEXTS[row]))
    _, rows = read(f"sqlite-vec://{folder}/db/my.db/docs", folder, columns={"embedding": "v"})
    expect(rows, range(60))
    connection.close()
    _, rows = read(f"sqlite-vec://{folder}/db/my.db/docs", folder, columns={"embedding": "v"})
    expect(rows, range(60))


def test_what_is_no_table_of_sqlite_vec_is_refused(folder):
    address = vec(folder, f"v float[{DIM}], +content text", blobs(content=TEXTS), ("CREATE TABLE plain (a)",))
    with refused("teacher.vectors", "it has docs"):
        read(address.replace("/docs", "/plain"), folder)
    (folder / "db" / "other.db").write_text("no database, but long enough to be taken for one " * 20)
    with refused("teacher.vectors", "not a database"):
        read(address.replace("my.db", "other.db"), folder)


# -- usearch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scalar", "tolerance"), [("f64", 0), ("f32", 0), ("f16", 2e-3), ("bf16", 2e-2), ("i8", None)])
def test_an_index_of_usearch_gives_the_vectors_of_its_keys(scalar, tolerance, folder):
    needed("usearch")
    from usearch.index import Index

    index = Index(ndim=DIM, metric="l2sq" if scalar != "i8" else "cos", dtype=scalar)
    index.add(100 + np.arange(60)[::-1], VECTORS[::-1])
    index.remove(103)
    index.remove(107)
    index.add(107, VECTORS[0])
    index.save(str(folder / "db" / "my.usearch"))
    rows = [{"id": 100 + row, "text": text} for row, text in enumerate(TEXTS)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changed = VECTORS.copy()
    changed[7] = VECTORS[0]
    table, found = read(str(folder / "db" / "my.usearch"), folder, texts=folder / "texts.jsonl")
    if tolerance is None:  # 8 bits of a number, and no length
        found = {text: vector / np.linalg.norm(vector) for text, vector in found.items()}
        changed /= np.linalg.norm(changed, axis=1, keepdims=True)
        tolerance = 1e-2
    expect(found, set(range(60)) - {3}, changed, tolerance)
    assert table.similarity == ("euclidean" if scalar != "i8" else "cosine")


def test_keys_of_usearch_may_be_hashes_of_64_bits(folder):
    needed("usearch")
    from usearch.index import Index

    keys = np.random.default_rng(3).integers(0, 2**64, 60, dtype=np.uint64)
    assert (keys >= 2**63).any()
    index = Index(ndim=DIM, metric="l2sq", dtype="f32")
    index.add(keys, VECTORS)
    index.save(str(folder / "db" / "my.usearch"))
    rows = [{"id": int(key), "text": text} for key, text in zip(keys, TEXTS, strict=True)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, found = read(str(folder / "db" / "my.usearch"), folder, texts=folder / "texts.jsonl")
    expect(found, set(range(60)), VECTORS, 0)


def test_indexes_of_usearch_without_one_vector_a_key_are_refused(folder):
    needed("usearch")
    from usearch.index import Index

    (folder / "texts.txt").write_text("\n".join(TEXTS))
    several = Index(ndim=DIM, multi=True, dtype="f32")
    several.add(np.array([1, 1, 2]), VECTORS[:3])
    several.save(str(folder / "db" / "several.usearch"))
    bits = Index(ndim=DIM, metric="hamming", dtype="b1")
    bits.add(np.arange(60), np.packbits(VECTORS > 0, axis=1))
    bits.save(str(folder / "db" / "bits.usearch"))
    (folder / "db" / "other.usearch").write_bytes(b"something else" * 100)
    for name in ("several", "bits", "other"):
        with refused("teacher.vectors"):
            read(str(folder / "db" / f"{name}.usearch"), folder, texts=folder / "texts.txt")
