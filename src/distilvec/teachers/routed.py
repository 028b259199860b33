"""A Router of sentence-transformers as an embedder: one model for queries, another one for documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distilvec.core.info import Role
from distilvec.core.similarity import Similarity
from distilvec.teachers.encode import EmbeddedBatch
from distilvec.teachers.model_embedder import ModelEmbedder


@dataclass(frozen=True, eq=False)
class RoutedEmbedder:
    """Gives the vectors of `encode_query` and `encode_document`."""

    query: ModelEmbedder
    document: ModelEmbedder

    @property
    def name(self) -> str:
        """The Router's name."""
        return self.document.name

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return self.document.dim

    @property
    def prompts(self) -> Mapping[Role, str]:
        """Texts that are put before a query and before a document."""
        return self.document.prompts

    @property
    def similarity(self) -> Similarity:
        """How the vectors are compared."""
        return self.document.similarity

    def of(self, role: Role) -> ModelEmbedder:
        """Return the model for texts of this role."""
        return self.query if role == "query" else self.document

    def embed(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.float32]:
        """Return float32 [texts, dim], with the role's prompt prepended."""
        return self.of(role).embed(texts, role)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch."""
        return self.of(role).embed_batches(texts, role)
