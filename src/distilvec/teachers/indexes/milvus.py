"""A collection of Milvus Lite 3: milvus:///FOLDER/FILE.db/COLLECTION, where FILE.db is a folder of Parquet files.

Its files hold deleted and overwritten rows as well. As the store does, a row counts if no other row with its key, and
no deletion of the key, has a higher number in `_seq`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from distilvec.core.addresses import Address
from distilvec.core.arrow import open_parquet
from distilvec.core.errors import DistilvecError
from distilvec.core.files import files_below
from distilvec.data.readers import names_of
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_payloads

_FORMAT = 2  # of manifest.json and schema.json
_NUMBER = "_seq"
_DYNAMIC = "$meta"  # JSON of the fields that the schema does not have


class MilvusCollection(Reader):
    """The rows of a collection or an alias, in the order of its files; the cursor counts them."""

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """All files of the collection."""
        folder = _collection_folder(address)
        return files_below(folder) if folder.is_dir() else []

    def open(self) -> None:
        """Read the manifest, find the rows that count, and the columns of all rows."""
        folder = _collection_folder(self.address)
        if folder.parents[1].is_file():
            problem = f"{folder.parents[1]} is not a folder: Milvus Lite before version 3 wrote it."
            raise DistilvecError(problem, "Write its rows to Parquet with the pymilvus and milvus-lite that made it.")
        if not folder.is_dir():
            there = sorted(path.name for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
            problem = f"no collection of Milvus Lite at {folder}; there are {', '.join(there) or 'none'}."
            raise DistilvecError(problem, "Name one: milvus:///FOLDER/FILE.db/COLLECTION.")
        self.manifest = json.loads((folder / "manifest.json").read_bytes())
        schema = json.loads((folder / "schema.json").read_bytes())
        formats = {self.manifest["manifest_format_version"], schema["schema_format_version"]}
        if formats != {_FORMAT}:
            problem = f"{folder} has format {max(formats)} of Milvus Lite; format {_FORMAT} is read."
            raise DistilvecError(problem, "Write its rows to Parquet.")
        if (folder / "wal").is_dir() and any((folder / "wal").iterdir()):
            problem = f"{folder} has rows that are not in its files yet."
            raise DistilvecError(problem, "Close the client that has it open, or open and close it once.")
        fields = schema["fields"]
        self.key = next(field["name"] for field in fields if field["is_primary"])
        self.paths: dict[str, list[Path]] = {"data_files": [], "delta_files": []}
        for name, partition in self.manifest["partitions"].items():
            for kind, paths in self.paths.items():
                paths += [folder / "partitions" / name / path for path in partition[kind]]
        self.last_numbers = self._last_numbers()
        vectors = [field["name"] for field in fields if field["dtype"] == "float_vector"]
        choices = {"id": self.key, **self.choices}
        if len(vectors) == 1:
            choices.setdefault("embedding", vectors[0])
        self.columns = find_columns(self._names([field["name"] for field in fields]), choices, self.address.text)

    @property
    def metric(self) -> str | None:
        """The metric of the index on the vectors."""
        index = self.manifest["index_specs"].get(self.columns["embedding"])
        return None if index is None else str(index["metric_type"])

    def count(self) -> int:
        """Rows that count."""
        return sum(len(batch) for batch in self._rows([self.key]))

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        skip = int(after or 0)
        end = 0
        vectors = self.columns["embedding"]
        for batch in self._rows(None):
            start = end
            end += len(batch)
            if end <= skip:
                continue
            batch = batch.slice(max(0, skip - start))
            payloads = [_payload(row) for row in batch.drop_columns([vectors]).to_pylist()]
            stored = batch.column(vectors).to_pylist()
            yield read_payloads(range(start, end), payloads, stored, self.columns, end, self.address.text)

    def _rows(self, names: list[str] | None) -> Iterator[pa.RecordBatch]:
        """The rows that count, with some columns or all."""
        columns = None if names is None else [*names, _NUMBER]
        for path in self.paths["data_files"]:
            for batch in open_parquet(path).iter_batches(batch_size=self.rows_at_once, columns=columns):
                pairs = zip(batch.column(self.key).to_pylist(), batch.column(_NUMBER).to_pylist(), strict=True)
                counts = [self.last_numbers[key] == number for key, number in pairs]
                yield batch.filter(pa.array(counts, pa.bool_()))

    def _last_numbers(self) -> dict[int | str, int]:
        """The highest number of each key, of its rows and its deletions."""
        numbers: dict[int | str, int] = {}
        for path in [*self.paths["data_files"], *self.paths["delta_files"]]:
            for batch in open_parquet(path).iter_batches(columns=[self.key, _NUMBER]):
                pairs = zip(batch.column(self.key).to_pylist(), batch.column(_NUMBER).to_pylist(), strict=True)
                for key, number in pairs:
                    numbers[key] = max(number, numbers.get(key, -1))
        return numbers

    def _names(self, fields: list[str]) -> list[str]:
        """Names of the fields of the schema, and of those that rows have beside them."""
        names = dict.fromkeys(name for name in fields if name != _DYNAMIC)
        has_dynamic = any(_DYNAMIC in open_parquet(path).schema_arrow.names for path in self.paths["data_files"])
        for batch in self._rows([self.key, _DYNAMIC]) if has_dynamic else ():
            for row in batch.select([_DYNAMIC]).to_pylist():
                names.update(dict.fromkeys(names_of(_payload(row))))
        return list(names)


def _collection_folder(address: Address) -> Path:
    folder, _, name = unquote(address.parts.path).rpartition("/")
    aliases = Path(folder) / "aliases.json"
    if aliases.is_file():
        name = json.loads(aliases.read_bytes()).get(name, name)
    return Path(folder) / "collections" / name


def _payload(row: dict[str, Any]) -> dict[str, Any]:
    """A row's fields, those beside the schema among them."""
    dynamic = row.pop(_DYNAMIC, None)
    return {**(json.loads(dynamic) if dynamic else {}), **row}
