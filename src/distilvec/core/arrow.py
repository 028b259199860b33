"""Parquet and Arrow files, and what their columns hold: texts and vectors, by column names or names of inner fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from distilvec.core.errors import DistilvecError

Vectors = npt.NDArray[np.float32]

_STRINGS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view,
          pa.types.is_large_list_view)  # fmt: skip
# The fix for integers that are no vectors, and of which a mere change of their type would make none
UNSIGNED = (
    "Unsigned integers are packed bits, or quantized with a scale and an offset: give the vectors as floats, with both "
    "undone."
)

# -- files -------------------------------------------------------------------------------------------------------------


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file to read it by batches of rows; without a buffer, or with pre_buffer, all of it is read."""
    return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)


def open_arrow(path: Path) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """Open an Arrow file, or a stream, as save_to_disk of datasets writes it: both end in .arrow."""
    try:
        return pyarrow.ipc.open_file(pa.memory_map(str(path)))
    except pa.ArrowInvalid as not_a_file:
        try:
            return pyarrow.ipc.open_stream(pa.memory_map(str(path)))
        except pa.ArrowInvalid:
            raise not_a_file from None


# -- columns by name ---------------------------------------------------------------------------------------------------


def field_names(schema: pa.Schema) -> list[str]:
    """Names of the columns, and of the fields inside them: doc.text."""
    names = []
    for field in schema:
        names += [field.name, *_inner_names(field)]
    return names


def _inner_names(field: pa.Field) -> list[str]:
    names = []
    if pa.types.is_struct(field.type):
        for number in range(field.type.num_fields):
            inner = field.type.field(number)
            names += [f"{field.name}.{name}" for name in (inner.name, *_inner_names(inner))]
    return names


def top_column(name: str, names: list[str]) -> str:
    """The column that holds a field: the name itself, or what is before one of its dots."""
    if name in names:
        return name
    for top in names:
        if name.startswith(f"{top}."):
            return top
    problem = f"a file with the columns {', '.join(names)} has no column '{name}'."
    raise DistilvecError(problem, "Give files with equal columns.")


def column_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column by its name, or a field inside of one: doc.text; without dictionaries and extension types."""
    if name in batch.schema.names:
        column = batch.column(name)
    else:
        top = top_column(name, batch.schema.names)
        column = pc.struct_field(batch.column(top), name[len(top) + 1 :].split("."))
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_struct(column.type) and {field.name for field in column.type} == {"data", "shape"}:
        column = _flat_tensors(column, name)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column


def _flat_tensors(column: pa.StructArray, name: str) -> pa.Array:
    """The numbers of arrays with their shapes, as Daft and Ray write vectors of NumPy: struct<data, shape>."""
    shapes = pc.struct_field(column, "shape")
    if pc.any(pc.not_equal(pc.list_value_length(shapes), 1)).as_py():
        problem = f"column '{name}' holds arrays of several dimensions; expected vectors."
        raise DistilvecError(problem, f"Name {name}.data if its numbers are vectors.")
    return pc.struct_field(column, "data")


# -- values ------------------------------------------------------------------------------------------------------------


def are_plain(texts: pa.DataType, vectors: pa.DataType) -> bool:
    """Whether columns of these types are read without a copy: strings, and lists of floats."""
    are_strings = _is_any(texts, _STRINGS[:2])
    return are_strings and _is_any(vectors, _LISTS[:3]) and pa.types.is_floating(vectors.value_type)


def texts_of(column: pa.Array, name: str, origin: str) -> list[Any]:
    """A column's texts; those that are not UTF-8, which Arrow does not check, as bytes.

    `name` and `origin`: the column and its table, for the error about a column of something else.
    """
    if not (_is_any(column.type, (*_STRINGS, *_BYTES)) or pa.types.is_null(column.type)):
        problem = f"{origin} has type {column.type} in column '{name}'; expected texts."
        raise DistilvecError(problem, "Name the column of the texts.")
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        is_large = pa.types.is_large_string(column.type)
        return list(column.view(pa.large_binary() if is_large else pa.binary()).to_pylist())


def vectors_of(column: pa.Array, name: str, origin: str) -> Vectors | None:
    """The vectors of a column, float32 [rows, dim]; None where one is missing or empty, or their lengths differ.

    `name` and `origin`: the column and its table, for the error about a column of something else.
    """
    is_list = _is_any(column.type, _LISTS)
    value_type = column.type.value_type if is_list else None
    if not is_list or not (pa.types.is_floating(value_type) or pa.types.is_signed_integer(value_type)):
        problem = f"{origin} has type {column.type} in column '{name}'; expected lists of floats."
        is_unsigned = is_list and pa.types.is_unsigned_integer(value_type)
        raise DistilvecError(problem, UNSIGNED if is_unsigned else "Convert it, or name the column of the vectors.")
    values = column.flatten()
    rows = len(column)
    if column.null_count or values.null_count or not rows or not len(values) or len(values) % rows:
        return None
    if not pa.types.is_fixed_size_list(column.type) and len(pc.list_value_length(column).unique()) > 1:
        return None
    with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
        return values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(rows, -1)


def _is_any(kind: pa.DataType, tests: tuple[Any, ...]) -> bool:
    return any(test(kind) for test in tests)
