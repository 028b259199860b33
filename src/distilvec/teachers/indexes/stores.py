"""The stores that vectors are read from: one line for each, and the lines of other packages.

Another package registers its store by an entry point of the group `distilvec.stores`, which names a `Store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError, about
from distilvec.core.extras import require_extra
from distilvec.core.files import files_below, is_aside, is_parquet

if TYPE_CHECKING:
    from distilvec.config.schema import TeacherSection
    from distilvec.teachers.indexes.reader import Reader

GROUP = "distilvec.stores"


@dataclass(frozen=True)
class Store:
    """A kind of index.

    `reader` is MODULE:CLASS, a Reader (reader.py), which is imported when an index is opened. The store has `endings`
    of files and folders, `holds` (names of files by which its folders are known; such a file stands for its folder), or
    `schemes` of addresses. `example` is an address for messages. `package` is what the reader
    imports; the extra of distilvec with the store's name installs it (pyproject.toml).
    """

    name: str
    reader: str
    endings: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    example: str = ""
    package: str = ""
    holds: tuple[str, ...] = ()

    @property
    def reader_class(self) -> type[Reader]:
        """The reader, imported."""
        module, _, name = self.reader.partition(":")
        reader: type[Reader] = getattr(import_module(module), name)
        return reader


_HERE = "distilvec.teachers.indexes"
PARQUET = Store("parquet", f"{_HERE}.parquet:ParquetFiles", (".parquet",), example="table.parquet")
STORES = (
    PARQUET,
    Store("arrow", f"{_HERE}.arrow:ArrowFile", (".arrow", ".feather"), example="table.arrow"),
    Store(
        "llamaindex",
        f"{_HERE}.llama_index:LlamaIndexFolder",
        example="storage/ with default__vector_store.json",
        holds=("default__vector_store.json",),  # before "jsonl", which takes every .json
    ),
    Store(
        "jsonl",
        f"{_HERE}.jsonl:JsonLines",
        (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".json", ".json.gz", ".json.zst"),
        example="dump.jsonl",
    ),
    Store("npy", f"{_HERE}.npy:NpyFile", (".npy",), example="vectors.npy"),
    Store("faiss", f"{_HERE}.faiss:FaissFile", (".faiss", ".index"), example="index.faiss", package="faiss"),
    Store("usearch", f"{_HERE}.usearch:UsearchFile", (".usearch",), example="index.usearch", package="usearch"),
    Store("lancedb", f"{_HERE}.lance:LanceTable", (".lance",), example="db/TABLE.lance", package="lancedb"),
    Store(
        "duckdb",
        f"{_HERE}.duck:DuckTable",
        schemes=("duckdb",),
        example="duckdb:///folder/file.duckdb/TABLE",
        package="duckdb",
    ),
    Store(
        "sqlite-vec",
        f"{_HERE}.sqlite_vec:SqliteVecTable",
        schemes=("sqlite-vec",),
        example="sqlite-vec:///folder/file.db/TABLE",
    ),
    Store(
        "qdrant",
        f"{_HERE}.qdrant:QdrantCollection",
        schemes=("qdrant",),
        example="qdrant://host:6333/COLLECTION or qdrant:///folder/COLLECTION",
        package="qdrant_client",
    ),
    Store(
        "chroma",
        f"{_HERE}.chroma:ChromaCollections",
        holds=("chroma.sqlite3", "chroma-embeddings.parquet"),
        schemes=("chroma",),
        example="chroma:///folder/COLLECTION or chroma://host:8000/COLLECTION",
        package="chromadb",
    ),
    Store(
        "milvus",
        f"{_HERE}.milvus:MilvusCollection",
        schemes=("milvus",),
        example="milvus:///folder/file.db/COLLECTION",
    ),
    Store(
        "pgvector",
        f"{_HERE}.postgres:PostgresTable",
        schemes=("postgresql", "postgres"),
        example="postgresql://user@host/database/TABLE",
        package="psycopg",
    ),
)


@cache
def all_stores() -> tuple[Store, ...]:
    """The stores of this package, and those of others."""
    stores = list(STORES)
    for entry in entry_points(group=GROUP):
        with about(GROUP, entry.value):
            stores.append(entry.load())
    return tuple(stores)


def is_index(name: object) -> bool:
    """Return whether a teacher's name is the address of a table or index, not that of a model."""
    return _find_store(Address.parse(str(name))) is not None


def read_address(text: str | Path) -> Address:
    """The address of an index. DistilvecError for an unknown kind, and for an address that holds a password."""
    address = Address.of_index(text)
    if address.had_secret:
        problem = "the address holds a password, which would end up in recipes and logs."
        fix = "Remove it, and set an environment variable (docs/index_formats.md). An @ in a name is written as %40."
        raise DistilvecError(problem, fix)
    store = store_of(address)
    if address.path is not None:
        return address
    try:
        parts = address.parts
        _ = parts.port  # parsed only now
    except ValueError:
        raise DistilvecError(f"the address {address} is not valid.", f"Give {_examples()}.") from None
    setting = address.unknown_setting()
    if setting is not None:  # its value is not shown: it may be a password, of which the setting's name is misspelt
        problem = f"the address with '{address.scheme}://' has {setting}, which is not known."
        raise DistilvecError(problem, "Correct it.")
    if parts.query and not store.reader_class.takes_settings:
        raise DistilvecError(f"{address} has settings behind its ?, which {store.name} does not take.", "Remove them.")
    if not parts.path.rpartition("/")[2]:
        raise DistilvecError(f"{address} names no table or collection.", f"Give {_examples()}.")
    return address


def store_of(address: Address) -> Store:
    """The store of an address; another kind of address is refused, with the kinds that there are."""
    store = _find_store(address)
    if store is not None:
        return store
    if address.path is None:
        raise DistilvecError(f"no index has the scheme '{address.scheme}://'.", f"Give {_examples()}.")
    if address.path.exists():
        raise nothing_to_read(address.path)
    raise DistilvecError(f"{address}: no known kind of index.", f"Give {_examples()}.")


def open_reader(section: TeacherSection, address: Address) -> Reader:
    """The reader of an index, which opens it as a context manager."""
    from distilvec.teachers.indexes.conditions import KEY, read_where  # pyarrow is not needed for a wrong path

    store = store_of(address)
    if store.package and store in STORES:
        require_extra(store.name, "", (store.package,))
    reader = store.reader_class(address, section.columns, section.texts)
    if section.where and not reader.takes_where:
        problem = f"the reader of {store.name} does not filter."
        raise DistilvecError(problem, "Leave it out, and export the rows that are meant.", key=KEY)
    reader.where = read_where(section.where)
    return reader


def nothing_to_read(path: Path, expected: str = "vectors") -> DistilvecError:
    """Return the error for a file or folder of another kind than is expected: it says what is there."""
    entries = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    content = ", ".join(entries[:5])
    if len(entries) > 5:
        content += f" and {len(entries) - 5} more"
    there = "is a file" if path.is_file() else f"holds {content or 'nothing'}"
    endings = ", ".join(ending for store in all_stores() for ending in store.endings if ending.count(".") == 1)
    fix = "Write texts and vectors to a Parquet file with the columns text and embedding."
    if path.is_file():
        address = f"duckdb://{path.absolute()}/TABLE"
        fix = f"Of a database give a table's address, such as {address} (docs/index_formats.md). Else: {fix}"
    of_packages = tuple(ending for store in all_stores() if store.package for ending in store.endings)
    indexes = [name for name in entries if name.endswith(of_packages)]
    if indexes:
        fix = f"Name the index in it: {' or '.join(str(path / name) for name in indexes[:5])}."
    return DistilvecError(f"{path} {there}; expected {expected} ({endings}).", fix)


def _find_store(address: Address) -> Store | None:
    path = address.path
    name = "" if path is None else path.name.lower()
    for store in _candidates(bool(address.scheme or "." in name)):
        if address.scheme in store.schemes or name.endswith(store.endings):
            return store
        if path is not None and any(path.name == name or (path / name).is_file() for name in store.holds):
            return store
    return PARQUET if path is not None and _is_parquet_folder(path) else None


def _candidates(may_be_of_another_package: bool) -> Iterator[Store]:
    """The stores of this package first: looking for other packages takes a moment."""
    yield from STORES
    if may_be_of_another_package:
        yield from all_stores()[len(STORES) :]


def _is_parquet_folder(path: Path) -> bool:
    """Whether a folder holds Parquet files and is not that of a model, which may have such files next to it."""
    if not path.is_dir() or (path / "modules.json").exists():
        return False
    return any(is_parquet(file) and not is_aside(file.relative_to(path)) for file in files_below(path))


def _examples() -> str:
    *names, last = [store.example for store in all_stores() if store.example]
    return f"{', '.join(names)} or {last}"
