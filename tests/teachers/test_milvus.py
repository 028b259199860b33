"""Collections of Milvus Lite, written by pymilvus in a process of its own."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from refusals import refused
from samples import make_texts
from store_packages import needed

from benchmarks.indexes import run_apart
from distilvec.config.schema import TeacherSection
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
WRITE = """
import json, os, sys
from pymilvus import DataType, MilvusClient

texts, vectors, leave_open = json.load(open(sys.argv[2]))
client = MilvusClient(sys.argv[1])
schema = client.create_schema(enable_dynamic_field=True)
schema.add_field("name", DataType.VARCHAR, max_length=20, is_primary=True)
schema.add_field("dense", DataType.FLOAT_VECTOR, dim=8)
index = client.prepare_index_params()
index.add_index("dense", index_type="FLAT", metric_type="COSINE")
client.create_collection("docs", schema=schema, index_params=index)
client.create_alias("docs", "live")
rows = [{"name": f"n{row}", "dense": vectors[row], "source": f"s{row}"} for row in range(60)]
for row in range(5, 60):
    rows[row]["text"] = texts[row]
client.insert("docs", rows)
client.flush("docs")
client.delete("docs", ids=[f"n{row}" for row in range(10, 20)])
client.upsert("docs", [{**rows[20], "text": "changed", "dense": vectors[0]}, {**rows[10], "text": "back again"}])
if leave_open:
    os._exit(0)
client.close()
client = MilvusClient(sys.argv[1])
client.upsert("docs", [{**rows[21], "text": "changed later"}])
client.delete("docs", ids=["n59"])
client.close()
"""


@pytest.fixture(autouse=True)
def milvus_lite():
    needed("milvus")


def write(tmp_path, leave_open=False):
    (tmp_path / "rows.json").write_text(json.dumps([TEXTS, VECTORS.tolist(), leave_open]))
    run_apart(WRITE, tmp_path / "my.db", tmp_path / "rows.json")
    return TeacherSection(vectors=f"milvus://{tmp_path}/my.db/docs")


def read(section, folder):
    table = local_table(section, folder / "cache")
    return dict(zip(*TableEmbedder(table).documents(), strict=True)), table


def test_rows_are_those_that_the_owner_sees_and_the_folder_stays(tmp_path, capsys):
    """Deleted, updated, deleted and added again; text is a field that the first rows do not have."""
    section = write(tmp_path)
    files = [path for path in (tmp_path / "my.db").rglob("*") if path.is_file()]
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    rows, table = read(section, tmp_path)
    expected = {TEXTS[row]: VECTORS[row] for row in [*range(5, 10), *range(22, 59)]}
    expected |= {"changed": VECTORS[0], "back again": VECTORS[10], "changed later": VECTORS[21]}
    assert rows.keys() == expected.keys() and table.similarity == "cosine"
    for text, vector in expected.items():
        np.testing.assert_allclose(rows[text], vector / np.linalg.norm(vector), atol=1e-6)
    assert "5 without a text (first id n0)" in " ".join(capsys.readouterr().err.split())
    assert {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files} == before

    live = section.model_copy(update={"vectors": f"milvus://{tmp_path}/my.db/live"})
    assert read(live, tmp_path)[0].keys() == expected.keys()
    with refused("teacher.vectors", "there are docs"):
        read(section.model_copy(update={"vectors": f"milvus://{tmp_path}/my.db/other"}), tmp_path)


def test_parts_of_a_collection_are_not_a_table(tmp_path):
    """Read as Parquet they would give deleted and overwritten rows."""
    write(tmp_path)
    words = {"": "collections", "collections/docs": "partitions", "collections/docs/partitions/_default/data": "Milvus"}
    for inside, word in words.items():
        with refused("teacher.vectors", word):
            read(TeacherSection(vectors=tmp_path / "my.db" / inside), tmp_path)


def test_rows_that_are_in_no_file_yet_are_an_error(tmp_path):
    section = write(tmp_path, leave_open=True)
    with refused("teacher.vectors", "not in its files yet"):
        read(section, tmp_path)


def test_other_versions_are_named(tmp_path):
    (tmp_path / "old.db").write_bytes(b"a file of version 2")
    with refused("teacher.vectors", "before version 3"):
        read(TeacherSection(vectors=f"milvus://{tmp_path}/old.db/docs"), tmp_path)
    section = write(tmp_path)
    manifest = tmp_path / "my.db" / "collections" / "docs" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"manifest_format_version": 3}))
    with refused("teacher.vectors", "format 3"):
        read(section, tmp_path)
