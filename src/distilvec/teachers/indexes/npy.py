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
        try:
            self.array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            if "Python objects" not in str(error) and "allow_pickle" not in str(error):
                raise
            problem = f"{self.path} holds Python objects; expected floats [rows, dim]."  # numpy's advice runs code
            fix = "Save an array of floats: np.save(FILE, np.stack(list(VECTORS)).astype(np.float32))."
            raise DistilvecError(problem, fix) from None
        if not isinstance(self.array, np.ndarray):  # a file of several arrays with the name of one
            self.array.close()
            raise DistilvecError(f"{self.path} is not a .npy array.", "Save one array [rows, dim].")
        if self.array.ndim != 2 or self.array.dtype.kind not in "fi":
            content = f"{self.array.dtype} {list(self.array.shape)}"
            fix = UNSIGNED if self.array.dtype.kind == "u" else "Convert it."
            raise DistilvecError(f"{self.path} holds {content}; expected floats [rows, dim].", fix)
        self.rows = len(self.array)

    def read(self, start: int, end: int) -> Vectors:
        """Rows of the array."""
        with np.errstate(over="ignore"):  # doubles beyond float32 become infinite, and are left out
            return np.asarray(self.array[start:end], dtype=np.float32)
