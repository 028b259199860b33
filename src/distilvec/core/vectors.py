"""Arithmetic of vectors that several layers need, and a few of many items, evenly spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, Any]
Item = TypeVar("Item")


def cosine_pairs(first: Array, second: Array) -> Array:
    """Cosine of row i of `first` with row i of `second`, both [rows, dim], as float64 [rows]; 0 if either is zero.

    Products come before the division by the lengths: those of whole numbers (int8, signs) are exact, and equal ones
    tie.
    """
    products = np.einsum("rd,rd->r", first, second, dtype=np.float64)
    squares = np.einsum("rd,rd->r", first, first, dtype=np.float64)
    squares *= np.einsum("rd,rd->r", second, second, dtype=np.float64)
    return np.asarray(products / np.sqrt(np.where(squares > 0, squares, 1)))


def first_dims(vectors: npt.NDArray[np.float32], dim: int, normalized: bool) -> npt.NDArray[np.float32]:
    """The first `dim` dimensions of [n, full], of length 1 again if the model normalises."""
    if vectors.shape[1] == dim:
        return vectors
    cut = np.ascontiguousarray(vectors[:, :dim])
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12) if normalized else cut


def evenly_spread(total: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most `most` of the numbers 0 to total - 1, evenly spread with the first and the last, each once.

    One alone is the first. Halves go to the even neighbour: 3 of 6 are 0, 2 and 5.
    """
    count = max(0, min(most, total))
    return np.linspace(0, total - 1, count).round().astype(np.int64)


def spread_items(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` of the items, evenly spread."""
    return [items[number] for number in evenly_spread(len(items), most)]
