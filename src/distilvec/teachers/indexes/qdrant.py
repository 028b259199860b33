"""A collection of Qdrant: of a server, qdrant://HOST:PORT/COLLECTION, or embedded, qdrant:///FOLDER/COLLECTION."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from distilvec.core.errors import ColumnError, DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.teachers.cache.columns import USUAL_NAMES, Part, find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader

_POINTS = 1024  # in one answer of the server


class QdrantCollection(Reader):
    """A collection: texts in the payload, `columns.embedding` for one of several named vectors.

    The cursor is Qdrant's own, the id of the next point. QDRANT_API_KEY is the key of a server, with HTTPS.
    """

    def __init__(self, address: str, columns: Mapping[Part, str] | None, key: str) -> None:
        require_extra("qdrant", key)
        from qdrant_client import QdrantClient

        parts = urlsplit(address)
        folder, _, self.collection = unquote(parts.path).rpartition("/")
        self.address = address
        self.key = key
        self.columns = dict(columns or {})
        try:
            if parts.hostname:
                api_key = os.environ.get("QDRANT_API_KEY")
                self.client = QdrantClient(host=parts.hostname, port=parts.port or 6333, api_key=api_key, timeout=60)
            elif not (Path(folder) / "meta.json").is_file():
                raise DistilvecError(key, f"{folder} is not the folder of an embedded Qdrant.", "Check the path.")
            else:
                self.client = QdrantClient(path=folder)
        except DistilvecError:
            raise
        except Exception as error:  # the client raises those of httpx, gRPC and its own
            raise self._unreadable(error) from None
        with ExitStack() as failure:  # an open client holds the folder's lock
            failure.callback(self.client.close)
            try:
                collection = self.client.get_collection(self.collection)
            except Exception as error:
                raise self._unreadable(error) from None
            vectors = collection.config.params.vectors
            self.vector = self._vector_name(vectors)
            parameters = vectors if self.vector is None else vectors[self.vector]
            self._metric = str(parameters.distance.value)
            failure.pop_all()

    def __exit__(self, *error: object) -> None:
        self.client.close()

    @property
    def metric(self) -> str:
        """The distance of the collection's vector."""
        return self._metric

    def count(self) -> int:
        """Points of the collection."""
        return int(self.client.count(self.collection, exact=True).count)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Points from the id `after` on, in the order of ids; the last cursor is None."""
        names: dict[Part, str] = {}
        while True:
            try:
                points, after = self.client.scroll(
                    self.collection, limit=_POINTS, offset=after, with_payload=True,
                    with_vectors=True if self.vector is None else [self.vector],
                )  # fmt: skip
            except Exception as error:  # the client raises those of httpx, gRPC and its own
                raise self._unreadable(error) from None
            if not points:
                return
            names = names or self._payload_names(points)
            ids = []
            texts = []
            vectors = []
            for point in points:
                payload = point.payload or {}
                text = payload.get(names["text"])
                ids.append(str(payload.get(names["id"], point.id) if "id" in names else point.id))
                texts.append(None if text is None else str(text))
                vectors.append(point.vector if self.vector is None else (point.vector or {}).get(self.vector))
            yield Batch(ids, texts, vectors, after)
            if after is None:
                return

    def _unreadable(self, error: Exception) -> DistilvecError:
        return DistilvecError(self.key, f"{self.address} cannot be read: {first_line(error)}.")

    def _vector_name(self, vectors: Any) -> str | None:
        """The name of the vector, None in a collection with a single nameless one."""
        if not isinstance(vectors, dict):
            return None
        name = self.columns.get("embedding")
        if not name:
            usual_names = [usual_name for usual_name in USUAL_NAMES["embedding"] if usual_name in vectors]
            if usual_names:
                name = usual_names[0]
            elif len(vectors) == 1:
                name = next(iter(vectors))
        if name not in vectors:
            raise ColumnError(
                self.key,
                f"{self.address} has the vectors {', '.join(vectors)}.",
                "Name one: teacher.columns='{embedding: NAME}'.",
                "Name one: --column embedding=NAME.",
            )
        return str(name)

    def _payload_names(self, points: list[Any]) -> dict[Part, str]:
        names: dict[str, None] = {}
        for point in points:
            names.update(dict.fromkeys(point.payload or {}))
        choices: dict[Part, str] = {part: name for part, name in self.columns.items() if part != "embedding"}
        return find_columns(list(names), choices, f"the payload of {self.address}", self.key, ("text",))
