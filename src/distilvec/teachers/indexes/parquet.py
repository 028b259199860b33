"""Parquet files with columns of texts and vectors: a file, or a folder of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
            return sum(dataset(path).count_rows(filter=self._condition(path)) for path in self.paths)
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
        for first, batch in rows_after(self._record_batches(), after):
            yield read_arrow(batch, self.columns, first, first + batch.num_rows, str(self.path))

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(self.columns.values()))
        for path in self.paths:
            if not self.where:
                yield from _whole_batches(path, self.rows_at_once, names)
                continue
            columns = dict.fromkeys(top_column(name, pq.read_schema(path).names) for name in names)
            filtered = dataset(path).scanner(
                list(columns),
                filter=self._condition(path),
                batch_size=self.rows_at_once,
                batch_readahead=1,
                fragment_readahead=1,
            )
            yield from (batch for batch in filtered.to_batches() if batch.num_rows)

    def values(self, name: str) -> Iterator[Any]:
        """Values of a column."""
        for path in self.paths:
            for batch in open_parquet(path).iter_batches(columns=[name]):
                yield from column_of(batch, name).to_pylist()

    def _condition(self, path: Path) -> pc.Expression | None:
        return arrow_condition(self.where, pq.read_schema(path))


def _whole_batches(path: Path, rows: int, names: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows of a file. Vectors of a fixed length, one of them missing, may not be read by Arrow, as DuckDB writes
    them, or by versions of Arrow before 26.
    """
    try:
        yield from open_parquet(path).iter_batches(batch_size=rows, columns=names)
    except pa.ArrowInvalid as error:
        fix = "If a vector is missing in a column of arrays (FLOAT[n]), write it as a list: embedding::FLOAT[]."
        raise DistilvecError(f"Arrow cannot read {path}: {first_line(error)}.", fix) from error
