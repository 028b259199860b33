"""The model or API that made a table of vectors: it embeds the texts that the table lacks, such as queries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError
from distilvec.teachers.agreement import SAME, compare
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.cache.fill import Batches, Unfinished
from distilvec.teachers.cache.signals import Array
from distilvec.teachers.encode import cut_dimensions
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import expect_kind, open_embedder
from distilvec.teachers.routed import RoutedEmbedder

KEY = "teacher.made_by"
SAMPLE = 64  # stored texts that are embedded again
SAME_LENGTH = 0.05  # how far the mean length may be from that of the stored vectors, as a share of it


def open_maker(name: str, key: str = KEY, device: str = "auto") -> ModelEmbedder | ApiEmbedder:
    """Open a model or an API that may have made a table.

    Errors: DistilvecError with `key` for another kind of source, and as `open_embedder`.
    """
    expect_kind(name, ("model", "api"), key)
    embedder = open_embedder(name, key=key, device=device)
    if isinstance(embedder, RoutedEmbedder):  # a table holds documents
        return embedder.document
    assert isinstance(embedder, (ModelEmbedder, ApiEmbedder))
    return embedder


def mean_length(vectors: Array) -> float:
    """Return the mean length of the vectors [n, dim] that are finite and not zero; there must be one."""
    lengths = np.linalg.norm(vectors, axis=1)
    return float(lengths[np.isfinite(lengths) & (lengths > 0)].mean())


@dataclass(frozen=True)
class Maker:
    """Computes vectors as a table stores them: cut to its `dim`, and of length 1 where the table's are `normalized`."""

    embedder: ModelEmbedder | ApiEmbedder
    dim: int
    normalized: bool

    def batches(self, prompted: Sequence[Text], pre_dense: bool = False) -> Batches:
        """Embed texts with their prompts, batch by batch; see ModelEmbedder.batches."""
        assert not pre_dense
        try:
            with closing(cast(Batches, self.embedder.batches(prompted))) as batches:
                for batch in batches:
                    yield replace(batch, signals={"embedding": self._as_stored(batch.embedding)})
        except Unfinished as part:  # of an API: what it has answered is paid for, and stored
            signals = {"embedding": self._as_stored(part.signals["embedding"])}
            raise Unfinished(part.rows, signals) from part.__cause__

    def check(self, prompted: Sequence[str], stored: Array) -> None:
        """Raise DistilvecError if the vectors of stored texts, float32 [n, dim], are not this model's."""
        name = self.embedder.name
        if self.embedder.dim < self.dim:
            problem = f"{name} has {self.embedder.dim} dimensions, the table {self.dim}."
            raise DistilvecError(problem, "Name the model that made the table.", key=KEY)
        embedded = self._as_stored(self.embedder.embed_prompted(prompted))
        agreement = compare(embedded, stored, stored)
        if agreement.cosine < SAME:
            raise DistilvecError(
                f"{name} has not made the table: its vectors of {len(prompted)} stored texts have a mean cosine of "
                f"{agreement.cosine:.3f} with the stored ones, expected {SAME} or more.",
                agreement.text or "Name the model that made the table, and the prompts it was given.",
                key=KEY,
            )
        length, stored_length = mean_length(embedded), mean_length(stored)
        if abs(length - stored_length) > SAME_LENGTH * stored_length:
            raise DistilvecError(
                f"the vectors of {name} have a mean length of {length:.3g}, the stored ones of the same texts "
                f"{stored_length:.3g}: new texts would get vectors of another scale.",
                "Name the model as it made the table, without the last step that gives vectors the length 1; or store "
                "vectors of length 1.",
                key=KEY,
            )

    def _as_stored(self, vectors: Array) -> Array:
        vectors = cut_dimensions(vectors, self.dim, self.normalized)
        if self.normalized:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        return vectors
