"""Collections of Chroma: of a folder, a path or chroma:///FOLDER/COLLECTION, or of a server, chroma://HOST:PORT/COLLECTION.

Settings follow a question mark: ?tenant=NAME&database=NAME. CHROMA_API_KEY is the token of a server; to another machine
it goes with TLS alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote
from uuid import UUID

import numpy as np

from distilvec.config.endpoint import is_this_machine
from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import disk_space_needed, files_below, remove, remove_scratch, scratch, user_cache
from distilvec.core.log import log
from distilvec.data.task_rows import some_of
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import check_names, meets
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_payloads

DATABASE = "chroma.sqlite3"
_DOCUMENT = "chroma:document"  # Chroma's own name of it, beside the keys of the metadata


class ChromaCollections(Reader):
    """One collection, or all of a folder, which are of one width: texts are documents, other columns metadata.

    Rows are in the order in which they were added; the cursor counts them. The client migrates a folder and writes into
    it, so it opens a copy of the folder, which is removed at the end.
    """

    takes_settings = True
    takes_where = True

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The database of a folder, and the files of its vectors; none of a server."""
        folder, _ = _folder_and_collection(address)
        if folder is None or not folder.is_dir():
            return []
        files = [path for path in folder.iterdir() if path.name.startswith(DATABASE)]  # with a journal, if there is one
        for segment in folder.iterdir():
            if segment.is_dir() and _is_uuid(segment.name):
                files += files_below(segment)
        return sorted(files)

    def open(self) -> None:
        """Open the collections, and find the columns of all rows."""
        folder, name = _folder_and_collection(self.address)
        client = self._server_client() if folder is None else self._folder_client(folder)
        if name is None:
            collections = client.list_collections()
        else:
            collections = [client.get_collection(name, embedding_function=None)]
        collections = [collection for collection in collections if collection.count()]
        self.collections = sorted(collections, key=lambda collection: str(collection.name))
        self.counts = [int(collection.count()) for collection in self.collections]
        if len(self.collections) > 1:
            self._check_widths()
            examples = some_of((collection.name for collection in self.collections), most=3)
            log(f"index: {len(self.collections)} collections of {self.address} are read together: {examples}")
        names = [_DOCUMENT, "embedding", *self._metadata_names()]
        self.columns = find_columns(names, {"text": _DOCUMENT, **self.choices}, self.address.text)
        check_names(self.where, names, self.address.text)
        self.spaces = {_space(collection) for collection in self.collections}

    @property
    def metric(self) -> str | None:
        """The space of the collections; None where they differ."""
        return next(iter(self.spaces)) if len(self.spaces) == 1 else None

    def version(self) -> str | None:
        """Of a folder the content of its files is in the name of the copy; a server tells nothing."""
        return None if self.address.path is None and self.address.parts.hostname else "file"

    def count(self) -> int:
        """Rows of all collections."""
        if not self.where:
            return sum(self.counts)
        return sum(meets(self.where, metadata or {}) for metadata in self._metadata())

    def values(self, name: str) -> Iterator[Any]:
        """Values of a key of the metadata."""
        for metadata in self._metadata():
            yield (metadata or {}).get(name)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on, collection by collection."""
        for first, name, rows in self._pages(int(after or 0), ["embeddings", "documents", "metadatas"]):
            ids = rows["ids"]
            if len(self.collections) > 1:
                ids = [f"{name}/{row}" for row in ids]
            payloads = []
            for document, metadata in zip(rows["documents"], rows["metadatas"], strict=True):
                payloads.append({**(metadata or {}), _DOCUMENT: document})
            vectors = rows["embeddings"]
            end = first + len(ids)
            if self.where:
                chosen = [row for row, payload in enumerate(payloads) if meets(self.where, payload)]
                ids = [ids[row] for row in chosen]
                payloads = [payloads[row] for row in chosen]
                vectors = vectors[chosen]
            if len(ids):
                yield read_payloads(ids, payloads, vectors, self.columns, end, self.address.text)

    def _pages(self, start: int, include: list[str]) -> Iterator[tuple[int, str, Any]]:
        """Rows from number `start` on with what is included, the number of the first, and its collection's name."""
        first = 0
        for collection, count in zip(self.collections, self.counts, strict=True):
            for offset in range(max(0, start - first), count, self.rows_at_once):
                rows = collection.get(limit=self.rows_at_once, offset=offset, include=include)
                yield first + offset, str(collection.name), rows
            first += count

    def _metadata_names(self) -> list[str]:
        names: dict[str, None] = {}
        for metadata in self._metadata():
            names.update(dict.fromkeys(metadata or ()))
        return list(names)

    def _metadata(self) -> Iterator[Any]:
        """The metadata of all rows; None of a row without any."""
        for _, _, rows in self._pages(0, ["metadatas"]):
            yield from rows["metadatas"]

    def _check_widths(self) -> None:
        """DistilvecError where the collections' vectors differ in width."""
        names: dict[int, list[str]] = {}
        for collection in self.collections:
            vectors = collection.get(limit=1, include=["embeddings"])["embeddings"]
            names.setdefault(len(vectors[0]), []).append(str(collection.name))
        if len(names) > 1:
            widths = ", ".join(f"{width} of {some_of(names[width])}" for width in sorted(names))
            problem = f"{self.address} has collections of vectors of different widths: {widths}."
            raise DistilvecError(problem, "Name one of them: chroma:///FOLDER/COLLECTION.")

    def _folder_client(self, folder: Path) -> Any:
        """A client of a copy of the folder, without telemetry."""
        import chromadb

        if not (folder / DATABASE).is_file():  # the client would make an empty one
            problem = f"{folder} is not a folder of Chroma 0.4 or newer: it has no {DATABASE}."
            raise DistilvecError(problem, "Check the path. An older folder is migrated with chroma-migrate.")
        files = self.files(self.address)
        size = sum(path.stat().st_size for path in files)
        remove_scratch(user_cache())
        copy = scratch(user_cache() / "chroma")
        copy.mkdir(parents=True)
        self.opened.callback(remove, copy)
        free = shutil.disk_usage(copy).free
        log(
            f"index: {folder} is copied first ({size / 1e6:,.1f} MB; {free / 1e6:,.0f} MB are free in {copy.parent}), "
            "since Chroma's client writes into the folder that it opens"
        )
        with about("cache.root", copy), disk_space_needed(copy, size, "The folder is as it was."):
            for path in files:
                target = copy / path.relative_to(folder)
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
        settings = chromadb.Settings(anonymized_telemetry=False)
        client = chromadb.PersistentClient(str(copy), settings, **self._database())
        self.opened.callback(client.close)
        return client

    def _server_client(self) -> Any:
        import chromadb

        host = str(self.address.parts.hostname)
        token = os.environ.get("CHROMA_API_KEY")
        headers = {"Authorization": f"Bearer {token}", "X-Chroma-Token": token} if token else None
        has_tls = self.address.parts.port == 443 or (token is not None and not is_this_machine(host))
        client = chromadb.HttpClient(
            host,
            self.address.parts.port or 8000,
            ssl=has_tls,
            headers=headers,
            settings=chromadb.Settings(anonymized_telemetry=False),
            **self._database(),
        )
        self.opened.callback(client.close)
        return client

    def _database(self) -> dict[str, str]:
        """The tenant and the database that the address names."""
        settings = dict(parse_qsl(self.address.parts.query)) if self.address.path is None else {}
        unknown = sorted(settings.keys() - {"tenant", "database"})
        if unknown:
            raise DistilvecError(f"Chroma has no setting {unknown[0]}.", "Give only tenant and database.")
        return settings


def _folder_and_collection(address: Address) -> tuple[Path | None, str | None]:
    """The folder, None for a server, and the name of one of its collections, None for all."""
    if address.path is not None:
        return (address.path.parent if address.path.name == DATABASE else address.path), None
    path = Path(unquote(address.parts.path))
    if address.parts.hostname:
        return None, path.name
    return (path, None) if (path / DATABASE).is_file() else (path.parent, path.name)


def _space(collection: Any) -> str:
    """How a collection compares vectors, by a search: metadata and configuration state it, each in some versions alone.

    The client gives a configuration of "l2" for folders of versions before 1.0, and searches them by the space that
    their metadata had.
    """
    vector = np.asarray(collection.get(limit=1, include=["embeddings"])["embeddings"][0])
    query = 2 * np.roll(vector, 1) + 0.1  # of another direction and length than any that is stored
    hits = collection.query([query], n_results=1, include=["embeddings", "distances"])
    hit = np.asarray(hits["embeddings"][0][0])
    lengths = np.linalg.norm(query) * np.linalg.norm(hit)
    distances = {
        "l2": float(np.sum((query - hit) ** 2)),
        "cosine": 1 - float(query @ hit) / max(float(lengths), 1e-30),
        "ip": 1 - float(query @ hit),
    }
    distance = float(hits["distances"][0][0])
    return min(distances, key=lambda space: abs(distances[space] - distance))


def _is_uuid(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True
