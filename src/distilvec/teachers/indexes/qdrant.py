"""A collection of Qdrant: of a server, qdrant://HOST:PORT/COLLECTION, or embedded, qdrant:///FOLDER/COLLECTION."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError
from distilvec.core.files import files_below
from distilvec.data.readers import field_of, names_of
from distilvec.teachers.cache.columns import USUAL_NAMES, Part, find_columns, log_others
from distilvec.teachers.indexes.conditions import Where, as_boolean, as_number, text_of
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_payloads

_POINTS = 1024  # in one answer of the server


class QdrantCollection(Reader):
    """A collection: texts in the payload, `choices["embedding"]` for one of several named vectors.

    A dense vector without a name has the name "", also beside sparse vectors, which are not read.

    The cursor is Qdrant's own, the id of the next point. QDRANT_API_KEY is the key of a server, with HTTPS.
    """

    takes_where = True

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The files of an embedded collection; none of a server."""
        if address.parts.hostname:
            return []
        folder, _, collection = unquote(address.parts.path).rpartition("/")
        description = Path(folder) / "meta.json"
        if not description.is_file():
            return []
        collection = json.loads(description.read_bytes()).get("aliases", {}).get(collection, collection)
        return [description, *files_below(Path(folder) / "collection" / collection)]

    def open(self) -> None:
        """Open the collection, and find its vectors."""
        from qdrant_client import QdrantClient

        parts = self.address.parts
        folder, _, self.collection = unquote(parts.path).rpartition("/")
        if parts.hostname:
            api_key = os.environ.get("QDRANT_API_KEY")
            self.client = QdrantClient(host=parts.hostname, port=parts.port or 6333, api_key=api_key, timeout=60)
        else:
            if not (Path(folder) / "meta.json").is_file():  # the client would make an empty one
                raise DistilvecError(f"{folder} is not the folder of an embedded Qdrant.", "Check the path.")
            self.client = QdrantClient(path=folder)
        self.opened.callback(self.client.close)  # an open client holds the folder's lock
        vectors = self.client.get_collection(self.collection).config.params.vectors
        if not isinstance(vectors, dict):
            vectors = {} if vectors is None else {"": vectors}
        self.vector = self._vector_name(vectors)
        self._metric = str(vectors[self.vector].distance.value)
        self.columns = self._payload_columns()

    @property
    def metric(self) -> str:
        """The distance of the collection's vector."""
        return self._metric

    def version(self) -> str | None:
        """Of an embedded one the content of its files is in the name of the copy; a server tells nothing."""
        return None if self.address.parts.hostname else "file"

    def count(self) -> int:
        """Points of the collection."""
        return int(self.client.count(self.collection, count_filter=_filter(self.where), exact=True).count)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Points from the id `after` on, in the order of ids; the last cursor is None."""
        while True:
            points, after = self._scroll(after, [self.vector])
            if not points:
                return
            ids = [point.id for point in points]
            payloads = [point.payload or {} for point in points]
            vectors = [self._vector_of(point.vector) for point in points]
            yield read_payloads(ids, payloads, vectors, self.columns, after, self.address.text)
            if after is None:
                return

    def values(self, name: str) -> list[Any]:
        """Values of a field in the first points."""
        points, _ = self.client.scroll(self.collection, limit=_POINTS, with_payload=True)
        return [field_of(point.payload or {}, name) for point in points]

    def _scroll(self, after: Cursor, vectors: list[str] | bool) -> tuple[list[Any], Any]:
        """Points from the id `after` on, and the id behind them."""
        points, next_id = self.client.scroll(
            self.collection,
            scroll_filter=_filter(self.where),
            limit=_POINTS,
            offset=after,
            with_payload=True,
            with_vectors=vectors,
        )
        return list(points), next_id

    def _vector_of(self, vectors: Any) -> Any:
        """The vector of a point, which a collection of a single one without a name gives alone."""
        return vectors.get(self.vector) if isinstance(vectors, dict) else vectors

    def _vector_name(self, vectors: dict[str, Any]) -> str:
        """The name of the vector, "" for one without a name; a multivector is refused."""
        dense = [name for name, parameters in vectors.items() if parameters.multivector_config is None]
        name = self.choices.get("embedding")
        if not name:
            usual_names = [usual_name for usual_name in ("", *USUAL_NAMES["embedding"]) if usual_name in dense]
            if usual_names:
                name = usual_names[0]
                log_others("embedding", usual_names, self.address.text)
            elif len(dense) == 1:
                name = dense[0]
        if name not in dense:
            multivectors = [f"{vector} (a multivector)" for vector in vectors if vector not in dense]
            problem = f"{self.address} has the vectors {', '.join([*dense, *multivectors]) or 'none'}."
            fix = "Name one that is dense, as in embedding=NAME, or another collection."
            raise DistilvecError(problem, fix, key="teacher.columns")
        return str(name)

    def _payload_columns(self) -> dict[Part, str]:
        """The columns among the fields of all points, of which each may have others."""
        names: dict[str, None] = {}
        after: Cursor = None
        while True:
            points, after = self._scroll(after, False)
            for point in points:
                names.update(dict.fromkeys(names_of(point.payload or {})))
            if after is None:
                break
        choices: dict[Part, str] = {part: name for part, name in self.choices.items() if part != "embedding"}
        required: tuple[Part, ...] = ("text",) if self.count() else ()
        return find_columns(list(names), choices, f"the payload of {self.address}", required)


def _filter(where: Where) -> Any:
    """The conditions as a filter of Qdrant; None where there are none. A payload has no types: 7 is also "7"."""
    from qdrant_client import models

    conditions: list[Any] = []
    for name, allowed in where.items():
        either: list[Any] = []
        for value in allowed:
            if value is None:
                either.append(models.IsEmptyCondition(is_empty=models.PayloadField(key=name)))
                continue
            either.append(models.FieldCondition(key=name, match=models.MatchValue(value=text_of(value))))
            boolean = as_boolean(value)
            if boolean is not None:
                either.append(models.FieldCondition(key=name, match=models.MatchValue(value=boolean)))
            number = as_number(value)
            if number is not None:
                either.append(models.FieldCondition(key=name, range=models.Range(gte=number, lte=number)))
        conditions.append(models.Filter(should=either))
    return models.Filter(must=conditions) if conditions else None
