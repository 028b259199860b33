"""Vectors of evaluation texts, kept on disk: every run, seed and `distilvec evaluate --teacher` embeds a suite once.

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

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.core.log import log
from distilvec.data.corpus import text_key
from distilvec.data.corpus_files import as_keys
from distilvec.teachers.cache.index import Keys
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.signals import Rows
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.encode import EmbeddedBatch

SHARD_TEXTS = 2048  # a killed evaluation loses at most the work of so many texts


class Model(Protocol):
    """A model that computes vectors."""

    dim: int

    def batches(self, prompted: Sequence[Text]) -> Iterator[EmbeddedBatch]:
        """Embed texts with their prompts."""
        ...


@dataclass(frozen=True)
class PromptedTexts:
    """Texts with one prompt, as a cache reads a corpus."""

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


def kept_manifest(manifest: Manifest) -> Manifest:
    """The manifest of a teacher's kept vectors: embeddings alone, in float32, under any prompt."""
    return replace(manifest, prompts={}, pre_dense_width=None, vector_width=None, tokens=None, store_dtype="float32")


def kept_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of a teacher's kept vectors below a cache root, whether it exists or not."""
    return root / "evaluations" / kept_manifest(manifest).fingerprint


def open_kept(root: Path, manifest: Manifest) -> TeacherCache | None:
    """The store of a teacher's vectors of evaluation texts, new if there is none.

    None, and a line in the log, if it cannot be opened or made: scores need no store.
    """
    try:
        return TeacherCache.create_or_open(kept_folder(root, manifest), kept_manifest(manifest), SHARD_TEXTS)
    except DistilvecError as error:
        log(f"{error}\nThe teacher's vectors of evaluation texts are computed, and not kept.")
        return None


def kept_batches(cache: TeacherCache, model: Model, texts: Sequence[str], prompt: str) -> Iterator[EmbeddedBatch]:
    """Embed texts: from the cache, else with the model, whose vectors are then kept.

    Vectors that a cache refuses (zero, not finite) are passed on as they are and not kept.
    """
    asked = PromptedTexts(texts, prompt)
    positions = cache.positions(asked.keys)
    stored = np.flatnonzero(positions >= 0)
    if len(stored):
        yield EmbeddedBatch(stored, {"embedding": cache.read(positions[stored])}, len(stored) / len(texts))
    missing = np.flatnonzero(positions < 0)
    for start in range(0, len(missing), SHARD_TEXTS):
        rows = missing[start : start + SHARD_TEXTS]
        vectors = np.empty((len(rows), model.dim), dtype=np.float32)
        for batch in model.batches(asked.prompted(rows)):
            vectors[batch.rows] = batch.embedding
            yield EmbeddedBatch(rows[batch.rows], batch.signals, batch.work * len(rows) / len(texts))
        good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        if not good.any():
            continue
        try:
            stored_texts = asked.stored(rows[good])
            cache.append(asked.keys[rows[good]], {"embedding": vectors[good]}, stored_texts.__getitem__)
        except DistilvecError as error:  # a full or read-only disk: scores do not depend on it
            log(f"{error}\n{int(good.sum()):,} vectors of evaluation texts are not kept.")
