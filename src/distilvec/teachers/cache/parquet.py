"""Vectors in Parquet: caches written out for others, and tables that others wrote read in.

Columns: `text` (without prompt), `role` (query or document; optional), `teacher_embedding_final` (or `embedding`) and,
if there is one, `teacher_embedding_pre_dense`; vectors are lists or fixed-size lists of half, single or double floats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import full_disk_explained, remove, scratch
from distilvec.data.corpus import Corpus, text_key
from distilvec.data.readers import open_parquet
from distilvec.teachers.cache.conflicts import refuse_conflicts
from distilvec.teachers.cache.index import KEY
from distilvec.teachers.cache.manifest import Manifest, parse_manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cache.validate import shortened

FINAL, PRE_DENSE = "teacher_embedding_final", "teacher_embedding_pre_dense"
_FINAL_NAMES = (FINAL, "embedding")
_METADATA = b"distilvec.manifest"
_ROWS = 8192  # rows read or written at once
_COLUMNS = {"embedding": FINAL, "pre_dense": PRE_DENSE}


@dataclass(frozen=True)
class Piece:
    """Some rows of a table: texts, their roles (None where the table has no such column), vectors by signal."""

    texts: list[str]
    roles: list[Role] | None
    signals: dict[str, npt.NDArray[np.float32]]

    def keys(self, prompts: dict[Role, str], role: Role | None = None) -> npt.NDArray[Any]:
        """V16 [n], the cache keys: each text behind the prompt of its own role, else of `role`."""
        roles = self.roles or [role or "document"] * len(self.texts)
        joined = b"".join(text_key(prompts.get(kind, ""), text) for kind, text in zip(roles, self.texts, strict=True))
        return np.frombuffer(joined, dtype=KEY)


class VectorTable:
    """A Parquet file, or a folder of them, with texts and vectors. `key` is what messages call the setting it came from."""

    def __init__(self, path: Path, key: str = "table") -> None:
        self.path, self.key = path, key
        self.paths = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
        if not self.paths or not self.paths[0].is_file():
            raise DistilvecError(f"[{key}] no Parquet file at {path}. Give a .parquet file or a folder of them.")
        with open_parquet(self.paths[0], key) as file:
            schema = file.schema_arrow
        names = [name for name in _FINAL_NAMES if name in schema.names]
        if "text" not in schema.names or not names:
            raise DistilvecError(
                f"[{key}] {path} has the columns {', '.join(schema.names)}; expected 'text' and '{FINAL}' (or 'embedding')."
            )
        self.columns = {"embedding": names[0], **({"pre_dense": PRE_DENSE} if PRE_DENSE in schema.names else {})}
        self.has_roles = "role" in schema.names
        self.type = str(getattr(schema.field(names[0]).type, "value_type", "?"))
        self.widths: dict[str, int] = {}
        first = next(self.pieces(), None)
        if first is None:
            raise DistilvecError(f"[{key}] {path} has no rows.")
        self.widths = {name: values.shape[1] for name, values in first.signals.items()}

    def pieces(self, signals: tuple[str, ...] | None = None) -> Iterator[Piece]:
        """All rows in order, some thousand at a time; only the named signals' columns are read."""
        wanted = {name: self.columns[name] for name in (self.columns if signals is None else signals)}
        columns = ["text", *(["role"] if self.has_roles else []), *wanted.values()]
        start = 0
        for path in self.paths:
            with open_parquet(path, self.key) as file:
                if missing := set(columns) - set(file.schema_arrow.names):
                    raise DistilvecError(
                        f"[{self.key}] {path} has no column '{missing.pop()}'. The files of a folder need the same columns."
                    )
                for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                    yield self._piece(path, batch, wanted, start)
                    start += batch.num_rows

    def manifest(self) -> Manifest | None:
        """The manifest that the table was exported with, if it was."""
        with open_parquet(self.paths[0], self.key) as file:
            metadata = file.schema_arrow.metadata or {}
        try:
            return parse_manifest(json.loads(metadata[_METADATA])) if _METADATA in metadata else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DistilvecError(
                f"[{self.key}] {self.path} has damaged metadata of the cache it was exported from ({first_line(error)}). Export it again."
            ) from None

    def _piece(self, path: Path, batch: pa.RecordBatch, wanted: dict[str, str], start: int) -> Piece:
        texts, roles = batch.column("text").to_pylist(), batch.column("role").to_pylist() if self.has_roles else None
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DistilvecError(
                    f"[{self.key}] {path}: row {start + row} has {text!r} as its text; expected a string."
                )
        if roles and (strange := set(roles) - {"query", "document"}):
            raise DistilvecError(
                f"[{self.key}] {path}: column 'role' holds {strange.pop()!r}; expected query or document."
            )
        where = f"[{self.key}] {path}: "
        vectors = {name: _matrix(batch.column(column), where + f"column '{column}'") for name, column in wanted.items()}
        for name, found in vectors.items():
            if found.shape[1] != self.widths.get(name, found.shape[1]):
                raise DistilvecError(
                    f"{where}column '{wanted[name]}' has vectors of {found.shape[1]} dimensions; those before have {self.widths[name]}."
                )
        return Piece([text.strip() for text in texts], roles, vectors)


def export_parquet(cache: TeacherCache, corpus: Corpus, path: Path) -> None:
    """Write the corpus's texts and their vectors, in corpus order, bit for bit as they are stored; not what is told of tokens.

    Errors: DistilvecError if rows of the corpus have no vector yet.
    """
    widths = {name: signal.width for name, signal in cache.signals.items() if name in _COLUMNS}
    kind, numbers = (
        (pa.float16(), np.float16) if cache.manifest.store_dtype == "float16" else (pa.float32(), np.float32)
    )
    vectors = [pa.field(_COLUMNS[name], pa.list_(kind, width)) for name, width in widths.items()]
    metadata = {_METADATA: json.dumps(replace(cache.manifest, vector_width=None, tokens=None).settings())}
    schema = pa.schema([pa.field("text", pa.string()), pa.field("role", pa.string()), *vectors], metadata=metadata)
    new, needed = scratch(path), len(corpus) * numbers().nbytes * sum(widths.values())
    try:
        with full_disk_explained("--out", path, needed, "What was written is removed."), _writer(new, schema) as writer:
            for start in range(0, len(corpus), _ROWS):
                rows = np.arange(start, min(start + _ROWS, len(corpus)))
                positions = cache.positions(np.asarray(corpus.keys[rows]))
                if (lacking := rows[positions < 0]).size:
                    raise DistilvecError(
                        f"[cache.path] {lacking.size:,} of the rows from {start:,} on have no vector in {cache.folder}, such as "
                        f"{shortened(corpus.stored(lacking[:1])[0])}. Run `distilvec cache fill` first."
                    )
                roles = [corpus.roles[source] for source in corpus.sources[rows]]
                columns = [pa.array(corpus.stored(rows), pa.string()), pa.array(roles, pa.string())]
                for name, width in widths.items():
                    flat = cache.read(positions, name).astype(numbers).reshape(-1)
                    columns.append(pa.FixedSizeListArray.from_arrays(pa.array(flat, kind), width))
                writer.write_batch(pa.record_batch(columns, schema=schema))
            writer.close()
            new.replace(path)
    finally:
        remove(new)


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(path, schema)


def import_parquet(path: Path, cache: TeacherCache, role: Role = "document") -> int:
    """Add a table's vectors to the cache, keyed with the prompts of its manifest; how many were new.

    `role` is that of rows where the table has no such column. Errors: DistilvecError if the table was exported from a
    cache with other settings, has other widths, rows of one text that differ, or vectors that must not be stored.
    """
    table = VectorTable(path, "--table")
    found = table.manifest()
    if found is not None:
        alike = replace(found, store_dtype=cache.manifest.store_dtype, pre_dense_width=cache.manifest.pre_dense_width)
        if differences := alike.differences(cache.manifest):
            listed = "".join(f"\n  {line}" for line in differences)
            raise DistilvecError(
                f"[{table.key}] {path} holds other vectors than {cache.folder}:{listed}\nSet these back in the recipe."
            )
    if lacking := set(cache.signals) - set(table.columns):
        raise DistilvecError(
            f"[{table.key}] {path} has no column '{_COLUMNS.get(name := lacking.pop(), name)}'; {cache.folder} stores it for every text."
        )
    refuse_conflicts(table, lambda piece: [piece.keys(cache.manifest.prompts, role)], tuple(cache.signals))
    before = len(cache)
    with cache.writing():
        before = len(cache)
        for keys, piece in in_shards(
            ((piece.keys(cache.manifest.prompts, role), piece) for piece in table.pieces(tuple(cache.signals))), cache
        ):
            cache.append(keys, piece.signals, piece.texts.__getitem__)
    return len(cache) - before


def in_shards(
    pieces: Iterator[tuple[npt.NDArray[Any], Piece]], cache: TeacherCache
) -> Iterator[tuple[npt.NDArray[Any], Piece]]:
    """Rows that the cache lacks, regrouped into as many as a shard takes; equal keys within a group are left to `append`."""
    waiting: list[tuple[npt.NDArray[Any], Piece]] = []
    count = 0
    for keys, piece in pieces:
        new = np.flatnonzero(cache.positions(keys) < 0)
        while len(new):
            taken, new = np.split(new, [cache.shard_rows - count])
            waiting.append((keys[taken], _select(piece, taken)))
            count += len(taken)
            if count == cache.shard_rows:
                yield _join(waiting)
                waiting, count = [], 0
                new = new[cache.positions(keys[new]) < 0]  # the shard just written may hold some of them
    if waiting:
        yield _join(waiting)


def _select(piece: Piece, rows: npt.NDArray[np.int64]) -> Piece:
    return Piece(
        [piece.texts[row] for row in rows], None, {name: values[rows] for name, values in piece.signals.items()}
    )


def _join(parts: list[tuple[npt.NDArray[Any], Piece]]) -> tuple[npt.NDArray[Any], Piece]:
    texts = [text for _, piece in parts for text in piece.texts]
    signals = {name: np.concatenate([piece.signals[name] for _, piece in parts]) for name in parts[0][1].signals}
    return np.concatenate([keys for keys, _ in parts]), Piece(texts, None, signals)


def _matrix(column: pa.Array, where: str) -> npt.NDArray[np.float32]:
    """A column of lists as float32 [rows, width]."""
    kind = column.type
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ) or not pa.types.is_floating(kind.value_type):
        raise DistilvecError(f"{where} has type {kind}; expected lists of floats.")
    if column.null_count:
        raise DistilvecError(f"{where} has {column.null_count:,} empty rows; expected a vector in each.")
    flat = column.flatten()
    width, rest = divmod(len(flat), max(1, len(column)))
    lengths = (
        column.value_lengths().to_numpy(zero_copy_only=False)
        if not pa.types.is_fixed_size_list(kind)
        else np.array([width])
    )
    if rest or (lengths != width).any():
        raise DistilvecError(
            f"{where} has vectors of {lengths.min()} to {lengths.max()} dimensions; expected the same in every row."
        )
    if flat.null_count:
        raise DistilvecError(f"{where} has empty values inside vectors; expected numbers.")
    return flat.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(column), width)
