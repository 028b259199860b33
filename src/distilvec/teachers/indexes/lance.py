"""A table of LanceDB: its folder FOLDER/TABLE.lance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.extras import require_extra
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.files import record_batch
from distilvec.teachers.indexes.reader import ROWS, Batch, Reader


class LanceTable(Reader):
    """A table of an embedded LanceDB; the cursor counts rows of the version that is current."""

    def __init__(self, path: Path, columns: Mapping[Any, str] | None, key: str) -> None:
        require_extra("lancedb", key)
        import lancedb

        if not path.is_dir():
            raise DistilvecError(key, f"no LanceDB table at {path}.", "Give FOLDER/TABLE.lance.")
        try:
            self.table = lancedb.connect(path.parent).open_table(path.stem)
        except (ValueError, RuntimeError, OSError) as error:
            raise DistilvecError(key, f"{path} is no LanceDB table: {first_line(error)}.") from None
        self.columns = find_columns(self.table.schema.names, columns, str(path), key)

    @property
    def metric(self) -> str | None:
        """The distance of the vectors' index; a table without one states none, since each search names its own."""
        for index in self.table.list_indices():
            about = self.table.index_stats(index.name)
            if self.columns["embedding"] in index.columns and about is not None and about.distance_type:
                return str(about.distance_type)
        return None

    def count(self) -> int:
        """Rows of the table."""
        return int(self.table.count_rows())

    def batches(self, after: Any) -> Iterator[Batch]:
        """Rows from number `after` on, in the order of the table."""
        names, first, rows = list(dict.fromkeys(self.columns.values())), int(after or 0), self.count()
        while first < rows:
            found = self.table.search().select(names).limit(ROWS).offset(first).to_arrow().combine_chunks()
            for batch in found.to_batches():
                yield record_batch(batch, self.columns, first, first + batch.num_rows)
                first += batch.num_rows
            if not found.num_rows:
                return
