"""Filling a cache with the corpus's missing texts, in corpus order, in shards of equal size; caches to reuse instead.

Every shard but the last holds `cache.shard_rows` rows, so that a shard's rows, batches and bytes depend on the corpus
alone: killed at any moment and run again, filling ends with the same files. Shards are planned before the first is
computed, so that several processes can compute them (parts.py, verbs/cache/cluster.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import Text, TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs
from distilvec.data.corpus import Corpus
from distilvec.data.corpus_files import first_occurrences
from distilvec.teachers.cache.index import Keys
from distilvec.teachers.cache.manifest import Manifest, read_manifest
from distilvec.teachers.cache.signals import Array, Ragged, Rows, compress_tokens, join_ragged
from distilvec.teachers.cache.store import MANIFEST, Describe, TeacherCache, refuse
from distilvec.teachers.embedder import BatchTeacher
from distilvec.teachers.encode import CPU_FLOOR, EmbeddedBatch, plan_batches

Planned = tuple[int, Rows]  # a shard to compute: its number, its rows of the corpus
Batches = Generator[EmbeddedBatch, None, None]
Compute = Callable[[Rows], Batches]  # signals of corpus rows, batch by batch

TOKEN_SHARD_ROWS = 2048  # at most: a shard with token signals is in memory until it is whole
_LOOKUP = 65_536  # rows looked up together


class VectorModel(Protocol):
    """A model that computes vectors."""

    def batches(self, prompted: Sequence[Text], pre_dense: bool = False) -> Iterator[EmbeddedBatch]:
        """Embed texts with their prompts: "embedding" of each batch, and "pre_dense" if asked for."""
        ...


class KeyedTexts(Protocol):
    """Texts that a cache stores vectors of: a Corpus, or PromptedTexts (evaluation_vectors.py)."""

    def __len__(self) -> int: ...

    @property
    def keys(self) -> Keys:
        """V16 [n]: `text_key` of each prompt and text."""
        ...

    def stored(self, rows: Rows) -> list[str]:
        """The texts of rows, without prompts, for messages."""
        ...

    def prompted(self, rows: Rows) -> Sequence[Text]:
        """The texts of rows as models read them."""
        ...


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
        self.rows = rows
        self.signals = signals


def fill_cache(cache: TeacherCache, corpus: KeyedTexts, teacher: VectorModel) -> None:
    """Embed the rows that the cache lacks. Errors: see `fill_steps`."""
    for _ in fill_steps(cache, corpus, partial(compute_vectors, cache.manifest, corpus, teacher)):
        pass


def fill_steps(
    cache: TeacherCache,
    corpus: KeyedTexts,
    compute: Compute,
    ahead: Callable[[Iterator[Planned]], Iterator[Planned]] = iter,
) -> FillSteps:
    """`compute` the signals of the rows that the cache lacks, a shard at a time, and append them; yield every batch.

    `ahead` passes the planned shards on, in any order; it may begin several of them before it passes on the first.
    Of a shard that ends in Unfinished the rows until then are appended, and its cause is raised. The cache is held for
    writing until the iterator ends or is closed: two processes at once would compute the same shards.
    Errors: DistilvecError for vectors that must not be stored, or a full disk.
    """
    total = len(corpus)
    missing = count_missing(cache, corpus)
    yield FillStep(total - missing, total, total - missing)
    if not missing:
        return
    with cache.writing():
        done = total - count_missing(cache, corpus)  # another process may have added some before this one held the lock
        for number, rows in ahead(plan_shards(cache, corpus)):
            computed: list[EmbeddedBatch] = []
            texts = done
            work = float(done)
            try:
                with closing(compute(rows)) as batches:
                    for batch in batches:
                        computed.append(batch)
                        texts += len(batch.rows)
                        work += batch.work * len(rows)
                        yield FillStep(texts, total, work)
            except Unfinished as part:  # vectors of an API are paid for
                finished = rows[part.rows]
                keys, texts_of_part = np.asarray(corpus.keys[finished]), corpus.stored(finished)
                cache.append(keys, part.signals, texts_of_part.__getitem__, all_new=True)
                raise part.__cause__ or part from None
            signals = in_text_order(computed)
            cache.append(np.asarray(corpus.keys[rows]), signals, corpus.stored(rows).__getitem__, number, all_new=True)
            done += len(rows)
        cache.sort_shards()  # `ahead` may have passed them on in another order
    yield FillStep(total, total, total)


def in_text_order(batches: Sequence[EmbeddedBatch]) -> dict[str, Array | Ragged]:
    """Return the signals of all batches in the order of the texts."""
    back = np.argsort(np.concatenate([batch.rows for batch in batches]))
    signals: dict[str, Array | Ragged] = {}
    for name, first in batches[0].signals.items():
        parts = [batch.signals[name] for batch in batches]
        signals[name] = join_ragged(parts).take(back) if isinstance(first, Ragged) else np.concatenate(parts)[back]
    return signals


def plan_shards(cache: TeacherCache, corpus: KeyedTexts) -> Iterator[Planned]:
    """Rows that the cache lacks when this begins, in order, a shard at a time, with the shard's number.

    Of equal keys the first row is planned. When some shards are stored, the plan of the others stays as it was.
    """
    return zip(cache.free_numbers(), _missing_rows(cache, corpus), strict=False)


def _missing_rows(cache: TeacherCache, corpus: KeyedTexts) -> Iterator[Rows]:
    """Rows to compute, `cache.shard_rows` at a time."""
    is_missing = first_occurrences(np.asarray(corpus.keys))
    # All rows are looked up before the first shard is planned: the caller appends to the cache between two shards.
    for start, keys in key_chunks(corpus):
        is_missing[start : start + len(keys)] &= cache.positions(keys) < 0
    waiting = np.empty(0, dtype=np.int64)
    for start in range(0, len(is_missing), _LOOKUP):
        rows = start + np.flatnonzero(is_missing[start : start + _LOOKUP])
        waiting = np.concatenate([waiting, rows])
        while len(waiting) >= cache.shard_rows:
            yield waiting[: cache.shard_rows]
            waiting = waiting[cache.shard_rows :]
    if len(waiting):
        yield waiting


def count_missing(cache: TeacherCache, corpus: KeyedTexts) -> int:
    """Number of the corpus's rows that have no vector yet."""
    return sum(int((cache.positions(keys) < 0).sum()) for _, keys in key_chunks(corpus))


def key_chunks(corpus: KeyedTexts) -> Iterator[tuple[int, Keys]]:
    """The corpus's keys, some at a time, with the number of their first row."""
    for start in range(0, len(corpus), _LOOKUP):
        yield start, np.asarray(corpus.keys[start : start + _LOOKUP])


def superset_caches(folder: Path, fingerprint: str) -> list[TeacherCache]:
    """Caches next to `folder` with all signals of the manifest with this fingerprint, and more; no damaged ones."""
    caches = []
    for path in sorted(folder.parent.glob(f"*/{MANIFEST}")):
        with suppress(DistilvecError, OSError):
            if fingerprint in read_manifest(path).subsets:
                caches.append(TeacherCache.open(path.parent))
    return caches


def complete_cache(folder: Path, fingerprint: str, corpus: Corpus) -> TeacherCache | None:
    """A superset cache next to `folder` with every row of the corpus, unless `folder` itself has them all."""
    supersets = superset_caches(folder, fingerprint)
    if supersets and (folder / MANIFEST).exists() and not count_missing(TeacherCache.open(folder), corpus):
        return None
    for cache in supersets:
        if not count_missing(cache, corpus):
            return cache
    return None


def compute_vectors(manifest: Manifest, corpus: KeyedTexts, teacher: VectorModel, rows: Rows) -> Batches:
    """Vectors of these rows."""
    yield from teacher.batches(corpus.prompted(rows), "pre_dense" in manifest.signals)


def compute_tokens(manifest: Manifest, corpus: Corpus, source: TokenSource, rows: Rows) -> Batches:
    """Signals of a cache with this manifest for these rows; computed in batches of like length."""
    lengths = source.lengths[rows].astype(np.int64)
    floor = min(source.batch_tokens, CPU_FLOOR) if source.device.type == "cpu" else source.batch_tokens
    for places in plan_batches(lengths, source.batch_tokens, floor):
        batch_rows = rows[places]
        numbers = torch.from_numpy(batch_rows)
        alignment = source.alignment.batch(batch_rows) if source.alignment else None
        batch = TextBatch(numbers, {}, torch.zeros_like(numbers), alignment=alignment).to(source.device)
        outputs = source.teacher.signals(batch)
        signals = _stored_signals(manifest, outputs, corpus.stored(batch_rows).__getitem__)
        yield EmbeddedBatch(places, signals, float(lengths[places].sum() / lengths.sum()))


def _stored_signals(manifest: Manifest, outputs: ModelOutputs, describe: Describe) -> dict[str, Any]:
    """A batch's arrays and Ragged rows by the signal's name. DistilvecError that quotes the first text with NaN."""
    for name, layers in (("hidden states", outputs.hidden_layers), ("Gram matrices", outputs.grams)):
        for values in layers.values():
            is_finite = torch.isfinite(values).flatten(1).all(1).cpu().numpy()
            refuse(is_finite, f"{name} hold NaN or infinity", describe)
    signals: dict[str, Any] = {}
    vectors = {"embedding": outputs.embedding, "pre_dense": outputs.pre_dense, "vector": outputs.vector}
    for name, vector in vectors.items():
        if name in manifest.signals and vector is not None:
            signals[name] = vector.float().cpu().numpy()
    if manifest.tokens:
        signals.update(compress_tokens(outputs, manifest.tokens))
    return signals
