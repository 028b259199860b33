"""Parquet and Arrow files with columns of texts and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from distilvec.core.errors import DistilvecError, first_line
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import ROWS, Batch, Reader


class ArrowFiles(Reader):
    """Parquet files (a file or a folder of them) or one Arrow file (.arrow, .feather); the cursor counts rows."""

    def __init__(self, path: Path, columns: Mapping[Any, str] | None, key: str) -> None:
        self.path, self.key = path, key
        self.paths = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(key, f"no file at {path}.", "Give a file, or a folder of Parquet files.")
        with self._readable():
            names = pq.read_schema(self.paths[0]).names if self._parquet else self._arrow().schema.names
        self.columns = find_columns(names, columns, str(path), key)

    def count(self) -> int:
        """Rows of all files."""
        with self._readable():
            if self._parquet:
                return sum(pq.read_metadata(path).num_rows for path in self.paths)
            file = self._arrow()
            return sum(file.get_batch(number).num_rows for number in range(file.num_record_batches))

    def batches(self, after: Any) -> Iterator[Batch]:
        """Rows from number `after` on."""
        first = 0
        with self._readable():
            for batch in self._record_batches():
                end, skip = first + batch.num_rows, max(0, int(after or 0) - first)
                if skip < batch.num_rows:
                    yield record_batch(batch.slice(skip), self.columns, first + skip, end)
                first = end

    @property
    def _parquet(self) -> bool:
        return self.paths[0].suffix == ".parquet"

    def _arrow(self) -> Any:
        return pyarrow.ipc.open_file(pa.memory_map(str(self.path)))

    def _record_batches(self) -> Iterator[Any]:
        names = list(dict.fromkeys(self.columns.values()))
        for path in self.paths if self._parquet else ():
            file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
            yield from file.iter_batches(batch_size=ROWS, columns=names)
        if not self._parquet:
            file = self._arrow()
            for number in range(file.num_record_batches):
                whole = file.get_batch(number).select(names)
                for start in range(0, whole.num_rows, ROWS):
                    yield whole.slice(start, ROWS)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, UnicodeError) as error:
            problem = f"cannot be read: {first_line(error)}. Give whole Parquet or Arrow files"
            raise DistilvecError(self.key, f"{self.path} {problem}.") from None


def record_batch(batch: Any, columns: Mapping[str, str], first: int, after: Any) -> Batch:
    """A batch of Arrow columns; rows without an id are numbered from `first`."""
    texts = [text if text is None else str(text) for text in batch.column(columns["text"]).to_pylist()]
    ids = batch.column(columns["id"]).to_pylist() if "id" in columns else range(first, first + len(texts))
    return Batch([str(one) for one in ids], texts, _vectors(batch.column(columns["embedding"])), after)


def _vectors(column: Any) -> Any:
    """float32 [rows, dim] of lists of one length; a list of lists otherwise."""
    flat = column.flatten()
    rows = len(column)
    if column.null_count or flat.null_count or not rows or len(flat) % rows or not pa.types.is_floating(flat.type):
        return column.to_pylist()
    if not pa.types.is_fixed_size_list(column.type) and len(set(column.value_lengths().to_pylist())) > 1:
        return column.to_pylist()
    return flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, -1)
