"""A folder that LlamaIndex has persisted: vectors in default__vector_store.json, nodes in docstore.json.

The vectors are of a node's metadata and text together, so the text of a row is what LlamaIndex embedded: it is made of
the node's own templates, as `get_content(MetadataMode.EMBED)` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader

VECTORS = "default__vector_store.json"
_NODES = "docstore.json"


class LlamaIndexFolder(Reader):
    """The nodes that have a vector, in the order of the vectors; the cursor counts them. The origin is the document."""

    default_metric = "cosine"  # of LlamaIndex's own search

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The file of the vectors and that of the nodes."""
        folder = Path(address.text)
        if folder.name == VECTORS:
            folder = folder.parent
        return [path for path in (folder / VECTORS, folder / _NODES) if path.is_file()]

    def open(self) -> None:
        """Read both files."""
        paths = self.files(self.address)
        if len(paths) < 2:
            problem = f"{self.path} has no {_NODES}, which holds the texts of its vectors."
            raise DistilvecError(problem, "Persist the index with its docstore.")
        self.vectors: dict[str, list[float]] = json.loads(paths[0].read_bytes())["embedding_dict"]
        docstore = json.loads(paths[1].read_bytes())
        self.nodes: dict[str, Any] = docstore.get("docstore/data", {})
        self.documents: dict[str, Any] = docstore.get("docstore/metadata", {})
        self.columns = find_columns(["text", "embedding", "id"], self.choices, self.address.text)

    def count(self) -> int:
        """Vectors of the index."""
        return len(self.vectors)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        ids = list(self.vectors)
        for start in range(int(after or 0), len(ids), self.rows_at_once):
            rows = ids[start : start + self.rows_at_once]
            texts = [self._embedded_text(row) for row in rows]
            origins = [self.documents.get(row, {}).get("ref_doc_id") for row in rows]
            yield Batch(rows, texts, [self.vectors[row] for row in rows], start + len(rows), origins=origins)

    def _embedded_text(self, row: str) -> str | None:
        """The text that was embedded for a node; None for one that the docstore does not have."""
        if row not in self.nodes:
            return None
        node = self.nodes[row]["__data__"]
        if "text" not in node:
            problem = f"{self.address}: the node {row} is a {node.get('class_name', 'node')}, not one of text."
            raise DistilvecError(problem, "Write the texts that were embedded and their vectors to Parquet.")
        excluded = node["excluded_embed_metadata_keys"]
        lines = []
        for key, value in node["metadata"].items():
            if key not in excluded:
                lines.append(self._filled(row, node["metadata_template"], {"key": key, "value": str(value)}))
        separator = node.get("metadata_separator", node.get("metadata_seperator", "\n"))  # the package's own spelling
        metadata = str(separator).join(lines).strip()
        if not metadata:
            return str(node["text"])
        words = {"content": node["text"], "metadata_str": metadata}
        return self._filled(row, node["text_template"], words).strip()

    def _filled(self, row: str, template: str, words: Mapping[str, str]) -> str:
        """A template with its words. Only plain names are filled in: others could reach into values, or be huge."""
        pieces = re.split(r"\{(\w+)\}", template)
        plain = "".join(pieces[::2])
        if "{" in plain or "}" in plain or not set(pieces[1::2]) <= set(words):
            problem = f"{self.address}: the node {row} has the template {template!r}, of which no text can be made."
            raise DistilvecError(problem, "Write the texts that were embedded and their vectors to Parquet.")
        return "".join(words[piece] if number % 2 else piece for number, piece in enumerate(pieces))
