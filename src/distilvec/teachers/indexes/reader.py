"""The contract of a reader of an index, and the one rule for its rows: each has an id, a text and a vector, or is left
out.

Texts are strings; bytes are decoded as UTF-8, anything else is refused. Rows without text or vector, with a vector of
zeros or with numbers that are not finite are left out, and counted by reason with the id of the first one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from distilvec.core.addresses import Address
from distilvec.core.arrow import Vectors, column_of, texts_of, vectors_of
from distilvec.core.errors import DistilvecError
from distilvec.core.files import files_below
from distilvec.core.similarity import Similarity, read_similarity
from distilvec.data.readers import field_of
from distilvec.data.task_rows import document_name, id_text, row_id
from distilvec.teachers.cache.columns import Part
from distilvec.teachers.indexes.conditions import Where, arrow_condition

Cursor = int | str | None  # where to continue; JSON holds it
METRICS: dict[str, Similarity] = {  # the stores' names
    "cosine": "cosine",
    "cos": "cosine",
    "dot": "dot",
    "ip": "dot",
    "inner product": "dot",
    "l2": "euclidean",
    "l2sq": "euclidean",
    "euclid": "euclidean",
    "euclidean": "euclidean",
}
NO_TEXT = "without a text"
NO_VECTOR = "without a vector"
ZERO = "with a vector of zeros"
NOT_FINITE = "with a vector that holds NaN or infinity"
_NUMBER = "distilvec_row_number"  # a column beside those of a table


@dataclass(frozen=True)
class Batch:
    """Some rows in the index's order. `after`: the cursor behind the last of them.

    A row without a text or a vector has None there; `vectors` has a row for each text. `roles` are those of an index
    that has them, `origins` the names of the documents that the rows are parts of, None where a row has none.
    """

    ids: Sequence[str]
    texts: Sequence[str | None]
    vectors: Sequence[Sequence[float] | None] | Vectors
    after: Cursor
    roles: Sequence[str | bytes | None] | None = None
    origins: Sequence[str | None] | None = None


class Reader(ABC):
    """Reads one index: the contract of every store. Its line in stores.py says which addresses it reads.

    A subclass opens the index in `open`, and says how many rows there are (`count`) and what they hold (`batches`);
    the other methods have answers that are right for most. A problem is any exception, or a DistilvecError without a
    key: the caller names the index. Vectors without texts (usearch, for example) are a VectorFile (vector_file.py),
    columns of Arrow are read by `read_arrow`. lance.py is a short example of the one, npy.py of the other.
    """

    rows_at_once: ClassVar[int] = 8192  # of a batch
    has_texts: ClassVar[bool] = True  # False: they are in a file of their own, `texts`
    takes_settings: ClassVar[bool] = False  # behind the ? of an address
    takes_where: ClassVar[bool] = False  # gives rows that meet `where` alone
    opens_at_once: ClassVar[bool] = False  # in less than a second, whatever its size: commands open it before models
    default_metric: ClassVar[str | None] = None  # the store's own, by which it searches where `metric` is None

    def __init__(self, address: Address, choices: Mapping[Part, str] | None = None, texts: Path | None = None) -> None:
        self.address = address
        self.choices: Mapping[Part, str] = choices or {}  # columns that the recipe names
        self.texts = texts
        self.where: Where = {}  # values by column, set before `open`
        self.columns: dict[Part, str] = {}  # of each part, set by `open`
        self.opened = ExitStack()  # what is closed at the end

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.opened.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.close()

    @property
    def path(self) -> Path:
        """The file or folder of a store of files."""
        return Path(self.address.text)

    @classmethod
    def files(cls, address: Address) -> list[Path]:
        """The files with the index's rows: the hash of their content names the local copy. A server has none."""
        if address.path is None:
            return []
        return files_below(address.path) if address.path.is_dir() else [regular_file(address.path)]

    @abstractmethod
    def open(self) -> None:
        """Open the index; what must be closed goes to `self.opened`, which is closed if this fails, too."""

    @property
    def metric(self) -> str | None:
        """The name that the index has for how it compares vectors; None where it states nothing."""
        return None

    @property
    def is_quantized(self) -> bool:
        """Whether vectors are near those that were added, and have other lengths."""
        return False

    def version(self) -> str | None:
        """A name of the rows' content that is another one when any of them has changed.

        None if the index cannot tell: a copy of it that was killed begins again. Files need none, since the name of
        their copy has the hash of their content.
        """
        return "file"

    def is_plain(self) -> bool:
        """Whether the index is a Parquet table with columns that training reads as they are."""
        return False

    @abstractmethod
    def count(self) -> int:
        """Rows of the index."""

    @abstractmethod
    def batches(self, after: Cursor) -> Iterator[Batch]:
        """All rows behind the cursor `after` (None: from the first), in an order that does not change."""

    def values(self, name: str) -> Iterable[Any]:
        """Values of a column of `where`, of rows that do not meet it either: for the message that none does."""
        return ()


@dataclass(frozen=True)
class UsableRows:
    """Numbers of the rows of a batch that can be used, their vectors float32 [rows, dim], and why others cannot."""

    rows: list[int]
    vectors: Vectors
    left_out: list[tuple[int, str]]


def metric_similarity(metric: str, origin: str) -> Similarity:
    """Return the similarity that an index's metric is. DistilvecError for a metric by which nothing is scored here."""
    fix = "State the nearest of these with teacher.similarity (--similarity)."
    return read_similarity(METRICS.get(metric.lower(), metric), origin, fix)


def regular_file(path: Path) -> Path:
    """Return a path that is a file. DistilvecError for nothing there, and for another kind, such as a pipe."""
    if not path.is_file():
        fault = "is not a file" if path.exists() else "does not exist"
        raise DistilvecError(f"{path} {fault}.", "Check the path.")
    return path


def split_address(address: Address) -> tuple[Path, str]:
    """The file of a database, and the name behind it: scheme:///FOLDER/FILE/NAME, or scheme://FILE/NAME from here."""
    file, _, name = unquote(address.parts.netloc + address.parts.path).rpartition("/")
    return Path(file), name


def database_files(address: Address, log: str) -> list[Path]:
    """The file of a database, and the write-ahead log that lies beside it, whose name ends in `log`."""
    path, name = split_address(address)
    if not path.is_file():
        place = f"{address.scheme}:///FOLDER/FILE/TABLE"
        raise DistilvecError(f"no file at {path}, before the table '{name}'.", f"Give the whole path: {place}.")
    return [file for file in (path, path.with_name(path.name + log)) if file.is_file()]


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class NumberedRows:
    """Rows of a table of Arrow with their numbers in it, from 0; `end` is the number behind those that were read."""

    numbers: Sequence[int]
    batch: pa.RecordBatch
    end: int


def rows_after(batches: Iterable[pa.RecordBatch], after: Cursor, where: Where) -> Iterator[NumberedRows]:
    """The rows from number `after` on that meet `where`, of all batches of a table."""
    start = int(after or 0)
    first = 0
    for batch in batches:
        end = first + batch.num_rows
        if start < end:
            begin = max(start, first)
            yield from _rows_that_meet(where, NumberedRows(range(begin, end), batch.slice(begin - first), end))
        first = end


def _rows_that_meet(where: Where, rows: NumberedRows) -> Iterator[NumberedRows]:
    condition = arrow_condition(where, rows.batch.schema)
    if condition is None:
        yield rows
        return
    numbered = pa.Table.from_batches([rows.batch]).append_column(_NUMBER, pa.array(rows.numbers))
    for batch in numbered.filter(condition).combine_chunks().to_batches():
        yield NumberedRows(batch.column(_NUMBER).to_pylist(), batch, rows.end)


def read_arrow(
    batch: pa.RecordBatch, columns: Mapping[Part, str], numbers: Sequence[int], after: Cursor, origin: str
) -> Batch:
    """A batch of Arrow columns; a row without an id has its number."""
    values = column_of(batch, columns["id"]).to_pylist() if "id" in columns else [None] * len(numbers)
    ids = [row_id(value, number) for value, number in zip(values, numbers, strict=True)]
    texts = texts_of(column_of(batch, columns["text"]), columns["text"], origin)
    texts = [read_text(text, row, origin) for row, text in zip(ids, texts, strict=True)]
    roles = column_of(batch, columns["role"]).to_pylist() if "role" in columns else None
    column = column_of(batch, columns["embedding"])
    vectors: Sequence[Sequence[float] | None] | Vectors | None
    if pa.types.is_null(column.type):
        vectors = [None] * len(column)
    else:
        vectors = vectors_of(column, columns["embedding"], origin)
        if vectors is None:
            vectors = column.to_pylist()
    origins = None
    if "origin" in columns:
        origins = [document_name(value) for value in column_of(batch, columns["origin"]).to_pylist()]
    return Batch(ids, texts, vectors, after, roles, origins)


def read_payloads(
    ids: Sequence[Any],
    payloads: Sequence[Mapping[str, Any]],
    vectors: Sequence[Any],
    columns: Mapping[Part, str],
    after: Cursor,
    origin: str,
) -> Batch:
    """A batch of rows that have their fields in a mapping each; an id there comes before the one of `ids`."""
    row_ids = []
    texts = []
    roles = []
    origins = []
    for row, payload in zip(ids, payloads, strict=True):
        value = field_of(payload, columns["id"]) if "id" in columns else None
        row_ids.append(str(row) if value is None else id_text(value))
        texts.append(read_text(field_of(payload, columns["text"]), row_ids[-1], origin))
        roles.append(field_of(payload, columns["role"]) if "role" in columns else None)
        origins.append(document_name(field_of(payload, columns["origin"])) if "origin" in columns else None)
    return Batch(row_ids, texts, vectors, after, roles if "role" in columns else None, origins)


def read_text(value: Any, row: str, origin: str) -> str | None:
    """Return the text of a row, None where it has none; what is neither text nor UTF-8 is refused."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            problem = f"{origin}: the text of row {row} is not UTF-8."
            raise DistilvecError(problem, "Convert the column, or name the column that holds texts.") from None
    problem = f"{origin}: the text of row {row} is of type {type(value).__name__}; expected a string."
    raise DistilvecError(problem, "Name the column of the texts.")


def usable_rows(batch: Batch, origin: str) -> UsableRows:
    """Return the rows that have a text and a vector with a direction, and those that are left out.

    Vectors of different dims, and lists of vectors, are refused.
    """
    left_out = []
    rows = []
    for row, text in enumerate(batch.texts):
        vector = batch.vectors[row]
        if not text or not text.strip():
            left_out.append((row, NO_TEXT))
        elif vector is None or not len(vector):
            left_out.append((row, NO_VECTOR))
        else:
            rows.append(row)
    vectors = _matrix(batch, rows, origin)
    is_finite = np.isfinite(vectors).all(axis=1)
    is_zero = is_finite & ~vectors.any(axis=1)
    left_out += [(rows[position], NOT_FINITE) for position in np.flatnonzero(~is_finite)]
    left_out += [(rows[position], ZERO) for position in np.flatnonzero(is_zero)]
    usable = np.flatnonzero(is_finite & ~is_zero)
    return UsableRows([rows[position] for position in usable], vectors[usable], sorted(left_out))


def _matrix(batch: Batch, rows: list[int], origin: str) -> Vectors:
    """The vectors of some rows, float32 [rows, dim]; None among the numbers of a vector is NaN."""
    with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
        if isinstance(batch.vectors, np.ndarray):
            return np.asarray(batch.vectors[rows], dtype=np.float32)
        if not rows:
            return np.empty((0, 0), dtype=np.float32)
        first = batch.vectors[rows[0]]
        assert first is not None
        for row in rows:
            vector = batch.vectors[row]
            if vector is not None and isinstance(vector[0], Sequence):  # as an array of PostgreSQL may be
                problem = f"{origin}: row {batch.ids[row]} has a list of vectors; expected a list of numbers."
                raise DistilvecError(problem, "Give one vector a row, or name the column of the vectors.")
            if vector is not None and len(vector) != len(first):
                dims = f"row {batch.ids[row]} has {len(vector)} dimensions, row {batch.ids[rows[0]]} has {len(first)}"
                problem = f"{origin} has vectors of different dims: {dims}."
                raise DistilvecError(problem, "Give vectors of one model.")
        return np.array([batch.vectors[row] for row in rows], dtype=np.float32)
