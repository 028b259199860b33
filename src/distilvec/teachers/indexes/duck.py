"""A table in a file of DuckDB: duckdb:///FOLDER/FILE/TABLE (or SCHEMA.TABLE)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from distilvec.core.addresses import Address
from distilvec.core.arrow import field_names, top_column
from distilvec.core.errors import DistilvecError
from distilvec.data.task_rows import some_of
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import check_names, sql_condition
from distilvec.teachers.indexes.reader import Batch, Cursor, Reader, database_files, quoted, read_arrow, split_address

_ROW = "rowid"  # DuckDB's own number of a row, which stays when others are deleted


class DuckTable(Reader):
    """A table, read by ranges of its rows' numbers; the cursor is the next number.

    The file is opened for reading alone; a write-ahead log beside it counts, and is left as it is. A file does not tell
    the metric of an HNSW index.
    """

    takes_where = True
    opens_at_once = True

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
        try:
            schema = self.connection.sql(f"SELECT * FROM {self.table} LIMIT 0").to_arrow_table().schema
        except duckdb.CatalogException:
            rows = self.connection.execute("SHOW ALL TABLES").fetchall()
            tables = some_of(f"{schema}.{table}".removeprefix("main.") for _, schema, table, *_ in rows)
            raise DistilvecError(f"{path} has no table '{name}'; it has {tables or 'none'}.", "Name one.") from None
        if _ROW in schema.names:
            problem = f"{self.address} has a column {_ROW}, which hides DuckDB's own."
            raise DistilvecError(problem, "Rename it.")
        described = self.connection.execute(f"DESCRIBE {self.table}").fetchall()
        json_columns = [column for column, kind, *_ in described if kind == "JSON"]
        names = field_names(schema)
        named = [*self.choices.values(), *self.where]
        names += [name for name in named if name.partition(".")[0] in json_columns]
        self.columns = find_columns(names, self.choices, self.address.text)
        self.columns.setdefault("id", _ROW)
        check_names(self.where, names, self.address.text)
        self.top_names = schema.names
        self.json_columns = json_columns
        expressions = {}
        for column in self.columns.values():
            top = _ROW if column == _ROW else top_column(column, schema.names)
            if top in json_columns and column != top:
                expressions[column] = f"{self._column(column)} AS {quoted(column)}"
            else:
                expressions[top] = quoted(top)
        self.expressions = ", ".join(expressions.values())
        self.condition, self.parameters = sql_condition(self.where, self._column, "?")

    def count(self) -> int:
        """Rows of the table."""
        query = f"SELECT count(*) FROM {self.table} WHERE {self.condition}"
        return self._one(query, self.parameters)

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        end_of_table = self._one(f"SELECT coalesce(max({_ROW}) + 1, 0) FROM {self.table}")
        for first in range(int(after or 0), end_of_table, self.rows_at_once):
            end = first + self.rows_at_once
            condition = f"{_ROW} >= {first} AND {_ROW} < {end} AND {self.condition}"
            query = f"SELECT {self.expressions} FROM {self.table} WHERE {condition} ORDER BY {_ROW}"
            rows = self.connection.sql(query, params=self.parameters)
            table = rows.to_arrow_table().combine_chunks()
            for batch in table.to_batches():
                yield read_arrow(batch, self.columns, range(first, first + batch.num_rows), end, self.address.text)

    def values(self, name: str) -> list[Any]:
        """Values of a column or of a field."""
        rows = self.connection.execute(f"SELECT DISTINCT {self._column(name)} FROM {self.table} LIMIT 11").fetchall()
        return [row[0] for row in rows]

    def _column(self, name: str) -> str:
        """The SQL of a column, or of a field of a struct or of JSON."""
        top = top_column(name, self.top_names)
        fields = [] if name == top else [quoted(field) for field in name[len(top) + 1 :].split(".")]
        if fields and top in self.json_columns:
            path = ".".join(["$", *fields]).replace("'", "''")
            return f"json_extract_string({quoted(top)}, '{path}')"
        return ".".join([quoted(top), *fields])

    def _one(self, query: str, parameters: Sequence[str] = ()) -> int:
        """The number that a query gives."""
        (row,) = self.connection.execute(query, list(parameters)).fetchall()
        return int(row[0])
