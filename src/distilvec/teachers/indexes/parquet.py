"""Parquet files with columns of texts and vectors: a file, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from distilvec.core.addresses import Address
from distilvec.core.arrow import are_plain, field_names, open_parquet
from distilvec.core.errors import DistilvecError
from distilvec.core.files import is_parquet, table_files
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_arrow, regular_file, rows_after
from distilvec.teachers.indexes.stores import nothing_to_read


class ParquetFiles(Reader):
    """The rows of all files; the cursor counts them."""

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The file, or those of a folder."""
        path = Path(address.text)
        return table_files(path, is_parquet) if path.is_dir() else [regular_file(path)]

    def open(self) -> None:
        """Find the columns of the first file."""
        self.paths = self.files(self.address)
        if not self.paths and self.path.is_dir():
            raise nothing_to_read(self.path)
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(f"no file at {self.path}.", "Give a file, or a folder of Parquet files.")
        self.columns = find_columns(field_names(pq.read_schema(self.paths[0])), self.choices, str(self.path))

    def count(self) -> int:
        """Rows of all files."""
        return sum(pq.read_metadata(path).num_rows for path in self.paths)

    def is_plain(self) -> bool:
        """Whether all files have strings and lists of floats, in columns that are not nested."""
        for path in self.paths:
            schema = pq.read_schema(path)
            if not set(self.columns.values()) <= set(schema.names):
                return False
            if not are_plain(schema.field(self.columns["text"]).type, schema.field(self.columns["embedding"]).type):
                return False
        return True

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for first, batch in rows_after(self._record_batches(), after):
            yield read_arrow(batch, self.columns, first, first + batch.num_rows, str(self.path))

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(self.columns.values()))
        for path in self.paths:
            yield from open_parquet(path).iter_batches(batch_size=self.rows_at_once, columns=names)
