"""Rows of Qdrant, PostgreSQL and .npy files: their vectors, texts and ids, and copies of one state of an index."""

from __future__ import annotations

import json
import random
import shutil
import socket
import threading
from contextlib import suppress
from urllib.parse import quote

import numpy as np
import pytest
from interrupted import kill_copy
from refusals import refused
from samples import make_texts
from store_packages import needed

from benchmarks.indexes import lacking, server
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import user_error
from distilvec.teachers.indexes import copy
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
DIM = 8
VECTORS = np.random.default_rng(0).standard_normal((60, DIM)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def read(section, folder):
    table = TableEmbedder(local_table(section, folder / "cache"))
    return dict(zip(*table.documents(), strict=True))


def expect(rows, keep=range(60), tolerance=1e-6):
    assert sorted(rows) == sorted(TEXTS[row] for row in keep)
    np.testing.assert_allclose([rows[TEXTS[row]] for row in keep], VECTORS[list(keep)], atol=tolerance)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(copy, "_ROWS", 10)
    monkeypatch.setattr("distilvec.teachers.indexes.qdrant._POINTS", 10)
    monkeypatch.setattr("distilvec.teachers.indexes.postgres._BLOCKS", 1)


# -- Qdrant ----------------------------------------------------------------------------------------------------------


def points(vector=lambda row: VECTORS[row].tolist(), payload=lambda row: {"content": TEXTS[row]}):
    from qdrant_client import models

    return [models.PointStruct(id=row, vector=vector(row), payload=payload(row)) for row in range(60)]


def collection(folder, rows, vectors=None, **settings):
    needed("qdrant")
    from qdrant_client import QdrantClient

    shutil.rmtree(folder / "db", ignore_errors=True)
    client = QdrantClient(path=str(folder / "db"))
    client.create_collection("c", vectors_config=parameters() if vectors is None else vectors, **settings)
    client.upsert("c", rows)
    client.close()
    return TeacherSection(vectors=f"qdrant://{folder}/db/c")


def parameters(**settings):
    from qdrant_client import models

    return models.VectorParams(size=DIM, distance=models.Distance.DOT, **settings)


def test_a_nameless_dense_vector_beside_sparse_ones_is_read(tmp_path):
    models = pytest.importorskip("qdrant_client").models
    sparse = models.SparseVector(indices=[1], values=[1.0])
    section = collection(
        tmp_path,
        points(lambda row: {"": VECTORS[row].tolist(), "bm25": sparse}),
        sparse_vectors_config={"bm25": models.SparseVectorParams()},
    )
    expect(read(section, tmp_path))


def test_a_multivector_is_named_and_passed_over(tmp_path):
    models = pytest.importorskip("qdrant_client").models
    many = parameters(multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM))
    rows = points(lambda row: {"one": VECTORS[row].tolist(), "many": [VECTORS[row].tolist()] * 2})
    section = collection(tmp_path, rows, {"one": parameters(), "many": many})
    expect(read(section, tmp_path))
    with refused("teacher.columns", "multivector"):
        read(section.model_copy(update={"columns": {"embedding": "many"}}), tmp_path)
    with refused("teacher.columns", "multivector"):
        read(collection(tmp_path, points(lambda row: [VECTORS[row].tolist()] * 2), many), tmp_path)


def test_a_field_inside_of_the_payload(tmp_path):
    def payload(row):
        return {"metadata": None if row == 4 else {"text": TEXTS[row], "source": {"id": f"s{row}"}}}

    section = collection(tmp_path, points(payload=payload))
    section = section.model_copy(update={"columns": {"text": "metadata.text", "id": "metadata.source.id"}})
    expect(read(section, tmp_path), [row for row in range(60) if row != 4])
    table = local_table(section, tmp_path / "cache")
    import pyarrow.parquet as pq

    assert pq.read_table(table.vectors / "part-00000.parquet").column("id").to_pylist()[5] == "s6"


@pytest.mark.parametrize("value", [5, ["a text"], {"a": "text"}], ids=str)
def test_payloads_that_are_no_texts_are_refused(value, tmp_path):
    section = collection(tmp_path, points(payload=lambda row: {"content": value}))
    with refused("teacher.vectors", "expected a string"):
        read(section.model_copy(update={"columns": {"text": "content"}}), tmp_path)


def test_zero_vectors_of_qdrant_are_left_out(tmp_path):
    section = collection(tmp_path, points(lambda row: (VECTORS[row] * (row != 7)).tolist()))
    expect(read(section, tmp_path), [row for row in range(60) if row != 7])


def test_a_folder_of_qdrant_that_was_replaced_is_read_again(tmp_path):
    expect(read(collection(tmp_path, points()), tmp_path))
    section = collection(tmp_path, points(payload=lambda row: {"content": TEXTS[59 - row]}))
    rows = read(section, tmp_path)
    np.testing.assert_allclose(rows[TEXTS[0]], VECTORS[59], atol=1e-6)


def test_an_alias_is_the_collection_that_it_names(tmp_path):
    """Rows that are deleted later, and another collection under the same alias, are seen through it."""
    from qdrant_client import QdrantClient, models

    collection(tmp_path, points())
    section = TeacherSection(vectors=f"qdrant://{tmp_path}/db/live")

    def change(name, **calls):
        client = QdrantClient(path=str(tmp_path / "db"))
        for call, words in calls.items():
            getattr(client, call)(name, **words)
        alias = models.CreateAlias(collection_name=name, alias_name="live")
        client.update_collection_aliases([models.CreateAliasOperation(create_alias=alias)])
        client.close()

    change("c")
    expect(read(section, tmp_path))
    change("c", delete={"points_selector": list(range(30))})
    expect(read(section, tmp_path), range(30, 60))
    change("d", create_collection={"vectors_config": parameters()}, upsert={"points": points()[:10]})
    expect(read(section, tmp_path), range(10))


def test_columns_are_those_of_all_points(tmp_path, small_parts):
    """The first points of the collection have no text, and no document."""

    def payload(row):
        return {"title": f"t{row}"} if row < 40 else {"text": TEXTS[row], "doc_id": f"d{row}"}

    section = collection(tmp_path, points(payload=payload))
    expect(read(section, tmp_path), range(40, 60))
    assert json.loads(next((tmp_path / "cache").rglob("meta.json")).read_text())["kept"] == 20
    with refused("teacher.columns", "no column 'texts'"):
        read(section.model_copy(update={"columns": {"text": "texts"}}), tmp_path)


def test_a_cosine_collection_of_two_lengths_is_read(tmp_path):
    """As embedded Qdrant makes it: it normalises vectors when a payload is updated."""
    from qdrant_client import models

    cosine = models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    expect(
        read(collection(tmp_path, points(lambda row: ((1 + 6 * (row < 5)) * VECTORS[row]).tolist()), cosine), tmp_path)
    )


def test_rows_that_are_counted_and_not_given_are_an_error(tmp_path, monkeypatch):
    from distilvec.teachers.indexes.qdrant import QdrantCollection

    monkeypatch.setattr(QdrantCollection, "count", lambda reader: 61)
    with refused("teacher.vectors", "counts 61 rows and gives 60"):
        read(collection(tmp_path, points()), tmp_path)


def test_a_server_that_cannot_tell_its_state_is_read_from_the_first_row(tmp_path, monkeypatch, small_parts, capsys):
    """What was read before the kill may have changed since: the copy begins again."""
    from distilvec.teachers.indexes.qdrant import QdrantCollection

    monkeypatch.setattr(QdrantCollection, "version", lambda self: None)
    monkeypatch.setattr(copy, "_content", lambda section, address: "")
    section = collection(tmp_path, points())
    kill_copy(section, tmp_path / "cache", monkeypatch)
    collection(tmp_path, points(payload=lambda row: {"content": TEXTS[59 - row]}))
    rows = read(section, tmp_path)
    assert len(rows) == 60 and "begins again" in capsys.readouterr().err
    np.testing.assert_allclose(rows[TEXTS[0]], VECTORS[59], atol=1e-6)


# -- PostgreSQL ------------------------------------------------------------------------------------------------------


def connect():
    import psycopg

    return psycopg.connect(f"postgresql://postgres@/postgres?host={server()}", autocommit=True)


def table(name, definition, rows):
    needed("pgvector")
    with connect() as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f'DROP TABLE IF EXISTS "{name}"')
        connection.execute(f'CREATE TABLE "{name}" ({definition})')
        with connection.cursor() as cursor:
            places = ", ".join(["%s"] * len(rows[0]))
            cursor.executemany(f'INSERT INTO "{name.replace("%", "%%")}" VALUES ({places})', rows)
    return TeacherSection(vectors=f"postgresql://postgres@/postgres/{quote(name)}?host={server()}")


def numbered(value=lambda row: TEXTS[row], vector=lambda row: str(VECTORS[row].tolist())):
    return [(row, value(row), vector(row)) for row in range(60)]


def test_bytes_of_a_database_are_decoded_or_refused(tmp_path):
    definition = "id int, text bytea, vector vector(8)"
    expect(read(table("bytes", definition, numbered(lambda row: TEXTS[row].encode())), tmp_path))
    rows = numbered(lambda row: b"\xff\xfe" if row == 4 else TEXTS[row].encode())
    with refused("teacher.vectors", "row 4 is not UTF-8"):
        read(table("bytes", definition, rows), tmp_path / "again")


def test_a_table_that_others_inherit_is_refused(tmp_path):
    """Its rows are in several files; a materialized view has them in one, and a dropped child counts no more."""
    section = table("parent", "id int, text text, vector vector(8)", numbered()[:30])
    with connect() as connection:
        connection.execute("DROP MATERIALIZED VIEW IF EXISTS all_rows")
        connection.execute("CREATE TABLE child () INHERITS (parent)")
        for row in numbered()[30:]:
            connection.execute("INSERT INTO child VALUES (%s, %s, %s)", row)
        connection.execute("CREATE MATERIALIZED VIEW all_rows AS SELECT * FROM parent")
    with refused("teacher.vectors", "a table that others inherit") as caught:
        read(section, tmp_path)
    assert "CREATE MATERIALIZED VIEW" in str(caught.value)
    expect(read(TeacherSection(vectors=str(section.vectors).replace("/parent?", "/all_rows?")), tmp_path))
    with connect() as connection:
        connection.execute("DROP TABLE child CASCADE")
    expect(read(section, tmp_path), range(30))


@pytest.mark.parametrize("kind", ["text", "bytea", "part"])
def test_roles_of_a_database_of_every_type(kind, tmp_path):
    """`part` is an ENUM."""
    rows = [(*row, "query" if row[0] < 20 else "document") for row in numbered()]
    if kind == "bytea":
        rows = [(*row[:3], row[3].encode()) for row in rows]
    if not lacking("pgvector"):
        with connect() as connection:
            connection.execute("DROP TYPE IF EXISTS part CASCADE")
            connection.execute("CREATE TYPE part AS ENUM ('query', 'document')")
    section = table("roles", f"id int, text text, vector vector(8), role {kind}", rows)
    expect(read(section, tmp_path), range(20, 60))


@pytest.mark.parametrize("kind", ["int", "jsonb"])
def test_columns_of_a_database_that_hold_no_texts_are_refused(kind, tmp_path):
    section = table(f"of {kind}", f"id int, text {kind}, vector vector(8)", numbered(str))
    with refused("teacher.vectors", "expected a string"):
        read(section, tmp_path)


def test_a_field_of_a_column_of_json(tmp_path):
    rows = numbered(lambda row: None if row == 3 else json.dumps({"doc": {"text": TEXTS[row]}}))
    section = table("json", "id int, meta jsonb, vector vector(8)", rows)
    section = section.model_copy(update={"columns": {"text": "meta.doc.text"}})
    expect(read(section, tmp_path), [row for row in range(60) if row != 3])


def ascii_database():
    """A database without an encoding: PostgreSQL hands its strings out as bytes."""
    needed("pgvector")
    import psycopg

    with connect() as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    database = psycopg.connect(f"postgresql://postgres@/plain?host={server()}", autocommit=True, client_encoding="utf8")
    database.execute("CREATE EXTENSION vector")
    database.execute("CREATE TABLE t (id int, grösse text, text text, vector vector(8))")
    return database, TeacherSection(vectors=f"postgresql://postgres@/plain/t?host={server()}")


def test_a_database_without_an_encoding_is_read(tmp_path):
    database, section = ascii_database()
    with database, database.cursor() as cursor:
        rows = [(row, "ü", f"{TEXTS[row]} é", str(VECTORS[row].tolist())) for row in range(60)]
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", rows)
        assert set(read(section, tmp_path)) == {f"{text} é" for text in TEXTS}
        cursor.execute("UPDATE t SET text = convert_from('\\xe9', 'SQL_ASCII') WHERE id = 7")
    with refused("teacher.vectors", "invalid byte sequence"):
        read(section, tmp_path / "again")


class Stranger(threading.Thread):
    """A server without TLS that asks for the password as plain text and keeps it, as one in a foreign recipe may be."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.passwords = []
        self.start()

    def run(self):
        while True:
            connection, _ = self.socket.accept()
            with connection, suppress(OSError):
                if self.message(connection)[:4] == (80877103).to_bytes(4):  # may we speak TLS?
                    connection.sendall(b"N")
                    self.message(connection)
                connection.sendall(b"R" + (8).to_bytes(4) + (3).to_bytes(4))  # the password, in clear
                if connection.recv(1) == b"p":
                    self.passwords.append(self.message(connection).rstrip(b"\0").decode())

    @staticmethod
    def message(connection):
        return connection.recv(max(0, int.from_bytes(connection.recv(4)) - 4))


@pytest.mark.parametrize(
    ("settings", "environment", "is_given"),
    [
        ("hostaddr=127.0.0.1", {}, False),
        ("hostaddr=127.0.0.1&sslmode=disable", {}, False),
        ("hostaddr=127.0.0.1&sslmode=require", {}, False),
        ("hostaddr=127.0.0.1", {"PGREQUIREAUTH": "password"}, True),
        ("host=localhost", {}, True),
    ],
)
@pytest.mark.parametrize("variable", ["PGPASSWORD", "DISTILVEC_INDEX_PASSWORD"])
def test_no_password_leaves_for_another_machine_in_clear(
    settings, environment, is_given, variable, monkeypatch, tmp_path
):
    needed("pgvector")
    stranger = Stranger()
    for name, value in {variable: "very-secret-word", **environment}.items():
        monkeypatch.setenv(name, value)
    with refused("teacher.vectors") as caught:
        read(TeacherSection(vectors=f"postgresql://me@db.example:{stranger.port}/db/t?{settings}"), tmp_path)
    assert stranger.passwords == ["very-secret-word"] * is_given and "secret" not in str(caught.value)


@pytest.mark.parametrize(("kind", "tolerance"), [("halfvec(8)", 1e-3), ("real[]", 1e-6), ("float8[]", 1e-6)])
def test_vectors_of_a_database_of_every_type(kind, tolerance, tmp_path):
    as_list = kind.endswith("[]")
    rows = numbered(vector=lambda row: VECTORS[row].tolist() if as_list else str(VECTORS[row].tolist()))
    expect(read(table("types", f"id int, text text, vector {kind}", rows), tmp_path), tolerance=tolerance)


def test_sparse_vectors_of_a_database_are_read(tmp_path):
    def sparse(row):
        return "{" + ",".join(f"{place}:{value}" for place, value in enumerate(VECTORS[row].tolist(), 1)) + "}/8"

    expect(read(table("sparse", "id int, text text, vector sparsevec(8)", numbered(vector=sparse)), tmp_path))
    rows = numbered(vector=lambda row: "01010101")
    with refused("teacher.vectors", "real[]"):
        read(table("bits", "id int, text text, vector bit(8)", rows), tmp_path / "bits")


@pytest.mark.parametrize("nested", [range(60), [7]], ids=["all", "one"])
def test_arrays_of_a_database_with_two_dimensions_are_refused(nested, tmp_path):
    rows = numbered(vector=lambda row: VECTORS[[row, 0] if row in nested else row].tolist())
    with refused("teacher.vectors", f"row {nested[0]} has a list of vectors"):
        read(table("nested", "id int, text text, vector real[]", rows), tmp_path)


def test_rows_of_a_database_without_text_or_vector_are_left_out(tmp_path, capsys):
    rows = numbered(lambda row: None if row == 3 else TEXTS[row])
    rows[4] = (*rows[4][:2], None)
    rows[5] = (*rows[5][:2], "[0,0,0,0,0,0,0,0]")
    expect(read(table("gaps", "id int, text text, vector vector(8)", rows), tmp_path), [0, 1, 2, *range(6, 60)])
    assert "1 with a vector of zeros (first id 5)" in " ".join(capsys.readouterr().err.split())


def test_names_with_a_percent_sign(tmp_path):
    section = table("100%s", 'id int, "con%s" text, "v%(a)s" vector(8)', numbered())
    expect(read(section.model_copy(update={"columns": {"text": "con%s", "embedding": "v%(a)s"}}), tmp_path))


def test_a_table_without_permission_or_under_a_lock_is_explained(tmp_path, monkeypatch):
    section = table("closed", "id int, text text, vector vector(8)", numbered())
    with connect() as connection:
        connection.execute("DROP ROLE IF EXISTS weak")
        connection.execute("CREATE ROLE weak LOGIN")
    weak = section.model_copy(update={"vectors": section.vectors.replace("postgres@", "weak@")})
    with refused("teacher.vectors", "permission denied"):
        read(weak, tmp_path)
    monkeypatch.setattr("distilvec.teachers.indexes.postgres._LOCK_SECONDS", 1)
    with connect() as connection, connection.transaction():
        connection.execute("LOCK TABLE closed IN ACCESS EXCLUSIVE MODE")
        with refused("teacher.vectors", "lock timeout"):
            read(section, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE snap SET text = text || ' new' WHERE id < 30",
        "DELETE FROM snap WHERE id = 2",
        "UPDATE snap SET text = text",
    ],
)
def test_a_table_that_has_changed_since_a_kill_is_read_from_the_first_row(change, tmp_path, monkeypatch, small_parts):
    """Else the copy would have rows of two states, and rows twice."""
    long = [(row, f"{TEXTS[row]} {'x' * 1000}", str(VECTORS[row].tolist())) for row in range(60)]
    section = table("snap", "id int, text text, vector vector(8)", long)
    kill_copy(section, tmp_path / "cache", monkeypatch)
    with connect() as connection:
        connection.execute(change)
        expected = [row[0] for row in connection.execute("SELECT text FROM snap").fetchall()]
    assert sorted(read(section, tmp_path)) == sorted(expected)


def test_a_table_that_has_not_changed_goes_on_after_a_kill(tmp_path, monkeypatch, small_parts):
    long = [(row, f"{TEXTS[row]} {'x' * 1000}", str(VECTORS[row].tolist())) for row in range(60)]
    section = table("same", "id int, text text, vector vector(8)", long)
    kill_copy(section, tmp_path / "cache", monkeypatch)
    (first,) = (tmp_path / "cache" / "indexes").glob("*/part-*.parquet")
    written = first.stat().st_mtime_ns
    assert len(read(section, tmp_path)) == 60 and first.stat().st_mtime_ns == written


# -- .npy ------------------------------------------------------------------------------------------------------------


def array(folder, vectors, texts=TEXTS):
    np.save(folder / "v.npy", vectors)
    (folder / "texts.txt").write_text("\n".join(texts))
    return TeacherSection(vectors=folder / "v.npy", texts=folder / "texts.txt")


@pytest.mark.parametrize("kind", ["f2", "f8", ">f4", "fortran"])
def test_arrays_of_every_type(kind, tmp_path):
    vectors = np.asfortranarray(VECTORS) if kind == "fortran" else VECTORS.astype(kind)
    expect(read(array(tmp_path, vectors), tmp_path), tolerance=1e-3)


def test_whole_numbers_are_vectors_and_packed_bits_are_none(tmp_path):
    rows = read(array(tmp_path, np.round(VECTORS * 100).astype(np.int8)), tmp_path)
    np.testing.assert_array_equal(rows[TEXTS[3]], np.round(VECTORS[3] * 100))
    for vectors in (np.packbits(VECTORS > 0, axis=1), VECTORS > 0, VECTORS[None], VECTORS.astype(np.complex64)):
        with refused("teacher.vectors", "expected floats"):
            read(array(tmp_path, vectors), tmp_path)


def test_rows_of_an_array_that_cannot_be_used_are_left_out(tmp_path):
    vectors = VECTORS.astype(np.float64)
    vectors[2] = 0
    vectors[3, 1] = np.nan
    vectors[4, 1] = 1e300
    expect(read(array(tmp_path, vectors, ["", *TEXTS[1:]]), tmp_path), [1, *range(5, 60)])


@pytest.mark.parametrize("shape", ["(-4, 8)", "(4, -8)", "(-4, -8)", "(4, 99999999999999999999)", "(True, 8)"])
def test_impossible_shapes_of_arrays_are_explained(shape, tmp_path):
    section = array(tmp_path, VECTORS.astype(np.float64))
    content = (tmp_path / "v.npy").read_bytes()
    header = content[10:128].replace(b"(60, 8)", shape.encode()).rstrip()
    (tmp_path / "v.npy").write_bytes(content[:10] + header.ljust(117) + b"\n" + content[128:])
    with refused("teacher.vectors", "v.npy"):
        read(section, tmp_path)


def test_damaged_headers_of_arrays_are_explained(tmp_path):
    section = array(tmp_path, VECTORS)
    content = (tmp_path / "v.npy").read_bytes()
    generator = random.Random(0)
    for _ in range(150):
        damaged = bytearray(content)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(6, 100)] = generator.randrange(256)
        (tmp_path / "v.npy").write_bytes(damaged)
        try:
            read(section, tmp_path)
        except Exception as error:  # what is not ours fails below
            assert user_error(error) is not None, error
