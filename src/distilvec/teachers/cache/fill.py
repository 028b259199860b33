"""Filling a cache: the corpus's missing texts, in corpus order, cut in shards of equal size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distilvec.core.batch import Text
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.layout import Ragged
from distilvec.teachers.cache.store import TeacherCache

Rows = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]  # (rows of the corpus that are in the cache, rows of the corpus)
Compute = Callable[
    [Rows, Callable[[int], None]], Mapping[str, npt.NDArray[Any] | Ragged]
]  # corpus rows, told how many are done

_LOOKUP = 65_536  # rows looked up together


class Source(Protocol):
    """Where vectors come from: a LocalTeacher or anything else with this method."""

    def signals(
        self, prompted: Sequence[Text], pre_dense: bool = False, progress: Callable[[int], None] | None = None
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Vectors of texts with prompts; see LocalTeacher.signals."""
        ...


def fill_cache(cache: TeacherCache, corpus: Corpus, teacher: Source, progress: Progress | None = None) -> None:
    """Embed the rows that the cache lacks. Killed at any moment and run again, it ends with the same files.

    Every shard holds `cache.shard_rows` rows, the last one the rest, so a shard's rows, and with them its batches and its
    bytes, depend on the corpus alone. Errors: DistilvecError for vectors that must not be stored, a full disk, another writer.
    """

    def compute(shard: Rows, advance: Callable[[int], None]) -> dict[str, npt.NDArray[np.float32]]:
        return teacher.signals(corpus.prompted(shard), "pre_dense" in cache.signals, advance)

    fill_shards(cache, corpus, compute, progress)


def fill_shards(cache: TeacherCache, corpus: Corpus, compute: Compute, progress: Progress | None = None) -> None:
    """`compute` the signals of the rows that the cache lacks, a shard at a time, and append them; see `fill_cache`."""
    tell = progress or (lambda done, total: None)
    rows = len(corpus)
    missing = count_missing(cache, corpus)
    tell(rows - missing, rows)
    if not missing:
        return
    with cache.writing():
        missing = count_missing(cache, corpus)  # another process may have added some
        for shard in _shards(cache, corpus):
            done = rows - missing
            signals = compute(shard, lambda texts, done=done: tell(done + texts, rows))  # type: ignore[misc]
            cache.append(np.asarray(corpus.keys[shard]), signals, corpus.stored(shard).__getitem__)
            missing -= len(shard)
    tell(rows, rows)


def count_missing(cache: TeacherCache, corpus: Corpus) -> int:
    """How many rows of the corpus have no vector yet."""
    return sum(int((cache.positions(keys) < 0).sum()) for _, keys in _chunks(corpus))


def _shards(cache: TeacherCache, corpus: Corpus) -> Iterator[Rows]:
    """Rows that are missing, in order, as many as go in a shard, of equal keys the first; looked up as the cache grows."""
    waiting = np.empty(0, dtype=np.int64)
    for start, keys in _chunks(corpus):
        waiting = np.concatenate([waiting, start + np.flatnonzero(cache.positions(keys) < 0)])
        waiting = waiting[np.sort(np.unique(np.asarray(corpus.keys[waiting]), return_index=True)[1])]
        while len(waiting) >= cache.shard_rows:
            yield waiting[: cache.shard_rows]
            waiting = waiting[cache.shard_rows :]
    if len(waiting):
        yield waiting


def _chunks(corpus: Corpus) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    for start in range(0, len(corpus), _LOOKUP):
        yield start, np.asarray(corpus.keys[start : start + _LOOKUP])
