"""One Arrow file or stream (.arrow, .feather) with columns of texts and vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from distilvec.core.arrow import column_of, field_names, open_arrow, top_column
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import check_names
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_arrow, rows_after


class ArrowFile(Reader):
    """The rows of a file; the cursor counts them."""

    takes_where = True
    opens_at_once = True

    def open(self) -> None:
        """Find the columns."""
        schema = open_arrow(self.path).schema
        self.columns = find_columns(field_names(schema), self.choices, str(self.path))
        check_names(self.where, field_names(schema), str(self.path))

    def count(self) -> int:
        """Rows of the file."""
        return sum(len(rows.numbers) for rows in rows_after(self._whole_batches(), None, self.where))

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        for rows in rows_after(self._some_rows_at_once(), after, self.where):
            yield read_arrow(rows.batch, self.columns, rows.numbers, rows.end, str(self.path))

    def _some_rows_at_once(self) -> Iterator[pa.RecordBatch]:
        for whole in self._whole_batches():
            read = [*self.columns.values(), *self.where]
            names = dict.fromkeys(top_column(name, whole.schema.names) for name in read)
            batch = whole.select(list(names))
            for start in range(0, batch.num_rows, self.rows_at_once):
                yield batch.slice(start, self.rows_at_once)

    def values(self, name: str) -> Iterator[Any]:
        """Values of a column."""
        for batch in self._whole_batches():
            yield from column_of(batch, name).to_pylist()

    def _whole_batches(self) -> Iterator[pa.RecordBatch]:
        reader = open_arrow(self.path)
        if isinstance(reader, pa.RecordBatchStreamReader):
            yield from reader
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
