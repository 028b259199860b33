"""What gives texts their vectors, and what gives a training step its outputs. teachers/open.py opens all embedders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.info import Role
from distilvec.core.outputs import ModelOutputs
from distilvec.core.similarity import Similarity
from distilvec.core.vectors import first_dims
from distilvec.teachers.encode import EmbeddedBatch

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from distilvec.teachers.api_embedder import ApiEmbedder
    from distilvec.teachers.sources import Kind
    from distilvec.teachers.table_embedder import TableEmbedder


class Embedder(Protocol):
    """Gives texts their vectors: a model, the file of an export, a table of stored vectors, an index, an API."""

    @property
    def name(self) -> str:
        """Name in messages and reports."""

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""

    @property
    def prompts(self) -> Mapping[Role, str]:
        """Texts that are put before a query and before a document."""

    @property
    def similarity(self) -> Similarity:
        """How the vectors are compared."""

    def embed(self, texts: Sequence[str], role: Role = "document") -> npt.NDArray[np.float32]:
        """Return float32 [texts, dim] in the order of the texts, with the role's prompt prepended.

        Errors: DistilvecError for texts that a table lacks, and for an API that fails.
        """

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch, in any order, for work that shows its progress. Errors: as `embed`."""


def is_table(embedder: object) -> TypeIs[TableEmbedder]:
    """Whether an embedder is a table of vectors. Its class is imported only where a table is opened."""
    return _kind(embedder) == "table"


def is_api(embedder: object) -> TypeIs[ApiEmbedder]:
    """Whether an embedder is a model behind an API. Its class is imported only where an API is opened."""
    return _kind(embedder) == "api"


def _kind(embedder: object) -> Kind | None:
    return getattr(embedder, "kind", None)


class BatchTeacher(Protocol):
    """Outputs of a teacher for a batch: CachedTeacher, LiveTeacher, SeveralTeachers or NoTeacher."""

    def signals(self, batch: TextBatch) -> ModelOutputs:
        """The required outputs on the batch's device, float32, without gradient."""
        ...


def kept_dims(truncate_dim: int | None, dims: int) -> int:
    """Return the dimensions of vectors after `truncate_dim`. Errors: DistilvecError for more than the vectors have."""
    if truncate_dim is not None and truncate_dim > dims:
        problem = f"found {truncate_dim}; the vectors have {dims}."
        raise DistilvecError(problem, "Give at most that.", key=".truncate_dim")
    return truncate_dim or dims


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
        return first_dims(self.embedder.embed(texts, role), self.dim, self.normalized)

    def embed_batches(self, texts: Sequence[str], role: Role = "document") -> Iterator[EmbeddedBatch]:
        """Embed batch by batch. Errors: as of the embedder."""
        for batch in self.embedder.embed_batches(texts, role):
            cut = first_dims(batch.embedding, self.dim, self.normalized)
            yield replace(batch, signals={**batch.signals, "embedding": cut})
