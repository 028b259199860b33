"""Parquet and Arrow files with columns of texts and vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import is_parquet, table_files
from distilvec.teachers.cache.columns import Part, find_columns
from distilvec.teachers.indexes.reader import (
    ROWS,
    UNSIGNED,
    Batch,
    Cursor,
    Reader,
    Vectors,
    read_id,
    read_origin,
    read_text,
)

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view,
          pa.types.is_large_list_view)  # fmt: skip
# What VectorTable (teachers/cache/parquet.py) reads without a copy
_PLAIN_TEXTS = _TEXTS[:2]
_PLAIN_LISTS = _LISTS[:3]


class ArrowFiles(Reader):
    """Parquet files (a file or a folder of them) or one Arrow file or stream (.arrow, .feather).

    The cursor counts rows.
    """

    def __init__(self, path: Path, columns: Mapping[Part, str] | None, key: str) -> None:
        self.path = path
        self.key = key
        self.paths = table_files(path, is_parquet, key)
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(f"no file at {path}.", "Give a file, or a folder of Parquet files.", key=key)
        self.is_parquet = path.is_dir() or path.suffix.lower() == ".parquet"
        with self._readable():
            schema = self._schema(self.paths[0])
        self.columns = find_columns(field_names(schema), columns, str(path), key)

    def count(self) -> int:
        """Rows of all files."""
        with self._readable():
            if self.is_parquet:
                return sum(pq.read_metadata(path).num_rows for path in self.paths)
            return sum(batch.num_rows for batch in self._arrow_batches())

    def is_plain(self) -> bool:
        """Whether all files are Parquet with strings and lists of floats, in columns that are not nested."""
        if not self.is_parquet:
            return False
        with self._readable():
            for path in self.paths:
                schema = self._schema(path)
                if not set(self.columns.values()) <= set(schema.names):
                    return False
                vector_type = schema.field(self.columns["embedding"]).type
                if not _is_any(vector_type, _PLAIN_LISTS) or not pa.types.is_floating(vector_type.value_type):
                    return False
                if not _is_any(schema.field(self.columns["text"]).type, _PLAIN_TEXTS):
                    return False
        return True

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """Rows from number `after` on."""
        start = int(after or 0)
        first = 0
        with self._readable():
            for batch in self._record_batches():
                end = first + batch.num_rows
                if start < end:
                    skip = max(0, start - first)
                    part = batch.slice(skip)
                    yield record_batch(part, self.columns, first + skip, end, str(self.path), self.key)
                first = end

    def _schema(self, path: Path) -> pa.Schema:
        return pq.read_schema(path) if self.is_parquet else self._open_arrow().schema

    def _open_arrow(self) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        """The reader of a file, or of a stream, as save_to_disk of datasets writes it: both end in .arrow."""
        try:
            return pyarrow.ipc.open_file(pa.memory_map(str(self.path)))
        except pa.ArrowInvalid as not_a_file:
            try:
                return pyarrow.ipc.open_stream(pa.memory_map(str(self.path)))
            except pa.ArrowInvalid:
                raise not_a_file from None

    def _arrow_batches(self) -> Iterator[pa.RecordBatch]:
        reader = self._open_arrow()
        if isinstance(reader, pa.RecordBatchStreamReader):
            yield from reader
            return
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys(self.columns.values()))
        if self.is_parquet:
            for path in self.paths:
                # without a buffer and with pre_buffer all of the file comes into memory
                file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
                yield from file.iter_batches(batch_size=ROWS, columns=names)
            return
        for whole_batch in self._arrow_batches():
            top_names = dict.fromkeys(_top_name(name, whole_batch.schema.names) for name in names)
            batch = whole_batch.select(list(top_names))
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (DistilvecError, MemoryError):
            raise
        except Exception as error:
            problem = f"cannot be read: {first_line(error)}. Give whole Parquet or Arrow files"
            raise DistilvecError(f"{self.path} {problem}.", key=self.key) from None


def field_names(schema: pa.Schema) -> list[str]:
    """Names of the columns, and of the fields inside them: doc.text."""
    names = []
    for field in schema:
        names += [field.name, *_nested_names(field)]
    return names


def _nested_names(field: pa.Field) -> list[str]:
    names = []
    if pa.types.is_struct(field.type):
        for number in range(field.type.num_fields):
            inner = field.type.field(number)
            names += [f"{field.name}.{name}" for name in (inner.name, *_nested_names(inner))]
    return names


def record_batch(
    batch: pa.RecordBatch, columns: Mapping[Part, str], first: int, after: Cursor, origin: str, key: str
) -> Batch:
    """A batch of Arrow columns; rows without an id are numbered from `first`.

    Errors: DistilvecError for columns that hold no texts or no vectors.
    """
    numbers = range(first, first + batch.num_rows)
    ids = _column(batch, columns["id"]).to_pylist() if "id" in columns else numbers
    ids = [read_id(value, number) for value, number in zip(ids, numbers, strict=True)]
    values = _column(batch, columns["text"])
    if not (_is_any(values.type, (*_TEXTS, *_BYTES)) or pa.types.is_null(values.type)):
        problem = f"{origin} has type {values.type} in column '{columns['text']}'; expected texts."
        raise DistilvecError(problem, "Name the column of the texts.", key=key)
    texts = _python_values(values)
    texts = [read_text(text, row, origin, key) for row, text in zip(ids, texts, strict=True)]
    roles = _column(batch, columns["role"]).to_pylist() if "role" in columns else None
    vectors = _vectors(_column(batch, columns["embedding"]), columns["embedding"], origin, key)
    origins = None
    if "origin" in columns:
        origins = [read_origin(value) for value in _column(batch, columns["origin"]).to_pylist()]
    return Batch(ids, texts, vectors, after, roles, origins)


def _python_values(column: pa.Array) -> list[Any]:
    """A column's values as Python objects; strings that are not UTF-8, which Arrow does not check, as bytes."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        is_large = pa.types.is_large_string(column.type)
        return list(column.view(pa.large_binary() if is_large else pa.binary()).to_pylist())


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column by its name, or a field inside of one: doc.text; without dictionaries and extension types."""
    if name in batch.schema.names:
        column = batch.column(name)
    else:
        top = _top_name(name, batch.schema.names)
        column = pc.struct_field(batch.column(top), name[len(top) + 1 :].split("."))
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _top_name(name: str, names: list[str]) -> str:
    """The column that holds a field: the name itself, or what is before one of its dots."""
    if name in names:
        return name
    for top in names:
        if name.startswith(f"{top}."):
            return top
    raise KeyError(f"no column '{name}' in a file with {', '.join(names)}")


def _is_any(kind: pa.DataType, tests: tuple[Any, ...]) -> bool:
    return any(test(kind) for test in tests)


def _vectors(column: pa.Array, name: str, origin: str, key: str) -> Vectors | list[list[float] | None]:
    """float32 [rows, dim] of lists of one length; a list of lists where one is missing or another length occurs."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    is_list = _is_any(column.type, _LISTS)
    value_type = column.type.value_type if is_list else None
    if not is_list or not (pa.types.is_floating(value_type) or pa.types.is_signed_integer(value_type)):
        problem = f"{origin} has type {column.type} in column '{name}'; expected lists of floats."
        is_unsigned = is_list and pa.types.is_unsigned_integer(value_type)
        raise DistilvecError(
            problem, UNSIGNED if is_unsigned else "Convert it, or name the column of the vectors.", key=key
        )
    values = column.flatten()
    rows = len(column)
    if column.null_count or values.null_count or not rows or not len(values) or len(values) % rows:
        return list(column.to_pylist())
    if not pa.types.is_fixed_size_list(column.type) and len(pc.list_value_length(column).unique()) > 1:
        return list(column.to_pylist())
    with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
        return values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, -1)
