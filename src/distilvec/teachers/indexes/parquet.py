"""Parquet files with columns of texts and vectors: a file, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.dataset import dataset

from distilvec.core.addresses import Address
from distilvec.core.arrow import are_plain, column_of, field_names, open_parquet, top_column
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import is_parquet, table_files
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import arrow_condition, check_names
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_arrow, regular_file, rows_after
from distilvec.teachers.indexes.stores import nothing_to_read


class ParquetFiles(Reader):
    """The rows of all files; the cursor counts them."""

    takes_where = True
    opens_at_once = True

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The file, or those of a folder."""
        path = Path(address.text)
        return table_files(path, is_parquet) if path.is_dir() else [regular_file(path)]

    def open(self) -> None:
        """Find the columns of the first file."""
        self.paths = self.files(self.address)
        if not self.paths:
            raise nothing_to_read(self.path)
        names = field_names(pq.read_schema(self.paths[0]))
        self.columns = find_columns(names, self.choices, str(self.path))
        check_names(self.where, names, str(self.path))

    def count(self) -> int:
        """Rows of all files."""
        if self.where:
            schemas = [(path, pq.read_schema(path)) for path in self.paths]
            return sum(dataset(path).count_rows(filter=arrow_condition(self.where, schema)) for path, schema in schemas)
        return sum(pq.read_metadata(path).num_rows for path in self.paths)

    def is_plain(self) -> bool:
        """Whether all files have strings and lists of floats, in columns that are not nested, and all rows are read."""
        if self.where:
            return False
        for path in self.paths:
            schema = pq.read_schema(path)
            if not set(self.columns.values()) <= set(schema.names):
                return False
            if not are_plain(schema.field(self.columns["text"]).type, schema.field(self.columns["embedding"]).type):
                return False
        return True

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for rows in rows_after(self._whole_batches(), after, self.where):
            yield read_arrow(rows.batch, self.columns, rows.numbers, rows.end, str(self.path))

    def _whole_batches(self) -> Iterator[pa.RecordBatch]:
        for path in self.paths:
            top_names = pq.read_schema(path).names
            conditions = [top_column(name, top_names) for name in self.where]
            names = list(dict.fromkeys([*self.columns.values(), *conditions]))
            yield from _batches_of_file(path, self.rows_at_once, names)

    def values(self, name: str) -> Iterator[Any]:
        """Values of a column."""
        for path in self.paths:
            for batch in open_parquet(path).iter_batches(columns=[name]):
                yield from column_of(batch, name).to_pylist()


def _batches_of_file(path: Path, rows: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows of a file. Vectors of a fixed length, one of them missing, may not be read by Arrow, as DuckDB writes
    them, or by versions of Arrow before 26.
    """
    try:
        yield from open_parquet(path).iter_batches(batch_size=rows, columns=names)
    except pa.ArrowInvalid as error:
        fix = "If a vector is missing in a column of arrays (FLOAT[n]), write it as a list: embedding::FLOAT[]."
        raise DistilvecError(f"Arrow cannot read {path}: {first_line(error)}.", fix) from error
