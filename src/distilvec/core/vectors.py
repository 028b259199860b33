"""Arithmetic of vectors that several layers need."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def cosine_pairs(first: Array, second: Array) -> Array:
    """Cosine of row i of `first` with row i of `second`, both [rows, dim], as float64 [rows]; 0 if either is zero.

    Products come before the division by the lengths: those of whole numbers (int8, signs) are exact, and equal ones
    tie.
    """
    products = np.einsum("rd,rd->r", first, second, dtype=np.float64)
    squares = np.einsum("rd,rd->r", first, first, dtype=np.float64)
    squares *= np.einsum("rd,rd->r", second, second, dtype=np.float64)
    return np.asarray(products / np.sqrt(np.where(squares > 0, squares, 1)))
