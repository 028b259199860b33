"""A table of sqlite-vec: sqlite-vec:///FOLDER/FILE/TABLE, a virtual table `vec0`, read without the extension.

Many Pythons cannot load extensions. What `vec0` stores are plain tables beside TABLE:
- TABLE_chunks: for each chunk of rows their numbers, and the bits of those that are in use
- TABLE_vector_chunksNN: their vectors, of column NN
- TABLE_metadatachunksNN, TABLE_metadatatextNN: values of columns that a search filters by
- TABLE_auxiliary: values of the columns that begin with +
- TABLE_rowids: the numbers of the rows in use, and their keys

Many such tables hold vectors alone, and the texts are in another table of the file, by the same numbers:
`--column text=TABLE.COLUMN`.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distilvec.core.addresses import Address
from distilvec.core.arrow import Vectors
from distilvec.core.errors import DistilvecError
from distilvec.data.task_rows import document_name, row_id
from distilvec.teachers.cache.columns import find_columns
from distilvec.teachers.indexes.conditions import check_names, is_allowed
from distilvec.teachers.indexes.reader import (
    Batch,
    Cursor,
    Reader,
    database_files,
    quoted,
    read_text,
    split_address,
)

_LOG = "-wal"
_TABLE = re.compile(r"\bUSING\s+vec0\s*\((.*)\)\s*;?\s*$", re.IGNORECASE | re.DOTALL)
_VECTOR = re.compile(r"(\w+)\s+(float|f32|int8|i8|bit)\s*\[\s*(\d+)\s*\]", re.IGNORECASE)
_METRIC = re.compile(r"\bdistance_metric\s*=\s*(\w+)", re.IGNORECASE)
_TEXT = np.dtype([("length", "<i4"), ("start", "S12")])  # of a text among metadata; a longer one is elsewhere
_NUMBERS = {"integer": "<i8", "int": "<i8", "float": "<f8", "double": "<f8"}

Kind = Literal["vector", "key", "partition", "metadata", "auxiliary", "joined"]


@dataclass(frozen=True)
class Column:
    """A column by its kind, its number among those of the kind, and its type in small letters.

    Vectors have `dim` and `metric`. A joined column is `name` of another table, whose column `key` has the numbers of
    rows, or their keys.
    """

    name: str
    kind: Kind
    type: str
    number: int = 0
    dim: int = 0
    metric: str = "l2"
    table: str = ""
    key: str = ""


class SqliteVecTable(Reader):
    """The rows of a table by chunks; the cursor is the number of the last chunk."""

    takes_where = True

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The file and its write-ahead log."""
        return database_files(address, _LOG)

    def open(self) -> None:
        """Open the file, and find the table's columns."""
        path, self.name = split_address(self.address)
        self.connection = self._connect(path)
        self.opened.callback(self.connection.close)
        definitions = {}
        for name, definition in self._rows("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
            match = _TABLE.search(definition)
            if match is not None:
                definitions[name] = match[1]
        if self.name not in definitions:
            problem = f"{path} has no table '{self.name}' of sqlite-vec; it has {', '.join(definitions) or 'none'}."
            raise DistilvecError(problem, "Name one behind the file.")
        columns = read_definition(definitions[self.name])
        columns += self._joined_columns(any(column.kind == "key" and column.type == "text" for column in columns))
        self.fields = {column.name: column for column in columns}
        self.columns = find_columns(list(self.fields), self.choices, self.address.text)
        check_names(self.where, list(self.fields), self.address.text)
        self.vectors = self.fields[self.columns["embedding"]]
        if self.vectors.kind != "vector" or self.vectors.type == "bit":
            problem = f"{self.address}: '{self.vectors.name}' does not hold vectors of floats or int8."
            raise DistilvecError(problem, "Name a column of vectors, as in embedding=NAME.", key="teacher.columns")

    @property
    def metric(self) -> str:
        """The metric of the column of vectors."""
        return self.vectors.metric

    @property
    def is_quantized(self) -> bool:
        """Whether numbers were rounded to 8 bits."""
        return self.vectors.type in ("int8", "i8")

    def count(self) -> int:
        """Rows of the table."""
        return sum(len(rows) for _, rows, _ in self._chunks(0))

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """The rows of the chunks behind number `after`."""
        for chunk, rows, offsets in self._chunks(int(after or 0)):
            values = {}
            for part, name in self.columns.items():
                if part != "embedding":
                    values[part] = self._values(self.fields[name], chunk, rows, offsets)
            ids = [row_id(value, row) for value, row in zip(values.get("id", rows), rows, strict=True)]
            texts = [read_text(text, row, self.address.text) for text, row in zip(values["text"], ids, strict=True)]
            origins = [document_name(value) for value in values["origin"]] if "origin" in values else None
            yield Batch(ids, texts, self._vectors(chunk, offsets), chunk, values.get("role"), origins)

    def values(self, name: str) -> Iterator[Any]:
        """Values of a column."""
        where, self.where = self.where, {}
        for chunk, rows, offsets in self._chunks(0):
            yield from self._values(self.fields[name], chunk, rows, offsets)
        self.where = where

    def _chunks(self, after: int) -> Iterator[tuple[int, list[int], npt.NDArray[np.int64]]]:
        """The chunks behind number `after`: their numbers, and numbers and places of the rows that meet `where`."""
        chunk = after
        query = f"SELECT chunk_id, validity, rowids FROM {self._shadow('chunks')} WHERE chunk_id > ? ORDER BY 1 LIMIT 1"
        while chunks := self._rows(query, chunk):
            ((chunk, validity, numbers),) = chunks
            # A deleted row keeps its place and its vector until another row takes them
            offsets = np.flatnonzero(np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little"))
            for name, allowed in self.where.items():
                rows = np.frombuffer(numbers, "<i8")[offsets].tolist()
                values = self._values(self.fields[name], chunk, rows, offsets)
                offsets = offsets[[is_allowed(value, allowed) for value in values]]
            yield chunk, np.frombuffer(numbers, "<i8")[offsets].tolist(), offsets

    def _vectors(self, chunk: int, offsets: npt.NDArray[np.int64]) -> Vectors:
        """The vectors at some places of a chunk, float32 [places, dim]."""
        table = self._shadow(f"vector_chunks{self.vectors.number:02d}")
        ((content,),) = self._rows(f"SELECT vectors FROM {table} WHERE rowid = ?", chunk)
        numbers = np.frombuffer(content, np.int8 if self.is_quantized else "<f4")
        return numbers.reshape(-1, self.vectors.dim)[offsets].astype(np.float32)

    def _values(self, column: Column, chunk: int, rows: list[int], offsets: npt.NDArray[np.int64]) -> list[Any]:
        """The values of a column in the rows at some places of a chunk; None where a row has none."""
        if column.kind == "metadata":
            return self._metadata(column, chunk, rows, offsets)
        number = f"{column.number:02d}"
        keys = self._shadow("rowids")
        if column.kind == "partition":
            query = f"SELECT {keys}.rowid, partition{number} FROM {self._shadow('chunks')} JOIN {keys} USING (chunk_id)"
        elif column.kind == "auxiliary":
            query = f"SELECT {keys}.rowid, value{number} FROM {keys} JOIN {self._shadow('auxiliary')} USING (rowid)"
        elif column.kind == "joined":
            key = "rowid" if column.key == "rowid" else "id"
            table = quoted(column.table)
            value = f"{table}.{quoted(column.name.removeprefix(f'{column.table}.'))}"
            query = f"SELECT {keys}.rowid, {value} FROM {keys} JOIN {table} ON {table}.{column.key} = {keys}.{key}"
        else:
            query = f"SELECT rowid, coalesce(id, rowid) FROM {keys}"
        # The table of keys has an index of its rows, and none of its chunks
        limits = (min(rows, default=0), max(rows, default=0))
        where = f"{keys}.rowid BETWEEN ? AND ? AND {keys}.chunk_id = ?"
        by_row = dict(self._rows(f"{query} WHERE {where}", *limits, chunk))
        return [by_row.get(row) for row in rows]

    def _metadata(self, column: Column, chunk: int, rows: list[int], offsets: npt.NDArray[np.int64]) -> list[Any]:
        number = f"{column.number:02d}"
        ((content,),) = self._rows(f"SELECT data FROM {self._shadow(f'metadatachunks{number}')} WHERE rowid = ?", chunk)
        if column.type in _NUMBERS:
            return list(np.frombuffer(content, _NUMBERS[column.type])[offsets].tolist())
        if column.type != "text":
            bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
            return [bool(bit) for bit in bits[offsets]]
        values = []
        long_texts = self._shadow(f"metadatatext{number}")
        for row, (length, start) in zip(rows, np.frombuffer(content, _TEXT)[offsets].tolist(), strict=True):
            if length <= _TEXT["start"].itemsize:
                values.append(start.ljust(length, b"\0")[:length].decode())  # NumPy drops zero bytes at the end
            else:
                ((text,),) = self._rows(f"SELECT data FROM {long_texts} WHERE rowid = ?", row)
                values.append(text)
        return values

    def _joined_columns(self, by_text: bool) -> list[Column]:
        """The columns of the file's other tables; `by_text`: rows are found by their keys, which are texts."""
        names = self._rows("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        columns = []
        for (table,) in names:
            if table.startswith((f"{self.name}_", "sqlite_")):
                continue
            details = self._rows("SELECT name, lower(type), pk FROM pragma_table_info(?)", table)
            keys = [name for name, _, position in details if position]
            if by_text and len(keys) != 1:
                continue
            key = quoted(keys[0]) if by_text else "rowid"
            columns += [Column(f"{table}.{name}", "joined", kind, table=table, key=key) for name, kind, _ in details]
        return columns

    def _connect(self, path: Path) -> sqlite3.Connection:
        """Open the file so that nothing is written beside it; with a write-ahead log, a copy of both."""
        log = path.with_name(path.name + _LOG)
        settings = "mode=ro&immutable=1"
        if log.exists() and log.stat().st_size:
            folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory()))
            shutil.copy2(log, folder / log.name)
            path = Path(shutil.copy2(path, folder / path.name))
            settings = "mode=rw"
        return sqlite3.connect(f"{path.absolute().as_uri()}?{settings}", uri=True, check_same_thread=False)

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self.connection.execute(query, values).fetchall()

    def _shadow(self, name: str) -> str:
        """The table of sqlite-vec's own with this name."""
        return quoted(f"{self.name}_{name}")


def read_definition(arguments: str) -> list[Column]:
    """Return the columns that are declared between the parentheses of `vec0`."""
    columns: list[Column] = []
    for argument in arguments.split(","):
        argument = argument.strip()
        kind: Kind = "metadata"
        vector = _VECTOR.match(argument)
        words = argument.removeprefix("+").lower().split()
        if vector is not None:
            kind = "vector"
        elif re.match(r"\w+\s*=", argument):  # a setting, such as chunk_size
            continue
        elif argument.startswith("+"):
            kind = "auxiliary"
        elif words[-2:] == ["primary", "key"]:
            kind = "key"
        elif words[-2:] == ["partition", "key"]:
            kind = "partition"
        number = sum(column.kind == kind for column in columns)
        if vector is None:
            name = argument.removeprefix("+").split()[0]
            columns.append(Column(name, kind, words[1], number))
        else:
            metric = _METRIC.search(argument)
            metric_name = "l2" if metric is None else metric[1].lower()
            columns.append(Column(vector[1], kind, vector[2].lower(), number, int(vector[3]), metric_name))
    return columns
