"""A table in a file of DuckDB: duckdb:///FOLDER/FILE/TABLE (or SCHEMA.TABLE)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distilvec.core.addresses import Address
from distilvec.core.arrow import field_names, top_column
from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, database_files, quoted, read_arrow, split_address

_ROW = "rowid"  # DuckDB's own number of a row, which stays when others are deleted


class DuckTable(Reader):
    """A table, read by ranges of its rows' numbers; the cursor is the next number.

    The file is opened for reading alone; a write-ahead log beside it counts, and is left as it is. A file does not tell
    the metric of an HNSW index.
    """

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The file and its write-ahead log."""
        return database_files(address, ".wal")

    def open(self) -> None:
        """Open the file, and find the table's columns."""
        import duckdb

        path, name = split_address(self.address)
        self.connection = duckdb.connect(str(path), read_only=True)
        self.opened.callback(self.connection.close)
        self.table = ".".join(quoted(part) for part in name.split(".", 1))
        schema = self.connection.sql(f"SELECT * FROM {self.table} LIMIT 0").to_arrow_table().schema
        if _ROW in schema.names:
            problem = f"{self.address} has a column {_ROW}, which hides DuckDB's own."
            raise DistilvecError(problem, "Rename it.")
        described = self.connection.execute(f"DESCRIBE {self.table}").fetchall()
        json_columns = [column for column, kind, *_ in described if kind == "JSON"]
        names = field_names(schema)
        names += [name for name in self.choices.values() if name.partition(".")[0] in json_columns]
        self.columns = find_columns(names, self.choices, self.address.text)
        self.columns.setdefault("id", _ROW)
        expressions = {}
        for column in self.columns.values():
            top = _ROW if column == _ROW else top_column(column, schema.names)
            if top in json_columns and column != top:
                path_in_json = "$." + ".".join(quoted(part) for part in column[len(top) + 1 :].split("."))
                expressions[column] = (
                    f"json_extract_string({quoted(top)}, {_literal(path_in_json)}) AS {quoted(column)}"
                )
            else:
                expressions[top] = quoted(top)
        self.expressions = ", ".join(expressions.values())

    def count(self) -> int:
        """Rows of the table."""
        return int(self._one(f"SELECT count(*) FROM {self.table}"))

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        end_of_table = int(self._one(f"SELECT coalesce(max({_ROW}) + 1, 0) FROM {self.table}"))
        for first in range(int(after or 0), end_of_table, self.rows_at_once):
            end = first + self.rows_at_once
            condition = f"{_ROW} >= {first} AND {_ROW} < {end}"
            rows = self.connection.sql(f"SELECT {self.expressions} FROM {self.table} WHERE {condition} ORDER BY {_ROW}")
            table = rows.to_arrow_table().combine_chunks()
            for batch in table.to_batches():
                yield read_arrow(batch, self.columns, first, end, self.address.text)

    def _one(self, query: str) -> int:
        """The number that a query gives."""
        (row,) = self.connection.execute(query).fetchall()
        return int(row[0])


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
