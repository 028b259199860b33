"""What an embedder is: whatever gives texts their vectors. teachers/open.py opens all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from distilvec.core.info import Role
from distilvec.core.similarity import Similarity
from distilvec.teachers.encode import EmbeddedBatch


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
