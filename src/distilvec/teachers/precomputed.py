"""A teacher that is a table: vectors that exist already, from an API or another system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.config.schema import Role, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.hashing import hash_files
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.conflicts import refuse_conflicts
from distilvec.teachers.cache.fill import count_missing
from distilvec.teachers.cache.index import KeyIndex
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.parquet import Piece, VectorTable, in_shards
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cache.validate import cut_dimensions, shortened

_CHUNK = 65_536
_TOLERANCE = 1e-3
_FEW = 0.1  # share of vectors that have length 1 by chance
_MEASURED = 65_536  # rows whose lengths are looked at when the table is opened; all are when the cache is filled


class VectorsTeacher:
    """Stands where a model would; its vectors go into the cache by `fill_from_table`. `max_length` is None: it has no tokens.

    A row without a role stands for its text in every role. `normalized`: whether all vectors have length 1 (within 1e-3).
    """

    def __init__(self, section: TeacherSection) -> None:
        if section.vectors is None:
            raise DistilvecError("[teacher.vectors] expected a Parquet file or folder; found none.")
        self.table = VectorTable(section.vectors, "teacher.vectors")
        full = self.table.widths["embedding"]
        if section.truncate_dim is not None and section.truncate_dim > full:
            raise DistilvecError(
                f"[teacher.truncate_dim] found {section.truncate_dim}; the vectors have {full} dimensions."
            )
        self.name = section.name or section.vectors.stem
        self.truncate_dim = section.truncate_dim
        self.width = section.truncate_dim or full
        self.pre_dense_width: int | None = self.table.widths.get("pre_dense")
        self.max_length: int | None = None
        self.prompts: dict[Role, str] = {"query": "", "document": "", **(section.prompts or {})}
        self.normalized = self._measure()

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """What the vectors depend on: the content of the table's files, which are read for it."""
        if pre_dense and self.pre_dense_width is None:
            raise DistilvecError(f"[teacher.vectors] {self.table.path} has no column teacher_embedding_pre_dense.")
        return Manifest(
            model=self.name,
            revision=None,
            weights=hash_files(self.table.paths, key="teacher.vectors"),
            prompts=self.prompts,
            pooling=None,
            normalized=self.normalized,
            width=self.width,
            pre_dense_width=self.pre_dense_width if pre_dense else None,
            max_length=None,
            truncation_side=None,
            truncate_dim=self.truncate_dim,
            compute_dtype=self.table.type,
            backend="table",
            store_dtype=store_dtype,
        )

    def pieces(self, signals: tuple[str, ...]) -> Iterator[Piece]:
        """The table's rows in order, cut to `width` dimensions. DistilvecError where a vector has not length 1 and others have."""
        for piece in self.table.pieces(signals):
            if "embedding" in piece.signals:
                vectors = cut_dimensions(piece.signals["embedding"], self.width, self.normalized)
                if self.normalized and (wrong := ~_unit(vectors) & vectors.any(1) & np.isfinite(vectors).all(1)).any():
                    raise DistilvecError(
                        f"[teacher.vectors] {self.table.path}: the first vectors have length 1, that of "
                        f"{shortened(piece.texts[int(np.argmax(wrong))])} has not. Normalise all of them, or none."
                    )
                piece.signals["embedding"] = vectors
            yield piece

    def keys(self, piece: Piece) -> list[npt.NDArray[Any]]:
        """The cache keys of some rows: one array, or one for each prompt where the table has no roles."""
        if piece.roles is not None:
            return [piece.keys(self.prompts)]
        roles: list[Role] = ["query", "document"]
        return [
            piece.keys(self.prompts, role)
            for role in roles[: 1 if self.prompts["query"] == self.prompts["document"] else 2]
        ]

    def _measure(self) -> bool:
        """Whether the first vectors have length 1, zero vectors left out. DistilvecError where most have and some have not."""
        seen = measured = unit = 0
        other = ""
        for piece in self.table.pieces(("embedding",)):
            vectors = piece.signals["embedding"]
            real = vectors.any(1) & np.isfinite(vectors).all(1)
            close = _unit(vectors)
            if not other and (real & ~close).any():
                other = piece.texts[int(np.argmax(real & ~close))]
            seen, measured, unit = seen + len(piece.texts), measured + int(real.sum()), unit + int((real & close).sum())
            if seen >= _MEASURED:
                break
        if _FEW * measured < unit < measured:
            raise DistilvecError(
                f"[teacher.vectors] {self.table.path}: {unit:,} of the first {measured:,} vectors have length 1, that of "
                f"{shortened(other)} has not. Normalise all of them, or none."
            )
        return 0 < measured == unit


def fill_from_table(
    cache: TeacherCache, corpus: Corpus, teacher: VectorsTeacher, progress: Callable[[int, int], None] | None = None
) -> None:
    """Put the table's vectors of the corpus's texts into the cache, in the table's order; exact resume as `fill_cache`.

    `progress(rows of the corpus that are in the cache, rows)`. Errors: DistilvecError if texts of the corpus are not in the
    table, rows of one text differ (both before anything is written), or vectors must not be stored.
    """
    if not count_missing(cache, corpus):
        return
    _refuse_missing(cache, corpus, teacher, refuse_conflicts(teacher.table, teacher.keys, tuple(cache.signals)))
    with cache.writing():
        _fill(cache, corpus, teacher, progress or (lambda done, rows: None))


def _fill(cache: TeacherCache, corpus: Corpus, teacher: VectorsTeacher, progress: Callable[[int, int], None]) -> None:
    """Append the rows that the cache lacks, which is held for writing."""
    rows, needed = len(corpus), KeyIndex()
    for start in range(0, rows, _CHUNK):
        keys = np.asarray(corpus.keys[start : start + _CHUNK])
        needed.add(keys[cache.positions(keys) < 0])

    def wanted() -> Iterator[tuple[npt.NDArray[Any], Piece]]:
        for piece in teacher.pieces(tuple(cache.signals)):
            for keys in teacher.keys(piece):
                chosen = np.flatnonzero(needed.positions(keys) >= 0)
                yield (
                    keys[chosen],
                    Piece([piece.texts[row] for row in chosen], None, {k: v[chosen] for k, v in piece.signals.items()}),
                )

    done = rows - len(needed)
    for keys, piece in in_shards(wanted(), cache):
        cache.append(keys, piece.signals, piece.texts.__getitem__)
        done += len(keys)
        progress(min(done, rows), rows)


def _refuse_missing(cache: TeacherCache, corpus: Corpus, teacher: VectorsTeacher, table: KeyIndex) -> None:
    """DistilvecError where texts of the corpus are neither in the cache nor among the table's keys."""
    lacking, example = 0, -1
    for start in range(0, len(corpus), _CHUNK):
        keys = np.asarray(corpus.keys[start : start + _CHUNK])
        rows = start + np.flatnonzero((cache.positions(keys) < 0) & (table.positions(keys) < 0))
        lacking, example = lacking + len(rows), example if example >= 0 or not len(rows) else int(rows[0])
    if lacking:
        pairs = (
            " Pairs that are one input are looked for as one text; with task.encode=separate they are two."
            if corpus.paired
            else ""
        )
        raise DistilvecError(
            f"[teacher.vectors] {lacking:,} of the corpus's {len(corpus):,} texts have no vector in {teacher.table.path}, such as "
            f"{shortened(corpus.stored([example])[0])}. Take these texts out of the corpus, or add their vectors.{pairs}"
        )


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    close: npt.NDArray[np.bool_] = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= _TOLERANCE
    return close
