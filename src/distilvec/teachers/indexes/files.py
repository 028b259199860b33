"""Parquet and Arrow files with columns of texts and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from distilvec.core.errors import DistilvecError, first_line
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.reader import ROWS, Batch, Cursor, Reader, Vectors


class ArrowFiles(Reader):
    """Parquet files (a file or a folder of them) or one Arrow file (.arrow, .feather); the cursor counts rows."""

    def __init__(self, path: Path, columns: Mapping[Part, str] | None, key: str) -> None:
        self.path = path
        self.key = key
        self.paths = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(key, f"no file at {path}.", "Give a file, or a folder of Parquet files.")
        self.is_parquet = self.paths[0].suffix == ".parquet"
        with self._readable():
            names = pq.read_schema(self.paths[0]).names if self.is_parquet else self._open_arrow().schema.names
        self.columns = find_columns(names, columns, str(path), key)

    def count(self) -> int:
        """Rows of all files."""
        with self._readable():
            if self.is_parquet:
                return sum(pq.read_metadata(path).num_rows for path in self.paths)
            file = self._open_arrow()
            return sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        start = int(after or 0)
        first = 0
        with self._readable():
            for batch in self._record_batches():
                end = first + batch.num_rows
                if start < end:
                    skip = max(0, start - first)
                    yield record_batch(batch.slice(skip), self.columns, first + skip, end)
                first = end

    def _open_arrow(self) -> pa.RecordBatchFileReader:
        return pyarrow.ipc.open_file(pa.memory_map(str(self.path)))

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(self.columns.values()))
        if self.is_parquet:
            for path in self.paths:
                # without a buffer and with pre_buffer all of the file comes into memory
                file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
                yield from file.iter_batches(batch_size=ROWS, columns=names)
            return
        file = self._open_arrow()
        for number in range(file.num_record_batches):
            batch = file.get_batch(number).select(names)
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, UnicodeError) as error:
            problem = f"cannot be read: {first_line(error)}. Give whole Parquet or Arrow files"
            raise DistilvecError(self.key, f"{self.path} {problem}.") from None


def record_batch(batch: pa.RecordBatch, columns: Mapping[Part, str], first: int, after: Cursor) -> Batch:
    """A batch of Arrow columns; rows without an id are numbered from `first`."""
    texts = [text if text is None else str(text) for text in batch.column(columns["text"]).to_pylist()]
    ids = batch.column(columns["id"]).to_pylist() if "id" in columns else range(first, first + len(texts))
    return Batch([str(name) for name in ids], texts, _vectors(batch.column(columns["embedding"])), after)


def _vectors(column: pa.Array) -> Vectors | list[list[float] | None]:
    """float32 [rows, dim] of lists of one length; a list of lists where one is missing or another length occurs."""
    values = column.flatten()
    rows = len(column)
    if column.null_count or values.null_count or not rows or len(values) % rows:
        return column.to_pylist()
    if not pa.types.is_floating(values.type):
        return column.to_pylist()
    if not pa.types.is_fixed_size_list(column.type) and len(column.value_lengths().unique()) > 1:
        return column.to_pylist()
    return values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, -1)
