"""A table of LanceDB: its folder FOLDER/TABLE.lance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distilvec.core.arrow import column_of, field_names, top_column
from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import Where, arrow_values, check_names
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_arrow

_ROW = "_rowid"  # LanceDB's own number of a row, which goes on after a deletion


class LanceTable(Reader):
    """A table of an embedded LanceDB; the cursor counts rows of the version that is current."""

    default_metric = "l2"
    takes_where = True
    opens_at_once = True

    def open(self) -> None:
        """Open the table, and find its columns."""
        import lancedb

        if not self.path.is_dir():  # LanceDB would make the folder
            raise DistilvecError(f"no LanceDB table at {self.path}.", "Give FOLDER/TABLE.lance.")
        self.table = lancedb.connect(self.path.parent).open_table(self.path.stem)
        names = field_names(self.table.schema)
        self.columns = find_columns(names, self.choices, str(self.path))
        check_names(self.where, names, str(self.path))
        self.condition = _condition(self.where, self.table.schema)

    @property
    def metric(self) -> str | None:
        """The distance of the vectors' index, by which every search goes; a table without an index states none."""
        for index in self.table.list_indices():
            if self.columns["embedding"] in index.columns:
                statistics = self.table.index_stats(index.name)
                if statistics is not None and statistics.distance_type:
                    return str(statistics.distance_type)
        return None

    def count(self) -> int:
        """Rows of the table."""
        return int(self.table.count_rows(self.condition))

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on, in the order of the table."""
        names = list(dict.fromkeys([*self.columns.values(), _ROW]))
        first = int(after or 0)
        rows = self.count()
        search = self.table.search() if self.condition is None else self.table.search().where(self.condition)
        is_numbered = self.condition is not None and "id" not in self.columns
        all_rows = self._all_rows() if is_numbered else np.empty(0, dtype=np.uint64)
        order = np.argsort(all_rows)
        while first < rows:
            table = search.select(names).limit(self.rows_at_once).offset(first).to_arrow().combine_chunks()
            if not table.num_rows:  # rows were deleted meanwhile
                return
            for batch in table.to_batches():
                end = first + batch.num_rows
                numbers: Sequence[int] = range(first, end)
                if is_numbered:
                    numbers = order[np.searchsorted(all_rows, batch.column(_ROW), sorter=order)].tolist()
                yield read_arrow(batch, self.columns, numbers, end, str(self.path))
                first = end

    def _all_rows(self) -> npt.NDArray[np.uint64]:
        """LanceDB's numbers of all rows, in the order of the table."""
        rows: npt.NDArray[np.uint64] = self.table.search().select([_ROW]).limit(None).to_arrow().column(_ROW).to_numpy()
        return rows

    def values(self, name: str) -> Iterator[Any]:
        """Values of a column."""
        top = top_column(name, self.table.schema.names)
        for batch in self.table.search().select([top]).limit(None).to_arrow().to_batches():
            yield from column_of(batch, name).to_pylist()


def _condition(where: Where, schema: pa.Schema) -> str | None:
    """The conditions in LanceDB's SQL; None where there are none."""
    conditions = []
    for name, allowed in where.items():
        top = top_column(name, schema.names)
        fields = [top] if name == top else [top, *name[len(top) + 1 :].split(".")]
        kind = schema.field(top).type
        for field in fields[1:]:
            kind = kind.field(field).type
        column = ".".join(f"`{field}`" for field in fields)
        either = [f"{column} = {_literal(value)}" for value in arrow_values(name, allowed, kind)]
        if None in allowed:
            either.append(f"{column} IS NULL")
        conditions.append(f"({' OR '.join(either)})")
    return " AND ".join(conditions) or None


def _literal(value: object) -> str:
    """A value in SQL."""
    if isinstance(value, (bool, int, float)):
        return str(value).lower()
    kind = ""
    if isinstance(value, date):
        kind = "timestamp " if isinstance(value, datetime) else "date "
    return kind + "'" + str(value).replace("'", "''") + "'"
