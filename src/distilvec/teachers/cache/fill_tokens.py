"""Filling a cache with what the teacher tells of its tokens: batches of like length, compressed as they come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from distilvec.alignment.store import AlignmentStore
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.codec import compress
from distilvec.teachers.cache.fill import Progress, Rows, fill_shards
from distilvec.teachers.cache.layout import Ragged, join
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cache.validate import refuse_broken
from distilvec.teachers.encode import plan_batches

Signals = dict[str, npt.NDArray[Any] | Ragged]

MOST_ROWS = 2048  # in a shard with token signals: it is held in memory until it is whole
_FLOOR = 256  # fewer tokens than this are not worth a batch of their own


class BatchSource(Protocol):
    """Where token signals come from: a LiveTeacher or anything else with this method."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """Every signal of the cache for the batch's rows."""
        ...


@dataclass(frozen=True)
class TokenSource:
    """What token signals come from: a model, its tokens of each row (`lengths` [rows]), pairs; `batch_tokens` run together."""

    teacher: BatchSource
    lengths: npt.NDArray[np.int32]
    alignment: AlignmentStore | None
    batch_tokens: int
    device: torch.device


def fill_tokens(cache: TeacherCache, corpus: Corpus, source: TokenSource, progress: Progress | None = None) -> None:
    """Compute the rows that the cache lacks; the bytes depend on the corpus alone, as with `fill_cache`. Errors: likewise."""
    fill_shards(cache, corpus, partial(compute_tokens, cache.manifest, corpus, source), progress)


def compute_tokens(
    manifest: Manifest, corpus: Corpus, source: TokenSource, rows: Rows, advance: Callable[[int], None]
) -> Signals:
    """What a cache of this manifest keeps of these rows, in their order; `advance` is told how many are done."""
    parts, order, done = [], [], 0
    lengths = source.lengths[rows].astype(np.int64)
    for chosen in plan_batches(lengths, source.batch_tokens, min(source.batch_tokens, _FLOOR)):
        found = source.teacher.signals(_batch(rows[chosen], source.alignment, source.device))
        parts.append(_signals(manifest, corpus, found, rows[chosen]))
        order.append(chosen)
        done += len(chosen)
        advance(done)
    back = np.argsort(np.concatenate(order))
    return {name: _in_order([part[name] for part in parts], back) for name in manifest.signals}


def _batch(rows: Rows, alignment: AlignmentStore | None, device: torch.device) -> TextBatch:
    """The rows and their alignment; a teacher has tokens of its own."""
    numbers = torch.from_numpy(rows)
    return TextBatch(numbers, {}, torch.zeros_like(numbers), alignment=alignment.batch(rows) if alignment else None).to(
        device
    )


def _signals(manifest: Manifest, corpus: Corpus, found: ModelOutputs, rows: Rows) -> Signals:
    """What the cache keeps of a batch. DistilvecError that names the first text with NaN or infinity in it."""
    states = [("hidden states", values) for values in found.hidden_layers.values()]
    for name, values in [*states, *(("Gram matrices", values) for values in found.grams.values())]:
        refuse_broken(torch.isfinite(values).flatten(1).all(1).cpu().numpy(), name, corpus.stored(rows).__getitem__)
    vectors = {"embedding": found.embedding, "pre_dense": found.pre_dense, "vector": found.vector}
    kept: Signals = {
        name: values.float().cpu().numpy()
        for name, values in vectors.items()
        if name in manifest.signals and values is not None
    }
    return kept | (compress(found, manifest.tokens) if manifest.tokens else {})


def _in_order(parts: list[Any], back: Rows) -> npt.NDArray[Any] | Ragged:
    """A signal of several batches as one, its rows brought into their own order."""
    if isinstance(parts[0], Ragged):
        return join(parts).take(back)
    whole: npt.NDArray[Any] = np.concatenate(parts)[back]
    return whole
