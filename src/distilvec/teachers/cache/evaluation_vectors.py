"""Vectors of evaluation texts on disk: every run, seed and `distilvec evaluate --teacher` embeds a suite once.

The store is a TeacherCache in float32, so that scores are those of vectors that come from the model itself: float16
moves a cosine by up to 1e-6 here, which can swap two documents. It is named by the model's content alone (weights,
tokenizer, pooling, lengths, precision). Prompts are part of a text's key, and so not of the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from distilvec.core.errors import DistilvecError, user_error
from distilvec.core.log import log
from distilvec.data.corpus import text_key
from distilvec.data.corpus_files import as_keys
from distilvec.teachers.cache.fill import VectorModel
from distilvec.teachers.cache.index import Keys
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.signals import Array, Rows
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.encode import EmbeddedBatch

SHARD_TEXTS = 2048  # a killed evaluation loses at most the work of so many texts


class EvaluationModel(VectorModel, Protocol):
    """A model that computes vectors of `dim` dimensions."""

    dim: int


@dataclass(frozen=True)
class PromptedTexts:
    """Texts with one prompt, as a cache reads a corpus (KeyedTexts)."""

    texts: Sequence[str]
    prompt: str

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def keys(self) -> Keys:
        """V16 [n]."""
        return as_keys(text_key(self.prompt, text) for text in self.texts)

    def stored(self, rows: Rows) -> list[str]:
        """The texts of rows."""
        return [self.texts[row] for row in rows]

    def prompted(self, rows: Rows) -> list[str]:
        """The texts of rows, with the prompt prepended."""
        return [self.prompt + text for text in self.stored(rows)]


def evaluation_manifest(manifest: Manifest) -> Manifest:
    """The manifest of a teacher's vectors of evaluation texts: embeddings alone, in float32, under any prompt."""
    return replace(manifest, prompts={}, pre_dense_width=None, vector_width=None, tokens=None, store_dtype="float32")


def evaluation_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of a teacher's vectors of evaluation texts below a cache root, whether it exists or not."""
    return root / "evaluations" / evaluation_manifest(manifest).fingerprint


def open_evaluation_cache(root: Path, manifest: Manifest) -> TeacherCache | None:
    """The store of a teacher's vectors of evaluation texts, new if there is none.

    None, and a line in the log, if it cannot be opened or made: scores need no store.
    """
    folder = evaluation_folder(root, manifest)
    try:
        return TeacherCache.create_or_open(folder, evaluation_manifest(manifest), SHARD_TEXTS)
    except (DistilvecError, OSError) as error:
        log(f"{user_error(error) or error}\nThe teacher's vectors of evaluation texts are computed, and not stored.")
        return None


def stored_batches(
    cache: TeacherCache, model: EvaluationModel, texts: Sequence[str], prompt: str
) -> Iterator[EmbeddedBatch]:
    """Embed texts: from the cache, else with the model, whose vectors are then stored.

    Vectors that a cache refuses (zero, not finite) are passed on as they are and not stored.
    """
    prompted = PromptedTexts(texts, prompt)
    positions = cache.positions(prompted.keys)
    stored = np.flatnonzero(positions >= 0)
    if len(stored):
        yield EmbeddedBatch(stored, {"embedding": cache.read(positions[stored])}, len(stored) / len(texts))
    missing = np.flatnonzero(positions < 0)
    # No lock while the model computes: two evaluations may compute a text twice, but neither waits for the other.
    # `append` leaves out what the other one has stored meanwhile.
    for start in range(0, len(missing), SHARD_TEXTS):
        rows = missing[start : start + SHARD_TEXTS]
        vectors = np.empty((len(rows), model.dim), dtype=np.float32)
        for batch in model.batches(prompted.prompted(rows)):
            vectors[batch.rows] = batch.embedding
            yield EmbeddedBatch(rows[batch.rows], batch.signals, batch.work * len(rows) / len(texts))
        is_valid = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        if is_valid.any():
            _store(cache, prompted, rows[is_valid], vectors[is_valid])


def _store(cache: TeacherCache, texts: PromptedTexts, rows: Rows, vectors: Array) -> None:
    """Append vectors; a full or read-only disk is logged, since the scores do not depend on it."""
    try:
        cache.append(texts.keys[rows], {"embedding": vectors}, texts.stored(rows).__getitem__)
    except (DistilvecError, OSError) as error:
        log(f"{user_error(error) or error}\n{len(rows):,} vectors of evaluation texts are not stored.")
