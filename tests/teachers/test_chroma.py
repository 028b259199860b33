"""Folders and servers of Chroma, written by Chroma's client in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refused
from samples import make_texts
from store_packages import needed

from benchmarks.indexes import APART, run_apart
from distilvec.config.schema import TeacherSection
from distilvec.core.addresses import Address
from distilvec.teachers.indexes import chroma
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.indexes.stores import is_index
from distilvec.teachers.table_embedder import TableEmbedder

TEXTS = make_texts(60)
VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
WRITE = """
import json, sys
import chromadb

place = sys.argv[1]
collections = json.load(open(sys.argv[2]))
settings = chromadb.Settings(anonymized_telemetry=False)
if place.startswith("http"):
    host, port, tenant, database = place.split("/")[2:]
    server = {"chroma_server_host": host, "chroma_server_http_port": int(port)}
    admin = chromadb.AdminClient(chromadb.Settings(chroma_api_impl="chromadb.api.fastapi.FastAPI", **server))
    admin.create_tenant(tenant)
    admin.create_database(database, tenant)
    client = chromadb.HttpClient(host, int(port), settings=settings, tenant=tenant, database=database)
else:
    client = chromadb.PersistentClient(place, settings)
for name, content in collections.items():
    collection = client.get_or_create_collection(name, embedding_function=None, **content.get("options", {}))
    for method, words in content["calls"]:
        getattr(collection, method)(**words)
"""


@pytest.fixture(autouse=True)
def chromadb():
    needed("chroma")


def write(place, folder, **collections):
    (folder / "collections.json").write_text(json.dumps(collections))
    run_apart(WRITE, place, folder / "collections.json")


def rows(numbers, **columns):
    """The words of a call that adds rows."""
    return {
        "ids": [f"id-{row}" for row in numbers],
        "documents": [TEXTS[row] for row in numbers],
        "embeddings": [VECTORS[row].tolist() for row in numbers],
        **columns,
    }


def read(address, folder, **settings):
    """Texts with their vectors, and the section of the copy."""
    section = local_table(TeacherSection(vectors=address, **settings), folder / "cache")
    texts, vectors = TableEmbedder(section).documents()
    return dict(zip(texts, vectors, strict=True)), section


def hashes(folder):
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_rows_are_those_that_the_owner_sees_and_the_folder_stays(tmp_path, capsys):
    """More rows than are written to the index at once; deleted, updated and repeated ones, and one without a text."""
    folder = tmp_path / "my chroma"
    many = [f"{TEXTS[row % 60]} {row}" for row in range(1200)]
    first = {
        "ids": [str(row) for row in range(1200)],
        "documents": many,
        "embeddings": [VECTORS[row % 60].tolist() for row in range(1200)],
        "metadatas": [{"source": f"file {row // 100}", "number": row} for row in range(1200)],
    }
    calls = [
        ("add", first),
        ("delete", {"ids": [str(row) for row in range(1100)]}),
        ("update", {"ids": ["1150"], "embeddings": [VECTORS[0].tolist()], "documents": ["a new text"]}),
        ("upsert", {"ids": ["1151", "more"], "embeddings": VECTORS[:2].tolist(), "documents": ["changed", "added"]}),
        ("add", {"ids": ["1152"], "embeddings": VECTORS[:1].tolist(), "documents": ["of a known id"]}),
        ("add", {"ids": ["bare"], "embeddings": VECTORS[:1].tolist()}),
    ]
    write(folder, tmp_path, table={"calls": calls})
    before = hashes(folder)
    found, section = read(str(folder), tmp_path)
    expected = {many[row]: VECTORS[row % 60] for row in range(1100, 1200)}
    del expected[many[1150]], expected[many[1151]]
    expected |= {"a new text": VECTORS[0], "changed": VECTORS[0], "added": VECTORS[1]}
    assert found.keys() == expected.keys()
    for text, vector in expected.items():
        np.testing.assert_array_equal(found[text], vector)
    assert hashes(folder) == before and section.similarity == "euclidean"
    assert not [path for path in tmp_path.joinpath("cache").iterdir() if "chroma" in path.name]
    said = " ".join(capsys.readouterr().err.split())
    assert "is copied first" in said and "1 without a text (first id bare)" in said
    copied = pq.read_table(sorted(section.vectors.glob("*.parquet")))
    assert copied["document_id"].to_pylist()[:2] == ["file 11", "file 11"]

    texts, _ = read(f"chroma://{folder}/table".replace(" ", "%20"), tmp_path, columns={"id": "number"}, limit=90)
    assert 85 < len(texts) <= 90  # the row without a text may be drawn
    with refused("teacher.columns", "no column 'title'"):
        read(str(folder), tmp_path, columns={"text": "title"})


def test_collections_of_one_width_are_read_together(tmp_path, capsys):
    """As Open WebUI makes them: one for each file, and one for a base of knowledge that repeats the rows of files."""
    folder = tmp_path / "vector_db"
    options = {"metadata": {"hnsw:space": "cosine"}}
    files = {
        "file-1": {"options": options, "calls": [("upsert", rows(range(20)))]},
        "file-2": {"options": options, "calls": [("upsert", rows(range(20, 40)))]},
        "knowledge": {"options": options, "calls": [("upsert", rows(range(10, 30)))]},
        "nothing": {"options": options, "calls": []},
    }
    write(folder, tmp_path, **files)
    assert is_index(folder) and is_index(folder / "chroma.sqlite3")
    for address in (str(folder), str(folder / "chroma.sqlite3"), f"chroma://{folder}"):
        found, section = read(address, tmp_path)
        assert list(found) == TEXTS[:40] and section.similarity == "cosine"
    assert "3 collections" in capsys.readouterr().err
    ids = pq.read_table(sorted(section.vectors.glob("*.parquet")))["id"].to_pylist()
    assert len(set(ids)) == len(ids) == 60 and ids[0] == "file-1/id-0"
    found, _ = read(f"chroma://{folder}/file-2", tmp_path)
    assert list(found) == TEXTS[20:40]

    wide = {f"wide-{number}": {"calls": [("add", rows([50], embeddings=[[1.0] * 5]))]} for number in range(10, 25)}
    write(folder, tmp_path, **wide)
    with refused("teacher.vectors", "wide-19 and 5 more, 8 of file-1, file-2, knowledge."):
        read(str(folder), tmp_path)
    with refused("teacher.vectors"):
        read(f"chroma://{folder}/absent", tmp_path)


def test_the_metric_is_that_of_the_search(tmp_path):
    cosine = {"hnsw:space": "cosine"}
    stated = {
        "nothing": ({}, "euclidean"),
        "configured": ({"configuration": {"hnsw": {"space": "cosine"}}}, "cosine"),
        "product": ({"configuration": {"hnsw": {"space": "ip"}}}, "dot"),
        "metadata": ({"metadata": cosine}, "cosine"),
        "both": ({"metadata": cosine, "configuration": {"hnsw": {"space": "l2", "ef_search": 50}}}, "euclidean"),
    }
    calls = [("add", rows(range(60)))]
    write(tmp_path / "db", tmp_path, **{name: {"options": stated[name][0], "calls": calls} for name in stated})
    for name, (_, similarity) in stated.items():
        assert read(f"chroma://{tmp_path}/db/{name}", tmp_path)[1].similarity == similarity


def test_a_folder_of_an_older_client_is_searched_by_the_space_of_its_metadata(tmp_path):
    """The client of today calls its configuration "l2". As Chroma 0.6 leaves it, before its row of a schema."""
    folder = tmp_path / "db"
    write(
        folder, tmp_path, table={"options": {"metadata": {"hnsw:space": "cosine"}}, "calls": [("add", rows(range(60)))]}
    )
    configuration = {"space": "l2", "ef_construction": 100, "ef_search": 100, "num_threads": 2, "M": 16,
                     "resize_factor": 1.2, "batch_size": 100, "sync_threshold": 1000,
                     "_type": "HNSWConfigurationInternal"}  # fmt: skip
    older = {"hnsw_configuration": configuration, "_type": "CollectionConfigurationInternal"}
    with sqlite3.connect(folder / "chroma.sqlite3") as database:
        database.execute("UPDATE collections SET config_json_str = ?", (json.dumps(older),))
        database.execute("ALTER TABLE collections DROP COLUMN schema_str")
        vectors = "SELECT id, 'hnsw:space', 'cosine' FROM segments WHERE scope = 'VECTOR'"
        database.execute(f"INSERT INTO segment_metadata (segment_id, key, str_value) {vectors}")
        database.execute("DELETE FROM migrations WHERE dir = 'sysdb' AND version = 10")
    before = hashes(folder)
    found, section = read(str(folder), tmp_path)
    assert section.similarity == "cosine" and list(found) == TEXTS
    assert hashes(folder) == before


def test_folders_that_no_client_reads_are_refused_untouched(tmp_path):
    old = tmp_path / "old"
    old.mkdir()
    pq.write_table(pa.table({"document": TEXTS}), old / "chroma-embeddings.parquet")
    before = hashes(old)
    with refused("teacher.vectors", "Chroma 0.4"):
        read(str(old), tmp_path)
    assert hashes(old) == before
    with refused("teacher.vectors", "no chroma.sqlite3"):
        read(f"chroma://{tmp_path}/nowhere/table", tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_lengths_mean_nothing_under_a_stated_cosine(tmp_path):
    mixed = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    mixed[7] *= 30
    options = {"configuration": {"hnsw": {"space": "cosine"}}}
    write(
        tmp_path / "db",
        tmp_path,
        table={"options": options, "calls": [("add", rows(range(60), embeddings=mixed.tolist()))]},
    )
    found, _ = read(str(tmp_path / "db"), tmp_path)
    mixed[7] /= 30
    np.testing.assert_allclose(np.stack(list(found.values())), mixed, atol=1e-6)


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path, loopback):
    """The port of a server of Chroma."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys\nfrom chromadb.cli.cli import app\nsys.argv = ['chroma', *sys.argv[1:]]\napp()"
    words = ["run", "--path", str(tmp_path / "served"), "--host", "127.0.0.1", "--port", str(port)]
    path = os.pathsep.join([str(APART), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            try:
                urlopen(f"http://127.0.0.1:{port}/api/v2/heartbeat").read()
                break
            except OSError:
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def test_a_server_gives_the_collection_of_a_tenant_and_a_database(server, tmp_path):
    metadatas = [{"page": row} for row in range(59)] + [{"title": "a page", "role": "query"}]
    calls = [("add", rows(range(60), metadatas=metadatas)), ("delete", {"ids": ["id-3"]})]
    write(f"http://127.0.0.1/{server}/somebody/mine", tmp_path, table={"calls": calls})
    address = f"chroma://127.0.0.1:{server}/table?tenant=somebody&database=mine"
    found, section = read(address, tmp_path)
    assert found.keys() == set(TEXTS) - {TEXTS[3], TEXTS[59]} and section.name == "table"
    np.testing.assert_array_equal(found[TEXTS[5]], VECTORS[5])
    with refused("teacher.vectors"):
        read(f"chroma://127.0.0.1:{server}/table", tmp_path)
    with refused("teacher.vectors", "no setting sslmode"):
        read(f"chroma://127.0.0.1:{server}/table?sslmode=require", tmp_path)


def test_the_token_of_a_server_comes_from_the_environment(tmp_path, loopback, monkeypatch):
    """To another machine with TLS alone, and to no file."""
    monkeypatch.setenv("CHROMA_API_KEY", "very-secret-word")
    seen = []

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(dict(self.headers))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=http.serve_forever, daemon=True).start()
    with refused("teacher.vectors") as caught:
        read(f"chroma://127.0.0.1:{http.server_port}/table", tmp_path)
    http.shutdown()
    http.server_close()
    headers = {name.lower(): value for name, value in seen[0].items()}
    assert headers["authorization"] == "Bearer very-secret-word" == f"Bearer {headers['x-chroma-token']}"
    assert "very-secret-word" not in str(caught.value)

    import chromadb

    clients = []

    def client(*words, **options):
        clients.append((words, options["ssl"]))
        raise ConnectionError

    monkeypatch.setattr(chromadb, "HttpClient", client)
    with pytest.raises(ConnectionError):
        chroma.ChromaCollections(Address("chroma://elsewhere:8000/table")).__enter__()
    assert clients == [(("elsewhere", 8000), True)]
