"""A table of LanceDB: its folder FOLDER/TABLE.lance."""

from __future__ import annotations

from collections.abc import Iterator

from distilvec.core.arrow import field_names
from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, read_arrow


class LanceTable(Reader):
    """A table of an embedded LanceDB; the cursor counts rows of the version that is current."""

    default_metric = "l2"

    def open(self) -> None:
        """Open the table, and find its columns."""
        import lancedb

        if not self.path.is_dir():  # LanceDB would make the folder
            raise DistilvecError(f"no LanceDB table at {self.path}.", "Give FOLDER/TABLE.lance.")
        self.table = lancedb.connect(self.path.parent).open_table(self.path.stem)
        self.columns = find_columns(field_names(self.table.schema), self.choices, str(self.path))

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
        return int(self.table.count_rows())

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on, in the order of the table."""
        names = list(dict.fromkeys(self.columns.values()))
        first = int(after or 0)
        rows = self.count()
        while first < rows:
            table = self.table.search().select(names).limit(self.rows_at_once).offset(first).to_arrow().combine_chunks()
            if not table.num_rows:  # rows were deleted meanwhile
                return
            for batch in table.to_batches():
                end = first + batch.num_rows
                yield read_arrow(batch, self.columns, first, end, str(self.path))
                first = end
