"""NumPy arrays (.npy): vectors by row."""

from __future__ import annotations

import numpy as np

from distilvec.core.arrow import UNSIGNED, Vectors
from distilvec.core.errors import DistilvecError
from distilvec.teachers.indexes.vector_file import VectorFile


class NpyFile(VectorFile):
    """An array of floats or signed integers [rows, dim], read from the disk as it is needed."""

    def open_vectors(self) -> None:
        """Open the array."""
        # np.load would take a file of several arrays as well, and its advice on Python objects runs code
        self.array = np.lib.format.open_memmap(self.path, mode="r")
        if self.array.ndim != 2 or self.array.dtype.kind not in "fi":
            content = f"{self.array.dtype} {list(self.array.shape)}"
            fix = UNSIGNED if self.array.dtype.kind == "u" else "Convert it."
            raise DistilvecError(f"{self.path} holds {content}; expected floats [rows, dim].", fix)
        self.rows = len(self.array)

    def read(self, start: int, end: int) -> Vectors:
        """Rows of the array."""
        with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
            return np.asarray(self.array[start:end], dtype=np.float32)
