"""Rows of a table that give one text different vectors: only one of them could be stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.index import KeyIndex
from distilvec.teachers.cache.validate import shortened

if TYPE_CHECKING:
    from distilvec.teachers.cache.parquet import Piece, VectorTable

_ROUNDING = 2e-3  # of a vector's largest value: rounding to float16 or bfloat16 is within
_MOST = 1 << 28  # bytes of vectors in memory together

Keys = Callable[["Piece"], Iterable[npt.NDArray[Any]]]


def refuse_conflicts(table: VectorTable, keys_of: Keys, signals: tuple[str, ...]) -> KeyIndex:
    """All keys of the table. DistilvecError where rows of one key have different vectors, which are read only where keys repeat."""
    seen, repeated = _keys(table, keys_of)
    for signal in signals:
        step = max(1, _MOST // (4 * table.widths[signal]))
        for start in range(0, len(repeated), step):
            _compare(table, keys_of, repeated, range(start, min(start + step, len(repeated))), signal)
    return seen


def _keys(table: VectorTable, keys_of: Keys) -> tuple[KeyIndex, KeyIndex]:
    """All keys, and those that more than one row has."""
    seen, repeated = KeyIndex(), KeyIndex()
    for piece in table.pieces(()):
        for keys in keys_of(piece):
            distinct, counts = np.unique(keys, return_counts=True)
            known = seen.positions(distinct) >= 0
            again = distinct[known | (counts > 1)]
            repeated.add(again[repeated.positions(again) < 0])
            seen.add(distinct[~known])
    return seen, repeated


def _compare(table: VectorTable, keys_of: Keys, repeated: KeyIndex, part: range, signal: str) -> None:
    """Compare the rows of the repeated keys at positions `part` with the first row of the same key."""
    first = np.empty((len(part), table.widths[signal]), dtype=np.float32)
    there = np.zeros(len(part), dtype=np.bool_)
    for piece in table.pieces((signal,)):
        for keys in keys_of(piece):
            places = repeated.positions(keys) - part.start
            rows = np.flatnonzero((places >= 0) & (places < len(part)))
            places, vectors = places[rows], piece.signals[signal][rows]
            new = ~there[places]
            first[places[new][::-1]] = vectors[new][::-1]  # the first of equal places wins
            there[places] = True
            apart = np.abs(vectors - first[places]).max(1, initial=0) > _ROUNDING * np.abs(first[places]).max(
                1, initial=0
            )
            if apart.any():
                text = shortened(piece.texts[int(rows[int(np.argmax(apart))])])
                raise DistilvecError(
                    f"[{table.key}] {table.path} has rows of the text {text} with different vectors (column '{table.columns[signal]}'). "
                    "Keep one row of each text and role; roles with vectors of their own need different prompts."
                )
