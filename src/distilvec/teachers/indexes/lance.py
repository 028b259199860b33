"""A table of LanceDB: its folder FOLDER/TABLE.lance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.files import field_names, record_batch
from distilvec.teachers.indexes.reader import ROWS, Batch, Cursor, Reader


class LanceTable(Reader):
    """A table of an embedded LanceDB; the cursor counts rows of the version that is current."""

    def __init__(self, path: Path, columns: Mapping[Part, str] | None, key: str) -> None:
        require_extra("lancedb", key)
        import lancedb

        self.path = path
        self.key = key
        if not path.is_dir():
            raise DistilvecError(f"no LanceDB table at {path}.", "Give FOLDER/TABLE.lance.", key=key)
        try:
            self.table = lancedb.connect(path.parent).open_table(path.stem)
        except (ValueError, RuntimeError, OSError) as error:
            raise DistilvecError(f"{path} is not a LanceDB table: {first_line(error)}.", key=key) from None
        self.columns = find_columns(field_names(self.table.schema), columns, str(path), key)

    @property
    def metric(self) -> str | None:
        """The distance of the vectors' index; a table without one states none, since each search names its own."""
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
        try:
            while first < rows:
                table = self.table.search().select(names).limit(ROWS).offset(first).to_arrow().combine_chunks()
                if not table.num_rows:  # rows were deleted meanwhile
                    return
                for batch in table.to_batches():
                    end = first + batch.num_rows
                    yield record_batch(batch, self.columns, first, end, str(self.path), self.key)
                    first = end
        except (ValueError, RuntimeError, OSError) as error:
            raise DistilvecError(f"{self.path} cannot be read: {first_line(error)}.", key=self.key) from None
