"""Vectors in Parquet: export of caches, and tables of others.

Columns: `text` (without prompt), `role` (query or document; optional), `teacher_embedding_final` (or `embedding`) and
optionally `teacher_embedding_pre_dense`; vectors are lists or fixed-size lists of half, single or double floats. Other
names are given as `columns`, or found (columns.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import full_disk_explained, remove, scratch
from distilvec.data.corpus import Corpus, text_key
from distilvec.teachers.cache.columns import FINAL, PRE_DENSE, find_columns
from distilvec.teachers.cache.index import KEY, KeyIndex
from distilvec.teachers.cache.manifest import Manifest, parse_manifest
from distilvec.teachers.cache.shard import KEY_NAME
from distilvec.teachers.cache.signals import Array
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cache.validate import shortened

_COLUMNS = {"embedding": FINAL, "pre_dense": PRE_DENSE}
_METADATA = b"distilvec.manifest"
_ROWS = 8192  # rows read or written at once
_ROUNDING = 2e-3  # of a vector's largest value: more than rounding to float16 or bfloat16 changes
_MOST = 1 << 28  # bytes of repeated texts' vectors in memory together

Rows = dict[str, Array]  # "key" (V16), "text" (objects) and signals, float32 [n, dim], of some rows of a table


class VectorTable:
    """A Parquet file, or a folder of them, with texts and vectors.

    `prompts` are prepended for the rows' cache keys. Rows of a table without roles have the role `role`; if that is
    None, they count for both roles. `key` names the setting that the path came from, for messages.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        prompts: dict[Role, str],
        role: Role | None = None,
        columns: Mapping[Any, str] | None = None,
    ) -> None:
        self.path, self.key, self.prompts = path, key, prompts
        self.roles: list[Role] = ["query", "document"] if role is None else [role]
        if prompts["query"] == prompts["document"]:
            self.roles = self.roles[:1]
        self.paths = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(key, f"no Parquet file at {path}.", "Give a .parquet file or a folder of them.")
        with self._readable(self.paths[0]):
            self.schema = pq.read_schema(self.paths[0])
        names = self.schema.names
        self.names = find_columns(names, columns, str(path), key)
        vectors = self.names["embedding"]
        self.columns = {"embedding": vectors, **({"pre_dense": PRE_DENSE} if PRE_DENSE in names else {})}
        self.type = str(getattr(self.schema.field(vectors).type, "value_type", "?"))
        self.dims: dict[str, int] = {}
        first = next(self.rows(self.columns), None)
        if first is None:
            raise self._error("has no rows. Give a table with texts and vectors.")
        self.dims = {name: first[name].shape[1] for name in self.columns}

    def rows(self, signals: Iterable[str]) -> Iterator[Rows]:
        """All rows in order, some thousand at a time; only the columns of these signals are read."""
        columns = {name: self.columns[name] for name in signals}
        names = [*(self.names[part] for part in ("text", "role") if part in self.names), *columns.values()]
        for path in self.paths:
            with self._readable(path):
                file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)  # else all of it comes into memory
                for batch in file.iter_batches(batch_size=_ROWS, columns=names):
                    if batch.num_rows:
                        yield self._rows(path, batch, columns)

    def check_conflicts(self, signals: Iterable[str]) -> KeyIndex:
        """All keys of the table. DistilvecError for rows of one key with different vectors."""
        seen, repeated = KeyIndex(), KeyIndex()
        for rows in self.rows(()):
            keys, counts = np.unique(rows["key"], return_counts=True)
            known = seen.positions(keys) >= 0
            again = keys[known | (counts > 1)]
            repeated.add(again[repeated.positions(again) < 0])
            seen.add(keys[~known])
        for signal in signals:
            step = max(1, _MOST // (4 * self.dims[signal]))
            for start in range(0, len(repeated), step):
                self._compare(signal, repeated, start, min(step, len(repeated) - start))
        return seen

    def manifest(self) -> Manifest | None:
        """The manifest that the table was exported with, None for other tables."""
        metadata = self.schema.metadata or {}
        try:
            return parse_manifest(json.loads(metadata[_METADATA])) if _METADATA in metadata else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._error(f"has damaged metadata ({first_line(error)}). Export the table again.") from None

    def _error(self, problem: str, path: Path | None = None) -> DistilvecError:
        return DistilvecError(self.key, f"{path or self.path} {problem}")

    @contextmanager
    def _readable(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, KeyError, UnicodeError) as error:
            fix = "Give Parquet files with equal columns."
            raise self._error(f"cannot be read as Parquet: {first_line(error)}. {fix}", path) from None

    def _rows(self, path: Path, batch: pa.RecordBatch, columns: dict[str, str]) -> Rows:
        texts = batch.column(self.names["text"]).to_pylist()
        roles = [batch.column(self.names["role"]).to_pylist()] if "role" in self.names else None
        roles = roles or [[role] * len(texts) for role in self.roles]
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise self._error(f"has a row whose text is {wrong[0]!r}; expected a string. Remove such rows.", path)
        if unknown := {*roles[0]} - {"query", "document"}:
            raise self._error(f"has the role {unknown.pop()!r}; expected query or document. Rename it.", path)
        texts = [text.strip() for text in texts]
        keys = [text_key(self.prompts[role], text) for each in roles for role, text in zip(each, texts, strict=True)]
        key, text = np.frombuffer(b"".join(keys), dtype=KEY), np.array(texts * len(roles), dtype=object)
        found: Rows = {"key": key, "text": text}
        for name, column in columns.items():
            vectors = self._matrix(batch.column(column), column, path)
            known = self.dims.get(name, vectors.shape[1])
            if vectors.shape[1] != known:
                problem = f"has vectors of {vectors.shape[1]} dimensions (column '{column}'); those before have {known}"
                raise self._error(f"{problem}. Give vectors of one model.", path)
            found[name] = np.tile(vectors, (len(roles), 1))
        return found

    def _matrix(self, column: pa.Array, name: str, path: Path) -> Array:
        """A column of lists as float32 [rows, dim]."""
        is_list = isinstance(column.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType)
        if not is_list or not pa.types.is_floating(column.type.value_type):
            raise self._error(f"has type {column.type} in column '{name}'; expected lists of floats. Convert it.", path)
        flat, lengths = column.flatten(), pc.list_value_length(column).drop_null().unique().to_pylist()
        if column.null_count or flat.null_count:
            raise self._error(f"has empty rows or values in column '{name}'. Give a vector of numbers in each.", path)
        if len(lengths) > 1:
            found = f"vectors of {min(lengths)} to {max(lengths)} dimensions"
            raise self._error(f"has {found} in column '{name}'. Give vectors of one model.", path)
        return flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(column), lengths[0])

    def _compare(self, signal: str, repeated: KeyIndex, start: int, count: int) -> None:
        """Compare the rows of `count` repeated keys from position `start` on with the first row of the same key."""
        first = np.full((count, self.dims[signal]), np.nan, dtype=np.float32)
        for rows in self.rows((signal,)):
            slots = repeated.positions(rows["key"]) - start
            chosen = np.flatnonzero((slots >= 0) & (slots < count))
            slots, vectors = slots[chosen], rows[signal][chosen]
            new = np.isnan(first[slots, 0])
            first[slots[new][::-1]] = vectors[new][::-1]  # the first of equal keys is written last
            distance, size = (np.abs(values).max(1, initial=0) for values in (vectors - first[slots], first[slots]))
            if (apart := distance > _ROUNDING * size).any():
                text = shortened(rows["text"][chosen[np.argmax(apart)]])
                raise self._error(
                    f"has rows of the text {text} with different vectors (column '{self.columns[signal]}'). Keep one "
                    "row of each text and role; roles with vectors of their own need different prompts."
                )


def take(rows: Rows, chosen: Any) -> Rows:
    """Some rows, by a mask, numbers or a slice."""
    return {name: values[chosen] for name, values in rows.items()}


def append_rows(cache: TeacherCache, pieces: Iterable[Rows]) -> Iterator[int]:
    """Append the rows that the cache lacks, regrouped to whole shards; yield the number of new rows of each shard."""
    waiting, count = list[Rows](), 0

    def append(whole: Rows, size: int | None) -> int:
        before, rows = len(cache), take(whole, slice(size))
        cache.append(rows["key"], {name: rows[name] for name in cache.signals}, rows["text"].__getitem__)
        return len(cache) - before

    def joined() -> Rows:
        return {name: np.concatenate([part[name] for part in waiting]) for name in waiting[0]}

    for rows in pieces:
        waiting.append(take(rows, cache.positions(rows["key"]) < 0))
        count += len(waiting[-1]["key"])
        while count >= cache.shard_rows:
            whole = joined()
            yield append(whole, cache.shard_rows)
            rest = take(whole, slice(cache.shard_rows, None))  # the shard just written may hold some of their keys
            waiting = [take(rest, cache.positions(rest["key"]) < 0)]
            count = len(waiting[0]["key"])
    if count:
        yield append(joined(), None)


def export_parquet(cache: TeacherCache, corpus: Corpus, path: Path) -> None:
    """Write the corpus's texts and their vectors, in corpus order, bit for bit as stored; without token signals.

    Errors: DistilvecError if rows of the corpus have no vector yet.
    """
    dims = {name: signal.width for name, signal in cache.signals.items() if name in _COLUMNS}
    dtype = np.dtype(cache.manifest.store_dtype)
    kind = pa.from_numpy_dtype(dtype)
    vectors = [pa.field(_COLUMNS[name], pa.list_(kind, dim)) for name, dim in dims.items()]
    settings = replace(cache.manifest, vector_width=None, tokens=None).settings()
    fields = [pa.field("text", pa.string()), pa.field("role", pa.string()), *vectors]
    schema = pa.schema(fields, metadata={_METADATA: json.dumps(settings)})
    new, needed = scratch(path), len(corpus) * dtype.itemsize * sum(dims.values())
    try:
        with full_disk_explained("--out", path, needed, "What was written is removed."):
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(new, schema) as writer:
                for start in range(0, len(corpus), _ROWS):
                    rows = np.arange(start, min(start + _ROWS, len(corpus)))
                    positions = cache.positions(np.asarray(corpus.keys[rows]))
                    if (lacking := rows[positions < 0]).size:
                        raise DistilvecError(
                            KEY_NAME,
                            f"{lacking.size:,} rows have no vector in {cache.folder}, such as "
                            f"{shortened(corpus.stored(lacking[:1])[0])}.",
                            "Run `distilvec cache fill` first.",
                        )
                    columns = [pa.array(corpus.stored(rows)), pa.array([corpus.roles[s] for s in corpus.sources[rows]])]
                    for name, dim in dims.items():
                        flat = cache.read(positions, name).astype(dtype).reshape(-1)
                        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), dim))
                    writer.write_batch(pa.record_batch(columns, schema=schema))
            new.replace(path)
    finally:
        remove(new)


def import_parquet(path: Path, cache: TeacherCache, role: Role = "document") -> int:
    """Add a table's vectors to the cache, keyed with the prompts of its manifest; return the number of new rows.

    `role` is the role of rows of a table without roles. Errors: DistilvecError if the table was exported from a cache
    with other settings, has other dimensions, rows of one text that differ, or vectors that must not be stored.
    """
    table, manifest = VectorTable(path, "--table", cache.manifest.prompts, role), cache.manifest
    if found := table.manifest():
        alike = replace(found, store_dtype=manifest.store_dtype, pre_dense_width=manifest.pre_dense_width)
        alike.check_equal(manifest, table.key, str(path))
    if lacking := sorted(set(cache.signals) - set(table.columns)):
        column = _COLUMNS.get(lacking[0], lacking[0])
        raise DistilvecError(table.key, f"{path} has no column '{column}', which {cache.folder} has.", "Add it.")
    table.check_conflicts(cache.signals)
    with cache.writing():
        return sum(append_rows(cache, table.rows(cache.signals)))
