"""--where: rows of every kind of index by their values, in the store's types, with a missing value, by dotted names."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts
from store_packages import needed

from benchmarks.indexes import KINDS, further_fields, stored
from distilvec.__main__ import run_command
from distilvec.cli.options import read_where
from distilvec.config.schema import TeacherSection
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.stores import read_address, store_of
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(120)
VECTORS = np.random.default_rng(0).standard_normal((120, 8)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def rows_with(condition):
    return [row for row in range(120) if condition(**further_fields(row))]


CASES = [
    (["lang=en"], rows_with(lambda lang, **_: lang == "en")),
    (["lang=it's", "lang=null"], rows_with(lambda lang, **_: lang != "en")),
    (["year=2001"], rows_with(lambda year, **_: year == 2001)),
    (["year=2001", "year=2003", "lang=en"], rows_with(lambda lang, year, **_: year in (2001, 2003) and lang == "en")),
    (["meta.kind=b", "lang=null"], rows_with(lambda lang, meta, **_: meta["kind"] == "b" and lang is None)),
]


def prefixed(words, prefix):
    return {f"{prefix}{name}": values for name, values in read_where(words).items()}


def read(index, folder, where, **keys):
    section = TeacherSection(vectors=index.address, **index.options, where=where, **keys)
    return TableEmbedder(local_table(section, folder / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_are_chosen_by_their_values(kind, tmp_path):
    needed(kind)
    with stored(kind, tmp_path / "index", TEXTS, VECTORS) as index:
        if not store_of(read_address(index.address)).reader_class.takes_where:
            with refused("teacher.where"):
                read(index, tmp_path, {"lang": "en"})
            return
        for words, rows in CASES:
            texts, vectors = read(index, tmp_path, prefixed(words, index.prefix)).documents()
            assert sorted(texts) == sorted(TEXTS[row] for row in rows), words
            np.testing.assert_allclose(vectors, VECTORS[[TEXTS.index(text) for text in texts]], atol=1e-6)
        assert len(list((tmp_path / "cache" / "indexes").iterdir())) >= len(CASES)  # a copy for each
        some = read(index, tmp_path, prefixed(["lang=en"], index.prefix), limit=10).documents()[0]
        assert len(some) == 10 and set(some) < {TEXTS[row] for row in CASES[0][1]}  # ten of those that are chosen
        with refused("teacher.where", "en") as caught:
            read(index, tmp_path, prefixed(["lang=fr"], index.prefix))
        assert "null" in str(caught.value) and "it's" in str(caught.value)
        with refused("teacher.where"):
            read(index, tmp_path, prefixed(["langu=en"], index.prefix))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "lance"])
def test_a_row_without_an_id_keeps_its_number(kind, tmp_path):
    """Clicks name it by this number, whichever rows are read."""
    columns = {
        "content": TEXTS,
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), 8),
        "lang": ["de", "en", "en"] * 40,
    }
    path = write_table(kind, tmp_path, columns)
    section = TeacherSection(vectors=path, where={"lang": "en"})
    table = TableEmbedder(local_table(section, tmp_path / "cache"))
    texts, _ = table.documents()
    assert len(texts) == 80 and table.ids(texts) == [str(TEXTS.index(text)) for text in texts]
    assert table.table.texts_of({"119", "0"}) == {"119": TEXTS[119]}


def write_table(kind, folder, columns):
    """Write a table of a kind and return its path."""
    if kind == "lance":
        import lancedb

        lancedb.connect(folder).create_table("t", pa.table(columns))
        return folder / "t.lance"
    if kind == "arrow":
        import pyarrow.feather

        pyarrow.feather.write_feather(pa.table(columns), str(folder / "t.arrow"), compression="uncompressed")
        return folder / "t.arrow"
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


@pytest.mark.parametrize("kind", ["parquet", "arrow", "lance"])
def test_values_have_the_type_of_their_column(kind, tmp_path):
    """Booleans, floats, dates, dictionaries, and texts that look like numbers."""
    columns = {
        "content": TEXTS[:12],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS[:12].reshape(-1)), 8),
        "public": pa.array([True, False, None] * 4),
        "score": pa.array([0.5, 1.0, 2.0] * 4),
        "day": pa.array([19000, 19001, None] * 4, pa.int32()).cast(pa.date32()),
        "word": pa.array(["7", "07", "null"] * 4),
        "class": pa.array(["x", "y", None] * 4).dictionary_encode(),
    }
    path = write_table(kind, tmp_path, columns)

    def positions(where):
        section = TeacherSection(vectors=path, where=where)
        texts, _ = TableEmbedder(local_table(section, tmp_path / "cache")).documents()
        return {TEXTS.index(text) % 3 for text in texts}

    assert positions({"public": "true"}) == {0} and positions({"public": ["false", None]}) == {1, 2}
    assert positions({"score": "1"}) == {1} and positions({"score": ["0.5", "2"]}) == {0, 2}
    assert positions({"day": "2022-01-08"}) == {0}
    assert positions({"word": "7"}) == {0} and positions({"word": "null"}) == {2}
    assert positions({"class": ["y", None]}) == {1, 2}
    assert positions({"public": True}) == {0} and positions({"public": [False]}) == {1}
    with refused("teacher.where", "'many'"):
        positions({"score": "many"})


@pytest.mark.parametrize("kind", ["jsonl", "qdrant"])
def test_values_without_a_column_of_a_type_are_compared_in_their_own(kind, tmp_path):
    """Of a boolean true, false and their numbers alone mean one of the two."""
    values = [True, False, "true", 0]
    if kind == "qdrant":
        client = pytest.importorskip("qdrant_client").QdrantClient(path=str(tmp_path / "db"))
        from qdrant_client import models

        client.create_collection("t", vectors_config=models.VectorParams(size=8, distance=models.Distance.COSINE))
        points = []
        for row in range(12):
            payload = {"text": TEXTS[row], "flag": values[row % 4]}
            points.append(models.PointStruct(id=row, vector=VECTORS[row].tolist(), payload=payload))
        client.upsert("t", points)
        client.close()
        address = f"qdrant://{tmp_path}/db/t"
    else:
        address = str(tmp_path / "t.jsonl")
        lines = []
        for row in range(12):
            line = {"text": TEXTS[row], "embedding": VECTORS[row].tolist(), "flag": values[row % 4]}
            lines.append(json.dumps(line))
        (tmp_path / "t.jsonl").write_text("\n".join(lines))

    def positions(value):
        section = TeacherSection(vectors=address, where={"flag": value})
        texts, _ = TableEmbedder(local_table(section, tmp_path / "cache")).documents()
        return {TEXTS.index(text) % 4 for text in texts}

    assert positions("true") == positions(True) == {0, 2}
    assert positions(False) == {1, 3} and positions("0") == {1, 3}
    with refused("teacher.where", "no row with flag=other"):
        positions("other")


def test_both_commands_and_the_page_read_the_same_rows(tmp_path, tiny_model, capsys):
    with stored("parquet", tmp_path / "index", TEXTS, VECTORS) as index:
        words = ["check", str(tiny_model), index.address]
        for value in ("meta.kind=b", "lang=en", "lang=it's", "lang=null"):
            words += ["--where", value]
        assert run_command([*words, "--where", "lang"]) == 2
        assert "--where" in capsys.readouterr().err
        run_command([*words, "--json", str(tmp_path / "check.json")])
        assert "60 of 60 rows" in " ".join(capsys.readouterr().err.split())
        distill = json.loads((tmp_path / "check.json").read_text())["distill"]
        assert "--where meta.kind=b --where lang=en" in distill and "--where lang=null" in distill


def test_only_an_index_has_rows_to_choose(tmp_path, tiny_model, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    assert run_command(["distill", str(tiny_model), str(tmp_path / "texts.txt"), "--where", "lang=en"]) == 2
    assert "--where" in capsys.readouterr().err
