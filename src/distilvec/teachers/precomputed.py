"""A table of vectors as the teacher: vectors that exist already, from an API or another system."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

import numpy as np
import numpy.typing as npt

from distilvec.config.schema import Role, TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.hashing import hash_files
from distilvec.core.info import TeacherInfo
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.fill import Progress, chunks, count_missing
from distilvec.teachers.cache.index import KeyIndex
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.parquet import Rows, VectorTable, append_rows, take
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cache.validate import shortened
from distilvec.teachers.encode import cut_dimensions

_TOLERANCE = 1e-3
_FEW = 0.1  # share of vectors that may have length 1 at random
_MEASURED = 65_536  # rows whose lengths are measured when the table is opened; all are when the cache is filled


class VectorsTeacher:
    """A Parquet table as a Teacher (teachers/teacher.py). It has no tokens, so its input has no maximum length.

    A row without a role counts for its text in every role. `normalized`: all vectors have length 1 (within 1e-3).
    """

    def __init__(self, section: TeacherSection) -> None:
        if section.vectors is None:
            raise DistilvecError("[teacher.vectors] expected a Parquet file or folder; found none. Name one.")
        self.section, self.name = section, section.name or section.vectors.stem
        self.prompts: dict[Role, str] = {"query": "", "document": "", **(section.prompts or {})}
        self.table = VectorTable(section.vectors, "teacher.vectors", self.prompts)
        full = self.table.dims["embedding"]
        if section.truncate_dim is not None and section.truncate_dim > full:
            raise DistilvecError(
                f"[teacher.truncate_dim] found {section.truncate_dim}; the vectors have {full} dimensions. Give at most that."
            )
        self.dim = section.truncate_dim or full
        self.pre_dense_dim = self.table.dims.get("pre_dense")
        self.normalized = self._measure()

    def __enter__(self) -> VectorsTeacher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to free: rows are read from the file when they are needed."""

    def info(self) -> TeacherInfo:
        """The table's vectors; nothing is known of a model."""
        return TeacherInfo(
            dim=self.dim,
            normalized=self.normalized,
            prompts={**self.prompts},
            name=self.name,
            revision=self.section.revision,
            weight=self.section.weight,
            pre_dense_dim=self.pre_dense_dim,
        )

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on; the table's files are read for their content's hash."""
        if pre_dense and self.pre_dense_dim is None:
            raise DistilvecError(
                f"[teacher.vectors] {self.table.path} has no column teacher_embedding_pre_dense. Add the column."
            )
        return Manifest(
            model=self.name,
            revision=None,
            weights=hash_files(self.table.paths, key="teacher.vectors"),
            prompts=self.prompts,
            pooling=None,
            normalized=self.normalized,
            width=self.dim,
            pre_dense_width=self.pre_dense_dim if pre_dense else None,
            max_length=None,
            truncation_side=None,
            truncate_dim=self.section.truncate_dim,
            compute_dtype=self.table.type,
            backend="table",
            store_dtype=store_dtype,
        )

    def fill(self, cache: TeacherCache, corpus: Corpus, progress: Progress | None = None) -> None:
        """Put the vectors of the corpus's texts into the cache, in the table's order; resumed exactly after a kill.

        Errors: DistilvecError if texts of the corpus are not in the table, rows of one text differ (both before anything
        is written), or vectors must not be stored.
        """
        if not count_missing(cache, corpus):
            return
        self._refuse_missing(cache, corpus, self.table.check_conflicts(cache.signals))
        with cache.writing():
            needed = KeyIndex()
            for _, keys in chunks(corpus):
                needed.add(keys[cache.positions(keys) < 0])
            chosen = (take(rows, needed.positions(rows["key"]) >= 0) for rows in self.rows(cache.signals))
            done = len(corpus) - len(needed)
            for new in append_rows(cache, chosen):
                done += new
                if progress:
                    progress(done, len(corpus))

    def rows(self, signals: Iterable[str]) -> Iterator[Rows]:
        """The table's rows in order, cut to `dim` dimensions. DistilvecError if only some vectors have length 1."""
        for rows in self.table.rows(signals):
            if "embedding" in rows:
                vectors = rows["embedding"] = cut_dimensions(rows["embedding"], self.dim, self.normalized)
                if self.normalized and (wrong := _real(vectors) & ~_unit(vectors)).any():
                    raise self._mixed(rows["text"][int(np.argmax(wrong))], "the first")
            yield rows

    def _measure(self) -> bool:
        """Whether the first vectors have length 1, zero vectors left out. DistilvecError if only most of them have."""
        measured = unit = seen = 0
        other = ""
        for rows in self.table.rows(["embedding"]):
            real, close = _real(rows["embedding"]), _unit(rows["embedding"])
            if not other and (real & ~close).any():
                other = rows["text"][int(np.argmax(real & ~close))]
            measured, unit, seen = measured + int(real.sum()), unit + int((real & close).sum()), seen + len(real)
            if seen >= _MEASURED:
                break
        if _FEW * measured < unit < measured:
            raise self._mixed(other, f"{unit:,} of the first {measured:,}")
        return 0 < measured == unit

    def _mixed(self, text: str, others: str) -> DistilvecError:
        return DistilvecError(
            f"[teacher.vectors] {self.table.path}: {others} vectors have length 1, that of {shortened(text)} has not. "
            "Normalise all of them, or none."
        )

    def _refuse_missing(self, cache: TeacherCache, corpus: Corpus, table: KeyIndex) -> None:
        """DistilvecError for texts of the corpus that are neither in the cache nor in the table."""
        found = [(start, (cache.positions(keys) < 0) & (table.positions(keys) < 0)) for start, keys in chunks(corpus)]
        if lacking := sum(int(missing.sum()) for _, missing in found):
            first = next(start + int(np.argmax(missing)) for start, missing in found if missing.any())
            separate = " With task.encode=separate, pairs are looked up as two texts." if corpus.paired else ""
            raise DistilvecError(
                f"[teacher.vectors] {lacking:,} of the corpus's {len(corpus):,} texts have no vector in {self.table.path}, "
                f"such as {shortened(corpus.stored([first])[0])}. Remove these texts, or add their vectors.{separate}"
            )


def _unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    close: npt.NDArray[np.bool_] = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= _TOLERANCE
    return close


def _real(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Neither zero nor NaN or infinite."""
    real: npt.NDArray[np.bool_] = vectors.any(1) & np.isfinite(vectors).all(1)
    return real
