"""Readers of existing indexes, and the local copy made from them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from samples import make_texts
from store_packages import needed

from benchmarks.indexes import KINDS, stored
from distilvec.config.recipe import section_of as stated_section
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.teachers.indexes import copy
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.reader import Reader
from distilvec.teachers.indexes.stores import is_index, read_address
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(120)
VECTORS = np.random.default_rng(0).standard_normal((120, 8)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def rows(table):
    """A copy's rows."""
    return pq.read_table(sorted(table.vectors.glob("part-*.parquet")))


def section_of(index, **changes):
    return TeacherSection(vectors=index.address, **index.options, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_its_texts_and_vectors(kind, tmp_path):
    needed(kind)
    with stored(kind, tmp_path / "index", TEXTS, VECTORS) as index:
        table = TableEmbedder(local_table(section_of(index), tmp_path / "cache"))
        texts, vectors = table.documents()
        assert sorted(texts) == sorted(TEXTS) and table.normalized and table.dim == 8
        np.testing.assert_allclose(vectors, VECTORS[[TEXTS.index(text) for text in texts]], atol=1e-6)
        np.testing.assert_allclose(table.embed([TEXTS[5], TEXTS[3]], "query"), VECTORS[[5, 3]], atol=1e-6)
        some = TableEmbedder(local_table(section_of(index, limit=50), tmp_path / "cache"))
        drawn = some.documents()[0]
        assert len(drawn) == 50 and set(drawn) < set(TEXTS) and drawn != texts[:50]
        assert table.lacking(["absent", TEXTS[0]]) == 1
        with refused(".vectors", "'absent'"):
            table.embed([TEXTS[0], "absent"])


def test_vectors_that_bfloat16_normalized_have_length_one(tmp_path):
    """Both roundings go one way where all numbers of a vector are equal: the length is as much as 0.006 from 1."""
    numbers = torch.zeros(len(TEXTS), 384, dtype=torch.bfloat16)
    for row, count in enumerate(range(384, 384 - len(TEXTS), -1)):
        numbers[row, :count] = 1
    vectors = torch.nn.functional.normalize(numbers, dim=1).float().numpy()
    lengths = np.linalg.norm(vectors, axis=1)
    assert np.abs(lengths - 1).max() > 0.005
    with stored("parquet", tmp_path / "index", TEXTS, vectors) as index:
        table = TableEmbedder(local_table(section_of(index), tmp_path / "cache"))
        assert table.normalized
        np.testing.assert_array_equal(table.embed(TEXTS), vectors)


def faiss_index(path, index):
    import faiss

    index.add(np.ascontiguousarray(VECTORS))
    faiss.write_index(index, str(path / "table.faiss"))
    (path / "texts.txt").write_text("\n".join(TEXTS))
    return TeacherSection(vectors=path / "table.faiss", texts=path / "texts.txt")


@pytest.mark.parametrize(
    ("make", "similarity"),
    [
        (lambda faiss: faiss.IndexFlatIP(8), "dot"),
        (lambda faiss: faiss.IndexFlatL2(8), "euclidean"),
        (lambda faiss: faiss.IndexHNSWFlat(8, 16, faiss.METRIC_INNER_PRODUCT), "dot"),
    ],
)
def test_faiss_states_its_metric(tmp_path, make, similarity):
    needed("faiss")
    import faiss

    section = faiss_index(tmp_path, make(faiss))
    assert local_table(section, tmp_path).similarity == similarity
    stated = section.model_copy(update={"similarity": "cosine"})
    assert local_table(stated, tmp_path).similarity == "cosine"  # what the user states comes first, and is not kept
    assert local_table(section, tmp_path).similarity == similarity
    assert TableEmbedder(local_table(section, tmp_path)).info().similarity == similarity


def test_a_metric_that_is_not_scored_is_refused_unless_another_is_stated(tmp_path):
    needed("faiss")
    import faiss

    section = faiss_index(tmp_path, faiss.IndexFlat(8, faiss.METRIC_L1))
    with refused("teacher.vectors", "metric 2"):
        local_table(section, tmp_path)
    assert local_table(section.model_copy(update={"similarity": "euclidean"}), tmp_path).similarity == "euclidean"


def test_qdrant_states_the_distance_of_the_named_vector(tmp_path):
    needed("qdrant")
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "index"))
    distances = {"one": models.Distance.EUCLID, "two": models.Distance.COSINE, "three": models.Distance.MANHATTAN}
    about = {name: models.VectorParams(size=8, distance=distance) for name, distance in distances.items()}
    client.create_collection("table", vectors_config=about)
    rows = [
        models.PointStruct(id=row, vector=dict.fromkeys(distances, VECTORS[row].tolist()), payload={"content": text})
        for row, text in enumerate(TEXTS[:9])
    ]
    client.upsert("table", rows)
    client.close()
    for name, similarity in (("one", "euclidean"), ("two", "cosine")):
        section = TeacherSection(vectors=f"qdrant://{tmp_path}/index/table", columns={"embedding": name})
        assert local_table(section, tmp_path).similarity == similarity
    section = section.model_copy(update={"columns": {"embedding": "three"}})
    with pytest.raises(DistilvecError, match="compares vectors by Manhattan"):
        local_table(section, tmp_path)


def test_postgresql_states_the_operators_of_the_index_on_the_vectors(tmp_path):
    needed("pgvector")
    import psycopg

    with stored("pgvector", tmp_path / "index", TEXTS, VECTORS) as index:
        address = index.address
        table, _, socket = address.rpartition("/postgres/")[2].replace("%20", " ").partition("?host=")

        def execute(command):
            with psycopg.connect(f"postgresql://postgres@/postgres?host={socket}") as connection:
                connection.execute(command)

        def create(operators, kind="hnsw", column="vector", condition=""):
            execute(f'CREATE INDEX shown ON "{table}" USING {kind} ({column} {operators}) {condition}')

        def stated(root):
            return local_table(TeacherSection(vectors=address), tmp_path / root).similarity

        assert stated("none") is None
        create("halfvec_ip_ops", column="(vector::halfvec(8))", condition="WHERE id > 3")
        assert stated("a cast, in part") == "dot"
        execute("DROP INDEX shown")
        execute(f'ALTER TABLE "{table}" ADD vector_2 vector(8)')
        create("vector_cosine_ops", column="(vector_2::vector(8))", condition="WHERE vector IS NOT NULL")
        assert stated("of another column") is None
        execute("DROP INDEX shown")
        create("vector_l2_ops")
        assert stated("one") == "euclidean"
        execute("ALTER INDEX shown RENAME TO first")
        create("vector_l2_ops", "ivfflat")
        assert stated("two of a kind") == "euclidean"
        execute("ALTER INDEX shown RENAME TO second")
        create("vector_ip_ops")
        assert stated("two that differ") is None


def test_a_table_of_lancedb_states_the_distance_of_its_index_and_else_searches_by_l2(tmp_path):
    needed("lancedb")
    import lancedb

    table = lancedb.connect(tmp_path).create_table("t", pa.table({"text": TEXTS * 3, "vector": _lists(3)}))
    section = TeacherSection(vectors=tmp_path / "t.lance")
    without_index = TableEmbedder(local_table(section, tmp_path / "none"))
    assert (without_index.similarity, without_index.similarity_source) == ("euclidean", "store")
    stated = TableEmbedder(local_table(section.model_copy(update={"similarity": "cosine"}), tmp_path / "none"))
    assert (stated.similarity, stated.similarity_source) == ("cosine", "user")
    table.create_index(metric="dot", vector_column_name="vector", index_type="IVF_FLAT", num_partitions=1)
    with_index = TableEmbedder(local_table(section, tmp_path / "one"))
    assert (with_index.similarity, with_index.similarity_source) == ("dot", "index")


def _lists(times):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.tile(VECTORS, (times, 1)).reshape(-1)), 8)


def test_points_without_the_named_vector_are_left_out(tmp_path):
    needed("qdrant")
    from qdrant_client import QdrantClient, models

    client, folder = QdrantClient(path=str(tmp_path / "index")), tmp_path / "index"
    about = models.VectorParams(size=8, distance=models.Distance.DOT)
    client.create_collection("table", vectors_config={"one": about, "two": about})
    names = [("one", "two"), ("two",), ("one",)]
    rows = [
        models.PointStruct(id=row, vector=dict.fromkeys(own, VECTORS[row].tolist()), payload={"content": TEXTS[row]})
        for row, own in enumerate(names)
    ]
    client.upsert("table", rows)
    client.close()
    section = TeacherSection(vectors=f"qdrant://{folder}/table", columns={"embedding": "one"})
    assert sorted(TableEmbedder(local_table(section, tmp_path)).documents()[0]) == sorted([TEXTS[0], TEXTS[2]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_that_was_killed_goes_on_and_ends_alike(kind, tmp_path, monkeypatch):
    needed(kind)
    monkeypatch.setattr(copy, "_ROWS", 20)
    monkeypatch.setattr(Reader, "rows_at_once", 20)
    monkeypatch.setattr("distilvec.teachers.indexes.qdrant._POINTS", 20)
    monkeypatch.setattr("distilvec.teachers.indexes.postgres._BLOCKS", 1)
    with stored(kind, tmp_path / "index", TEXTS * 3, np.tile(VECTORS, (3, 1))) as index:
        section = section_of(index, limit=300)
        whole = rows(local_table(section, tmp_path / "whole"))
        write, written = copy._write, []

        def killed(path, table):
            if len(written) == 2:
                raise KeyboardInterrupt
            written.append(path)
            write(path, table)

        monkeypatch.setattr(copy, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            local_table(section, tmp_path / "killed")
        monkeypatch.setattr(copy, "_write", write)
        before = [path.stat().st_mtime_ns for path in written]
        found = local_table(section, tmp_path / "killed")
        assert [path.stat().st_mtime_ns for path in written] == before
        assert rows(found).equals(whole) and len(whole) == 300


def refuse(*_):
    raise DistilvecError("the server is down.", key="teacher.vectors")


def test_a_copy_is_used_again_until_the_file_changes_or_a_refresh(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    table = pa.table({"body": TEXTS, "mine": list(VECTORS)})
    pq.write_table(table, path)
    section = TeacherSection(vectors=path, columns={"text": "body", "embedding": "mine"}, limit=60)
    first = local_table(section, tmp_path)
    parts = sorted(first.vectors.glob("part-*"))
    times = [part.stat().st_mtime_ns for part in parts]
    assert local_table(section, tmp_path) == first and [part.stat().st_mtime_ns for part in parts] == times
    with monkeypatch.context() as context:
        context.setattr(copy, "open_reader", refuse)
        with pytest.raises(DistilvecError, match="down"):
            local_table(section, tmp_path, refresh=True)
    assert local_table(section, tmp_path) == first and [part.stat().st_mtime_ns for part in parts] == times
    local_table(section, tmp_path, refresh=True)
    assert [part.stat().st_mtime_ns for part in parts] != times
    pq.write_table(table.slice(0, 90), path)
    assert local_table(section, tmp_path).vectors != first.vectors
    assert local_table(section.model_copy(update={"limit": None}), tmp_path).vectors == path


def test_rows_without_text_or_vector_are_left_out(tmp_path):
    texts, vectors = [*TEXTS[:100], None, "", "   "], [*VECTORS[:99].tolist(), None, *VECTORS[:3].tolist()]
    pq.write_table(pa.table({"text": texts, "vector": vectors}), tmp_path / "t.parquet")
    found = local_table(TeacherSection(vectors=tmp_path / "t.parquet", limit=1000), tmp_path)
    assert rows(found).column("text").to_pylist() == TEXTS[:99]
    assert json.loads((found.vectors / "meta.json").read_text())["kept"] == 99


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:secret@host/db/t",
        "postgresql://me:secret#x@host/db/t",
        "postgresql://me:12/secret@host/db/t",
        "postgresql://host/db/t?password=secret",
        "qdrant://:secret@host/t",
        "qdrant://host/t?api_key=secret",
        "host=host password=secret dbname=db",
        "host=host pass%2577ord = secret",
        "postgresql://host/db/t?options=-c%20x.password%3Dsecret",
        "postgresql://host/db/t#sslpassword=secret",
    ],
)
def test_passwords_in_addresses_are_refused_and_not_repeated(address):
    with refused("", "password") as caught:
        read_address(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://host/db/t?sslpasswort=quiet",
        "postgres://host/db/t?sslmode=require&sslpasswort=quiet",
        "postgresql://host/db/t?quiet",
        "postgresql://host/db/t?sslmode=require#quiet",
        "postgresql://host/db/t?require_auth=quiet",
        "qdrant://host/t?apikei=quiet",
        "qdrant://host/t#quiet",
    ],
)
def test_settings_that_are_not_known_are_refused_without_their_value(address):
    """A misspelt name may stand before a password."""
    with refused("", "not known") as caught:
        read_address(address)
    assert "quiet" not in str(caught.value)
    with refused("teacher.vectors", "not known") as caught:
        stated_section(TeacherSection, "teacher", {"vectors": address})
    assert "quiet" not in str(caught.value)


def test_the_password_of_the_environment_reaches_no_file(tmp_path, monkeypatch):
    needed("pgvector")
    monkeypatch.setenv("DISTILVEC_INDEX_PASSWORD", "very-secret-word")
    with stored("pgvector", tmp_path / "index", TEXTS, VECTORS) as index:
        local_table(section_of(index), tmp_path / "cache")
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files and all(b"very-secret-word" not in path.read_bytes() for path in files)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://host/t", "no index has the scheme"),
        ("model", "no known kind"),
        ("postgresql://host/", "names no table"),
        ("postgresql://host:port/db/t", "is not valid"),
    ],
)
def test_unknown_addresses_are_explained(address, found):
    with pytest.raises(DistilvecError, match=found):
        read_address(address)
    assert is_index("table.parquet") and not is_index("org/model")


@pytest.mark.parametrize("kind", ["lancedb", "qdrant", "pgvector", "faiss", "npy", "arrow"])
def test_an_index_that_is_not_there_is_explained(kind, tmp_path):
    needed(kind)
    address = {
        "lancedb": tmp_path / "t.lance",
        "qdrant": f"qdrant://{tmp_path}/t",
        "pgvector": f"postgresql://me@/db/t?host={tmp_path}",
        "faiss": tmp_path / "t.faiss",
        "npy": tmp_path / "t.npy",
        "arrow": tmp_path / "t.arrow",
    }[kind]
    with refused("teacher.vectors"):
        local_table(TeacherSection(vectors=str(address)), tmp_path / "cache")


def test_arrays_need_their_texts(tmp_path):
    np.save(tmp_path / "v.npy", VECTORS)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:100]))
    section = TeacherSection(vectors=tmp_path / "v.npy")
    with refused("teacher.texts", "no texts"):
        local_table(section, tmp_path)
    with refused("teacher.texts", "100 texts"):
        local_table(section.model_copy(update={"texts": tmp_path / "texts.txt"}), tmp_path)


def test_columns_are_named_or_found(tmp_path):
    pq.write_table(pa.table({"one": TEXTS, "two": list(VECTORS)}), tmp_path / "t.parquet")
    with refused("teacher.columns", "text=NAME"):
        TableEmbedder(TeacherSection(vectors=tmp_path / "t.parquet"))
    with pytest.raises(DistilvecError, match="no column 'tow'.*did you mean 'two'"):
        TableEmbedder(TeacherSection(vectors=tmp_path / "t.parquet", columns={"text": "one", "embedding": "tow"}))
    named = TeacherSection(vectors=tmp_path / "t.parquet", columns={"text": "one", "embedding": "two"})
    assert TableEmbedder(named).documents()[0] == TEXTS


def test_the_last_rows_count_as_read_where_none_has_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr(copy, "_ROWS", 20)
    monkeypatch.setattr(Reader, "rows_at_once", 20)
    texts = [*TEXTS[:40], *[None] * 7]
    pq.write_table(pa.table({"text": texts, "vector": list(VECTORS[:47])}), tmp_path / "t.parquet")
    found = local_table(TeacherSection(vectors=tmp_path / "t.parquet", limit=1000), tmp_path)
    meta = json.loads((found.vectors / "meta.json").read_text())
    assert (meta["kept"], meta["read"], meta["rows"]) == (40, 47, 47)


def test_two_texts_of_one_id_are_refused(tmp_path):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexIDMap(faiss.IndexFlatIP(8))
    index.add_with_ids(VECTORS[:3], np.arange(3))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    lines = [{"id": number, "text": TEXTS[number]} for number in (0, 1, 2, 1)]
    file = tmp_path / "texts.jsonl"
    section = TeacherSection(vectors=tmp_path / "index.faiss", texts=file)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows(local_table(section, tmp_path)).column("text").to_pylist() == TEXTS[:3], "the same text again is fine"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"id": 2, "text": "another"}]))
    with refused("teacher.texts", "two texts with the id 2"):
        local_table(section, tmp_path)


def test_a_folder_of_qdrant_is_free_again_after_an_error(tmp_path):
    needed("qdrant")
    with stored("qdrant", tmp_path / "index", TEXTS, VECTORS) as index:
        section = section_of(index)
        wrong = section.model_copy(update={"vectors": f"{index.address.rpartition('/')[0]}/none"})
        with refused("teacher.vectors", "none not found") as caught:
            local_table(wrong, tmp_path / "cache")
        assert len(rows(local_table(section, tmp_path / "cache"))) == len(TEXTS), caught
