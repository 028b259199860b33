"""Vectors in Parquet: export of caches, and tables of others.

Columns: `text` (without prompt), `role` (query or document; optional), `teacher_embedding_final` (or `embedding`) and
optionally `teacher_embedding_pre_dense`; vectors are lists or fixed-size lists of half, single or double floats. Other
names are given as `columns`, or are among the usual ones (columns.py).
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distilvec.config.schema import Role
from distilvec.core.arrow import column_of, open_parquet, vectors_of
from distilvec.core.errors import DistilvecError, about, each_about, first_line
from distilvec.core.files import disk_space_needed, is_parquet, remove, scratch, table_files
from distilvec.core.log import log_once
from distilvec.core.similarity import Similarity
from distilvec.data.corpus import LONGEST_TEXT, Corpus, text_key
from distilvec.data.corpus_files import as_keys, clean_text
from distilvec.data.task_rows import document_name, row_id
from distilvec.teachers.cache.columns import FINAL, PRE_DENSE, ROLE_VALUES, Part, find_columns
from distilvec.teachers.cache.index import KeyIndex, Keys, WantedKeys
from distilvec.teachers.cache.journal import KEY_NAME
from distilvec.teachers.cache.manifest import Manifest, parse_manifest
from distilvec.teachers.cache.signals import Array
from distilvec.teachers.cache.store import TeacherCache, beginning

_COLUMNS = {"embedding": FINAL, "pre_dense": PRE_DENSE}
_METADATA = b"distilvec.manifest"
_INDEX = b"distilvec.index"  # of the copy of an index
_ROWS = 16384  # rows read or written at once
# Rows of one text: the distance of their vectors, in lengths of the first one, at a cosine of 0.99. Servers that
# compute in bfloat16 and in batches give one text vectors that differ by less
_SAME = 0.1414
_MAX_BYTES = 1 << 28  # of repeated texts' vectors in memory together


@dataclass(frozen=True)
class IndexNotes:
    """What the copy of an index knows of it, in the metadata of its parts.

    all_rows: of the index, where `limit` drew a part of them; None for the copy of a whole index
    similarity: as the index states it, or as its store searches where it states none (`is_default`)
    is_quantized: vectors are near the ones that were added
    """

    all_rows: int | None = None
    similarity: Similarity | None = None
    is_default: bool = False
    is_quantized: bool = False

    def metadata(self) -> dict[bytes, bytes]:
        """The metadata of an Arrow schema."""
        return {_INDEX: json.dumps(asdict(self)).encode()}


@dataclass
class TableRows:
    """Some rows of a table: `keys` V16 [n], `texts` objects [n], `vectors` float32 [n, dim] by signal.

    `is_document` bool [n]: the role of the row is document, or it has none. `origins` objects [n]: the name of the
    document that a row is a part of, None where the table has none. `numbers` int64 [n]: the row's number in the table.
    """

    keys: Keys
    texts: Array
    vectors: dict[str, Array]
    is_document: Array
    origins: Array
    numbers: Array

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, rows: Array | slice) -> TableRows:
        """Some of the rows, by a mask, numbers or a slice."""
        vectors = {name: values[rows] for name, values in self.vectors.items()}
        return TableRows(
            self.keys[rows],
            self.texts[rows],
            vectors,
            self.is_document[rows],
            self.origins[rows],
            self.numbers[rows],
        )


class VectorTable:
    """A Parquet file, or a folder of them, with texts and vectors.

    `prompts` are prepended for the rows' cache keys. Rows of a table without roles have the role `role`; if that is
    None, they count for both roles.
    """

    def __init__(
        self,
        path: Path,
        prompts: dict[Role, str],
        role: Role | None = None,
        columns: Mapping[Part, str] | None = None,
    ) -> None:
        self.path = path
        self.prompts = prompts
        self.roles: list[Role] = ["query", "document"] if role is None else [role]
        self.is_one_key_for_both = prompts["query"] == prompts["document"]
        if self.is_one_key_for_both:
            self.roles = self.roles[:1]
        self.paths = table_files(path, is_parquet)
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(f"no Parquet file at {path}.", "Give a .parquet file or a folder of them.")
        with about("", self.paths[0]):
            self.schema = pq.read_schema(self.paths[0])
        notes = (self.schema.metadata or {}).get(_INDEX)
        self.notes = None if notes is None else IndexNotes(**json.loads(notes))  # None: the table is no copy
        self.names = find_columns(self.schema.names, columns, str(path))
        if "role" in self.names and not (columns or {}).get("role") and not self._has_roles():
            log_once(f"{path}: no row of the column role is a query or document, so it is not read as the texts' role")
            del self.names["role"]
        self.columns = {"embedding": self.names["embedding"]}
        if PRE_DENSE in self.schema.names:
            self.columns["pre_dense"] = PRE_DENSE
        self.type = str(getattr(self.schema.field(self.names["embedding"]).type, "value_type", "?"))

        self.dims: dict[str, int] = {}  # of each signal; empty until the first rows are read, which are not compared
        first_rows = next(self.rows(self.columns), None)
        if first_rows is None:
            raise DistilvecError(f"{path} has no rows.", "Give a table with texts and vectors.")
        self.dims = {name: vectors.shape[1] for name, vectors in first_rows.vectors.items()}

    def _has_roles(self) -> bool:
        """Return whether any row of the column of roles has one: other tables name the speakers of a chat by it."""
        for path in self.paths:
            with about("", path):
                for batch in open_parquet(path).iter_batches(columns=[self.names["role"]]):
                    if any(role in ROLE_VALUES for role in _role_names(batch.column(0).unique())):
                        return True
        return False

    def rows(self, signals: Iterable[str]) -> Iterator[TableRows]:
        """All rows in order, some thousand at a time; only the columns of these signals are read."""
        columns = {name: self.columns[name] for name in signals}
        parts: tuple[Part, ...] = ("text", "role", "origin")
        text_columns = [self.names[part] for part in parts if part in self.names]
        first = 0
        for path in self.paths:
            file_rows = self._rows_of_file(path, [*text_columns, *columns.values()], columns, first)
            yield from each_about(file_rows, "", path)
            first += pq.read_metadata(path).num_rows

    def _rows_of_file(self, path: Path, names: list[str], columns: dict[str, str], first: int) -> Iterator[TableRows]:
        for batch in open_parquet(path).iter_batches(batch_size=_ROWS, columns=names):
            if batch.num_rows:
                yield self._rows(path, batch, columns, first)
                first += batch.num_rows

    def ids(self, texts: Container[str]) -> dict[str, str]:
        """The id of the first row of each of these texts, its number from 0 in a table without ids."""
        ids_by_text: dict[str, str] = {}
        for name, text in self._named_texts():
            if text in texts:
                ids_by_text.setdefault(text, name)
        return ids_by_text

    def texts_of(self, ids: Container[str]) -> dict[str, str]:
        """The text of the first row of each of these ids, which are row numbers from 0 in a table without ids."""
        texts_by_id: dict[str, str] = {}
        for name, text in self._named_texts():
            if name in ids:
                texts_by_id.setdefault(name, text)
        return texts_by_id

    def _named_texts(self) -> Iterator[tuple[str, str]]:
        """Id and text of every row."""
        columns = [self.names[part] for part in ("text", "id") if part in self.names]
        number = 0
        for path in self.paths:
            for batch in open_parquet(path).iter_batches(columns=columns):
                rows = batch.to_pydict()
                ids = rows[self.names["id"]] if "id" in self.names else [None] * batch.num_rows
                for text, value in zip(rows[self.names["text"]], ids, strict=True):
                    yield row_id(value, number), clean_text(text, LONGEST_TEXT)
                    number += 1

    @property
    def rows_of_files(self) -> int:
        """Rows of all files, by their metadata."""
        return sum(pq.read_metadata(path).num_rows for path in self.paths)

    def ids_and_texts(self, numbers: Container[int]) -> dict[int, tuple[str, str]]:
        """The id and the text of some rows, by their numbers; a row without an id has its number."""
        rows_by_number: dict[int, tuple[str, str]] = {}
        columns = [self.names[part] for part in ("text", "id") if part in self.names]
        number = 0
        for path in self.paths:
            for batch in open_parquet(path).iter_batches(columns=columns):
                for row in range(batch.num_rows):
                    if number in numbers:
                        value = batch.column(self.names["id"])[row].as_py() if "id" in self.names else None
                        text = str(batch.column(self.names["text"])[row].as_py())
                        rows_by_number[number] = (row_id(value, number), text)
                    number += 1
        return rows_by_number

    def check_conflicts(self, signals: Iterable[str], refuse: bool = True) -> KeyIndex:
        """All keys of the table. DistilvecError for rows of one key with different vectors, unless `refuse` is false.

        Of the rows of one key the first counts.
        """
        seen, repeated = self._all_keys()
        if refuse:
            for signal in signals:
                self.refuse_differing(self._compare(signal, repeated), signal)
        return seen

    def find_repeats(self, signal: str) -> Repeats:
        """Compare the vectors of rows of one key."""
        return self._compare(signal, self._all_keys()[1])

    def refuse_differing(self, repeats: Repeats, signal: str, origin: str | None = None) -> None:
        """Raise DistilvecError if rows of one key have different vectors; `origin`: what the table is a copy of."""
        if repeats.differing:
            place = f"{self.path} (column '{self.columns[signal]}')" if origin is None else origin
            problem = (
                f"{place} has rows of one text, such as {beginning(repeats.first_text)}, with different vectors; texts "
                f"with such rows: {repeats.differing:,}."
            )
            fix = (
                "Keep one row of each text and role, or state what to do: teacher.repeats (--repeats) is first or "
                "drop. Roles with vectors of their own need different prompts."
            )
            raise DistilvecError(problem, fix)

    def keys_of(self, rows: pa.Table) -> Keys:
        """The keys of rows of the table, V16 [n], for tables of one role or with a column of roles."""
        texts = [clean_text(text, LONGEST_TEXT) for text in rows.column(self.names["text"]).to_pylist()]
        roles = _role_names(rows.column(self.names["role"])) if "role" in self.names else self.roles * len(texts)
        first_role = self.roles[0]  # of a row without one
        return as_keys(
            text_key(self.prompts[role or first_role], text) for role, text in zip(roles, texts, strict=True)
        )

    def _all_keys(self) -> tuple[KeyIndex, KeyIndex]:
        """All keys of the table, and those of several rows."""
        seen = KeyIndex()
        repeated = KeyIndex()
        for rows in self.rows(()):
            keys, counts = np.unique(rows.keys, return_counts=True)
            is_seen = seen.positions(keys) >= 0
            more_than_once = keys[is_seen | (counts > 1)]
            repeated.add(more_than_once[repeated.positions(more_than_once) < 0])
            seen.add(keys[~is_seen])
        return seen, repeated

    def manifest(self) -> Manifest | None:
        """The manifest that the table was exported with, None for other tables."""
        metadata = self.schema.metadata or {}
        if _METADATA not in metadata:
            return None
        try:
            return parse_manifest(json.loads(metadata[_METADATA]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{self.path} has damaged metadata ({first_line(error)})."
            raise DistilvecError(problem, "Export the table again.") from None

    def _rows(self, path: Path, batch: pa.RecordBatch, columns: dict[str, str], first: int) -> TableRows:
        """The rows of a batch, from number `first` on; a row without a role once for each of `self.roles`."""
        texts = batch.column(self.names["text"]).to_pylist()
        not_text = [text for text in texts if not isinstance(text, str)]
        if not_text:
            problem = f"{path} has a row whose text is {not_text[0]!r}; expected a string."
            raise DistilvecError(problem, "Remove such rows.")
        texts = [clean_text(text, LONGEST_TEXT) for text in texts]  # as the corpus does, whose keys are looked up

        row_roles = self._roles(path, batch) if "role" in self.names else [None] * len(texts)
        numbers, keys, is_document = [], [], []
        for number, role in enumerate(self.roles):
            for row, (text, row_role) in enumerate(zip(texts, row_roles, strict=True)):
                if row_role is None or number == 0:  # a row with a role counts once
                    numbers.append(row)
                    keys.append(text_key(self.prompts[row_role or role], text))
                    is_of_both = row_role is None and self.is_one_key_for_both
                    is_document.append(is_of_both or (row_role or role) == "document")

        vectors = {}
        for name, column in columns.items():
            matrix = vectors_of(column_of(batch, column), column, str(path))
            if matrix is None:
                problem = f"{path} has rows without a vector, or of different dimensions, in column '{column}'."
                raise DistilvecError(problem, "Give a vector of numbers in each row, all of one model.")
            dim = self.dims.get(name, matrix.shape[1])
            if matrix.shape[1] != dim:
                problem = (
                    f"{path} has vectors of {matrix.shape[1]} dimensions in column '{column}'; before it were {dim}"
                )
                raise DistilvecError(f"{problem}.", "Give vectors of one model.")
            vectors[name] = matrix[numbers]
        origins = np.full(len(texts), None, dtype=object)
        if "origin" in self.names:
            origins[:] = [document_name(value) for value in batch.column(self.names["origin"]).to_pylist()]
        return TableRows(
            as_keys(keys),
            np.array(texts, dtype=object)[numbers],
            vectors,
            np.array(is_document, dtype=bool),
            origins[numbers],
            first + np.array(numbers, dtype=np.int64),
        )

    def _roles(self, path: Path, batch: pa.RecordBatch) -> list[Role | None]:
        roles: list[Role | None] = _role_names(batch.column(self.names["role"]))
        for role in roles:
            if role not in (None, *ROLE_VALUES):
                raise DistilvecError(f"{path} has the role {role!r}; expected query or document.", "Rename it.")
        return roles

    def _compare(self, signal: str, repeated: KeyIndex) -> Repeats:
        """Compare the rows of repeated keys with the first row of the same key."""
        is_different = np.zeros(len(repeated), dtype=bool)
        first_text = ""
        step = max(1, _MAX_BYTES // (4 * self.dims[signal]))
        for start in range(0, len(repeated), step):
            count = min(step, len(repeated) - start)
            first_vectors = np.full((count, self.dims[signal]), np.nan, dtype=np.float32)
            for rows in self.rows((signal,)):
                slots = repeated.positions(rows.keys) - start
                chosen = np.flatnonzero((slots >= 0) & (slots < count))
                slots = slots[chosen]
                vectors = rows.vectors[signal][chosen]
                is_new = np.isnan(first_vectors[slots, 0])
                # Backwards, so that of equal keys the first row is written last.
                first_vectors[slots[is_new][::-1]] = vectors[is_new][::-1]
                distances = np.linalg.norm(vectors - first_vectors[slots], axis=1)
                differs = distances > _SAME * np.linalg.norm(first_vectors[slots], axis=1)
                if differs.any() and not first_text:
                    first_text = rows.texts[chosen[np.argmax(differs)]]
                is_different[start + slots[differs]] = True
        return Repeats(repeated, is_different, first_text)


def _role_names(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column of roles, of bytes as text."""
    return [role.decode(errors="replace") if isinstance(role, bytes) else role for role in column.to_pylist()]


@dataclass(frozen=True)
class Repeats:
    """Keys of several rows, which of them have different vectors, bool [keys], and the text of one such row."""

    keys: KeyIndex
    is_different: Array
    first_text: str

    @property
    def differing(self) -> int:
        """How many keys have rows with different vectors."""
        return int(self.is_different.sum())

    def differs(self, keys: Keys) -> Array:
        """Which of these keys, V16 [n], have rows with different vectors: bool [n]."""
        positions = self.keys.positions(keys)
        return (positions >= 0) & self.is_different[positions]


def append_rows(cache: TeacherCache, pieces: Iterable[TableRows], wanted: WantedKeys) -> Iterator[int]:
    """Append the wanted rows, regrouped to whole shards; yield the number of rows of each shard.

    The cache has no wanted key. The caller holds it for writing.
    """
    waiting: list[TableRows] = []
    count = 0
    for piece in pieces:
        new_rows = piece.select(wanted.take(piece.keys))
        waiting.append(new_rows)
        count += len(new_rows)
        while count >= cache.shard_rows:
            rows = _join(waiting)
            yield _append(cache, rows.select(slice(cache.shard_rows)))
            waiting = [rows.select(slice(cache.shard_rows, None))]
            count = len(waiting[0])
    if count:
        yield _append(cache, _join(waiting))


def _join(parts: Sequence[TableRows]) -> TableRows:
    keys = np.concatenate([part.keys for part in parts])
    texts = np.concatenate([part.texts for part in parts])
    vectors = {name: np.concatenate([part.vectors[name] for part in parts]) for name in parts[0].vectors}
    is_document = np.concatenate([part.is_document for part in parts])
    origins = np.concatenate([part.origins for part in parts])
    numbers = np.concatenate([part.numbers for part in parts])
    return TableRows(keys, texts, vectors, is_document, origins, numbers)


def _append(cache: TeacherCache, rows: TableRows) -> int:
    vectors = {name: rows.vectors[name] for name in cache.signals}
    cache.append(rows.keys, vectors, rows.texts.__getitem__, all_new=True)
    return len(rows)


def export_parquet(cache: TeacherCache, corpus: Corpus, path: Path) -> None:
    """Write the corpus's texts and their vectors, in corpus order, bit for bit as stored; without token signals."""
    dims = {name: signal.width for name, signal in cache.signals.items() if name in _COLUMNS}
    dtype = np.dtype(cache.manifest.store_dtype)
    fields = [pa.field("text", pa.string()), pa.field("role", pa.string())]
    for name, dim in dims.items():
        fields.append(pa.field(_COLUMNS[name], pa.list_(pa.from_numpy_dtype(dtype), dim)))
    manifest = replace(cache.manifest, vector_width=None, tokens=None)
    schema = pa.schema(fields, metadata={_METADATA: json.dumps(manifest.settings())})
    new = scratch(path)
    needed = len(corpus) * dtype.itemsize * sum(dims.values())
    try:
        with about("--out", path), disk_space_needed(path, needed, "What was written is removed."):
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(new, schema) as writer:
                for start in range(0, len(corpus), _ROWS):
                    rows = np.arange(start, min(start + _ROWS, len(corpus)))
                    writer.write_batch(_record_batch(cache, corpus, rows, dims, schema))
            new.replace(path)
    finally:
        remove(new)


def _record_batch(
    cache: TeacherCache, corpus: Corpus, rows: Array, dims: Mapping[str, int], schema: pa.Schema
) -> pa.RecordBatch:
    positions = cache.positions(np.asarray(corpus.keys[rows]))
    missing = rows[positions < 0]
    if len(missing):
        raise DistilvecError(
            f"{len(missing):,} rows have no vector in {cache.folder}, such as "
            f"{beginning(corpus.stored(missing[:1])[0])}.",
            "Run `distilvec cache fill` first.",
            key=KEY_NAME,
        )
    roles = [corpus.roles[source] for source in corpus.sources[rows]]
    columns = [pa.array(corpus.stored(rows)), pa.array(roles)]
    for name, dim in dims.items():
        values = cache.read(positions, name).astype(cache.signals[name].dtype).reshape(-1)
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values), dim))
    return pa.record_batch(columns, schema=schema)


def import_parquet(path: Path, cache: TeacherCache, role: Role = "document") -> int:
    """Add a table's vectors to the cache, keyed with the prompts of its manifest; return the number of new rows.

    `role` is the role of rows of a table without roles. A table that was exported from a cache with other settings, or
    has other dimensions, is refused.
    """
    manifest = cache.manifest
    with about("--table", path):
        try:
            table = VectorTable(path, manifest.prompts, role)
        except DistilvecError as error:
            if error.key != "teacher.columns":
                raise
            raise DistilvecError(error.problem, "Rename the columns.") from None  # here no option names them
        table_manifest = table.manifest()
        if table_manifest:  # the number format may differ, and the table may have more signals or fewer
            comparable = replace(
                table_manifest, store_dtype=manifest.store_dtype, pre_dense_width=manifest.pre_dense_width
            )
            comparable.check_equal(manifest, str(path))
        missing = sorted(set(cache.signals) - set(table.columns))
        if missing:
            column = _COLUMNS.get(missing[0], missing[0])
            raise DistilvecError(f"{path} has no column '{column}', which {cache.folder} has.", "Add it.")
        wanted = WantedKeys(table.check_conflicts(cache.signals))
    with cache.writing():
        for keys in cache.shard_keys():
            wanted.take(keys)
        return sum(append_rows(cache, each_about(table.rows(cache.signals), "--table", path), wanted))
