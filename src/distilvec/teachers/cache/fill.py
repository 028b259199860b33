"""Filling a cache with the corpus's missing texts, in corpus order, in shards of equal size; caches to reuse instead.

Every shard holds `cache.shard_rows` rows, the last one the rest, so that a shard's rows, batches and bytes depend on
the corpus alone: killed at any moment and run again, filling ends with the same files. Shards are planned before the
first is computed, so that several processes can compute them (parts.py, verbs/cache/cluster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs
from distilvec.data.corpus import Corpus
from distilvec.data.corpus_files import first_occurrences
from distilvec.teachers.cache.index import Keys
from distilvec.teachers.cache.manifest import Manifest, read_manifest
from distilvec.teachers.cache.signals import Array, Ragged, Rows, compress, join
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.cache.validate import refuse
from distilvec.teachers.cached import BatchTeacher
from distilvec.teachers.encode import CPU_FLOOR, EmbeddedBatch, plan_batches

Planned = tuple[int, Rows]  # a shard to compute: its number, its rows of the corpus
Batches = Generator[EmbeddedBatch, None, None]
Compute = Callable[[Rows], Batches]  # signals of corpus rows, batch by batch

MOST_ROWS = 2048  # of a shard with token signals, which is held in memory until it is whole
_LOOKUP = 65_536  # rows looked up together


@dataclass(frozen=True)
class TokenSource:
    """Source of a cache's token signals: a model, its tokens of each row (`lengths` [rows]), pairs, the batch size."""

    teacher: BatchTeacher
    lengths: Rows | Array
    alignment: AlignmentStore | None
    batch_tokens: int
    device: torch.device


@dataclass(frozen=True)
class FillStep:
    """How far a cache is filled: `done` of `total` rows of the corpus, and the same in rows of average length.

    `note`: what the work has cost until now.
    """

    done: int
    total: int
    work: float
    note: str = ""


FillSteps = Generator[FillStep, None, None]


class Unfinished(Exception):
    """Signals of some rows of a shard (numbered from 0), computed before its cause ended the work."""

    def __init__(self, rows: Rows, signals: Mapping[str, Array]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows, self.signals = rows, signals


def fill_cache(cache: TeacherCache, corpus: Corpus, teacher: Any) -> None:
    """Embed the rows that the cache lacks with `teacher.batches(texts, pre_dense)`; see ModelEmbedder.batches.

    Errors: as `fill_steps`.
    """
    for _ in fill_steps(cache, corpus, partial(compute_vectors, cache.manifest, corpus, teacher)):
        pass


def fill_steps(
    cache: TeacherCache,
    corpus: Corpus,
    compute: Compute,
    ahead: Callable[[Iterator[Planned]], Iterator[Planned]] = iter,
) -> FillSteps:
    """`compute` the signals of the rows that the cache lacks, a shard at a time, and append them; yield every batch.

    `ahead` passes the planned shards on, in any order; it may begin several of them before it passes on the first.
    Of a shard that ends in Unfinished the rows until then are appended, and its cause is raised. The cache is held for
    writing until the iterator ends or is closed.
    Errors: DistilvecError for vectors that must not be stored, or a full disk.
    """
    rows, missing = len(corpus), count_missing(cache, corpus)
    yield FillStep(rows - missing, rows, rows - missing)
    if not missing:
        return
    with cache.writing():
        done = rows - count_missing(cache, corpus)  # another process may have added some
        for number, shard in ahead(plan_shards(cache, corpus)):
            computed: list[EmbeddedBatch] = []
            texts, work = done, float(done)
            try:
                with closing(compute(shard)) as batches:
                    for batch in batches:
                        computed.append(batch)
                        texts += len(batch.rows)
                        work += batch.work * len(shard)
                        yield FillStep(texts, rows, work)
            except Unfinished as part:  # of an API: its vectors are paid for
                finished = shard[part.rows]
                cache.append(np.asarray(corpus.keys[finished]), part.signals, corpus.stored(finished).__getitem__)
                raise part.__cause__ or part from None
            signals = in_order(computed)
            cache.append(np.asarray(corpus.keys[shard]), signals, corpus.stored(shard).__getitem__, number)
            done += len(shard)
        cache.sort_shards()
    yield FillStep(rows, rows, rows)


def in_order(batches: Sequence[EmbeddedBatch]) -> dict[str, Array | Ragged]:
    """Return the signals of all batches in the order of the texts."""
    back = np.argsort(np.concatenate([batch.rows for batch in batches]))
    signals: dict[str, Array | Ragged] = {}
    for name, first in batches[0].signals.items():
        parts = [batch.signals[name] for batch in batches]
        signals[name] = join(parts).take(back) if isinstance(first, Ragged) else np.concatenate(parts)[back]
    return signals


def plan_shards(cache: TeacherCache, corpus: Corpus) -> Iterator[Planned]:
    """Rows that the cache lacks when this begins, in order, a shard at a time, with the shard's number.

    Of equal keys the first row is planned. When some shards are stored, the plan of the others stays as it was.
    """
    return zip(cache.free_numbers(), _shards(cache, corpus), strict=False)


def _shards(cache: TeacherCache, corpus: Corpus) -> Iterator[Rows]:
    first, size = first_occurrences(np.asarray(corpus.keys)), cache.shard_rows
    waiting = np.empty(0, dtype=np.int64)
    for start, keys in chunks(corpus):
        first[start : start + len(keys)] &= cache.positions(keys) < 0
    for start in range(0, len(first), _LOOKUP):
        waiting = np.concatenate([waiting, start + np.flatnonzero(first[start : start + _LOOKUP])])
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if len(waiting):
        yield waiting


def count_missing(cache: TeacherCache, corpus: Corpus) -> int:
    """Number of the corpus's rows that have no vector yet."""
    return sum(int((cache.positions(keys) < 0).sum()) for _, keys in chunks(corpus))


def chunks(corpus: Corpus) -> Iterator[tuple[int, Keys]]:
    """The corpus's keys, some at a time, with the number of their first row."""
    for start in range(0, len(corpus), _LOOKUP):
        yield start, np.asarray(corpus.keys[start : start + _LOOKUP])


def superset_caches(folder: Path, fingerprint: str) -> list[TeacherCache]:
    """Caches next to `folder` with all signals of the manifest with this fingerprint, and more; no damaged ones."""
    found = []
    for path in sorted(folder.parent.glob(f"*/{MANIFEST}")):
        with suppress(DistilvecError):
            if fingerprint in read_manifest(path).subsets:
                found.append(TeacherCache.open(path.parent))
    return found


def complete_cache(folder: Path, fingerprint: str, corpus: Corpus) -> TeacherCache | None:
    """A superset cache next to `folder` with every row of the corpus, unless `folder` itself has them all."""
    supersets = superset_caches(folder, fingerprint)
    if supersets and (folder / MANIFEST).exists() and not count_missing(TeacherCache.open(folder), corpus):
        return None
    return next((cache for cache in supersets if not count_missing(cache, corpus)), None)


def compute_vectors(manifest: Manifest, corpus: Corpus, teacher: Any, rows: Rows) -> Batches:
    """Vectors of these rows by a `teacher` with the method `batches`; see ModelEmbedder.batches."""
    batches: Batches = teacher.batches(corpus.prompted(rows), "pre_dense" in manifest.signals)
    return batches


def compute_tokens(manifest: Manifest, corpus: Corpus, source: TokenSource, rows: Rows) -> Batches:
    """Signals of a cache with this manifest for these rows; computed in batches of like length."""
    lengths, budget = source.lengths[rows].astype(np.int64), source.batch_tokens
    for chosen in plan_batches(lengths, budget, min(budget, CPU_FLOOR)):
        numbers = torch.from_numpy(rows[chosen])
        alignment = source.alignment.batch(rows[chosen]) if source.alignment else None
        batch = TextBatch(numbers, {}, torch.zeros_like(numbers), alignment=alignment).to(source.device)
        signals = _stored_signals(manifest, corpus, source.teacher.signals(batch), rows[chosen])
        yield EmbeddedBatch(chosen, signals, float(lengths[chosen].sum() / lengths.sum()))


def _stored_signals(manifest: Manifest, corpus: Corpus, found: ModelOutputs, rows: Rows) -> dict[str, Any]:
    """Signals of a batch by name. DistilvecError that quotes the first text with NaN or infinity."""
    for name, layers in (("hidden states", found.hidden_layers), ("Gram matrices", found.grams)):
        for values in layers.values():
            finite = torch.isfinite(values).flatten(1).all(1).cpu().numpy()
            refuse(finite, f"{name} hold NaN or infinity", corpus.stored(rows).__getitem__)
    vectors = {"embedding": found.embedding, "pre_dense": found.pre_dense, "vector": found.vector}
    kept: dict[str, Any] = {
        name: values.float().cpu().numpy()
        for name, values in vectors.items()
        if name in manifest.signals and values is not None
    }
    return kept | (compress(found, manifest.tokens) if manifest.tokens else {})
