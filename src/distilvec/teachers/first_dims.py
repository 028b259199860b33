"""The first dims of a model's vectors, which shortened (Matryoshka) indexes hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from distilvec.core.info import Role
from distilvec.core.similarity import Similarity
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.encode import EmbeddedBatch, cut_dimensions


@dataclass(frozen=True, eq=False)
class FirstDims:
    """An embedder cut to its first `dim` dims, of length 1 again if `normalized`."""

    embedder: Embedder
    dim: int
    normalized: bool

    @property
    def name(self) -> str:
        """The embedder's name."""
        return self.embedder.name

    @property
    def prompts(self) -> Mapping[Role, str]:
        """The embedder's prompts."""
        return self.embedder.prompts

    @property
    def similarity(self) -> Similarity:
        """How the embedder's vectors are compared."""
        return self.embedder.similarity

    def embed(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.float32]:
        """Return float32 [texts, dim]. Errors: as of the embedder."""
        return cut_dimensions(self.embedder.embed(texts, role), self.dim, self.normalized)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch. Errors: as of the embedder."""
        for batch in self.embedder.embed_batches(texts, role):
            cut = cut_dimensions(batch.embedding, self.dim, self.normalized)
            yield replace(batch, signals={**batch.signals, "embedding": cut})
