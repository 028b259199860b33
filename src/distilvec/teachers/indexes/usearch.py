"""Indexes of usearch (.usearch): vectors by key, without texts."""

from __future__ import annotations

import numpy as np

from distilvec.core.arrow import Vectors
from distilvec.core.errors import DistilvecError
from distilvec.teachers.indexes.vector_file import VectorFile


class UsearchFile(VectorFile):
    """An index with one vector a key, read from the disk as it is needed, in the order of keys.

    Vectors of bf16 come back as float32. Those of i8 have lengths of about 127: the index has lost theirs.
    """

    in_order_of_adding = False  # keys come in the order of their hashes

    def open_vectors(self) -> None:
        """Open the index."""
        from usearch.index import Index

        index = Index.restore(str(self.path), view=True)
        if index is None:
            raise DistilvecError(f"{self.path} is not an index of usearch, or is damaged.", "Save it again.")
        self.description = Index.metadata(str(self.path))  # of the file: a restored index may state another metric
        if self._scalar not in ("f64", "f32", "f16", "bf16", "i8"):
            problem = f"{self.path} holds vectors of {self._scalar}; expected floats or i8."
            raise DistilvecError(problem, "Save an index of floats.")
        if index.multi:
            problem = f"{self.path} may have several vectors for a key (multi)."
            raise DistilvecError(problem, "Save an index with one vector a key.")
        self.index = index
        self.vector_ids = np.sort(np.asarray(index.keys))  # uint64, without those of removed vectors
        self.rows = len(self.vector_ids)

    @property
    def _scalar(self) -> str:
        return str(self.description["kind_scalar"].name).lower()

    @property
    def metric(self) -> str:
        """The metric of the file."""
        return str(self.description["kind_metric"].name)

    @property
    def is_quantized(self) -> bool:
        """Whether numbers were rounded to 8 bits."""
        return self._scalar == "i8"

    def read(self, start: int, end: int) -> Vectors:
        """Vectors of some keys."""
        assert self.vector_ids is not None
        return np.stack(self.index.get(self.vector_ids[start:end])).astype(np.float32)
