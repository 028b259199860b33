"""Finding a text's row by its 16-byte key: sorted runs that are merged as they grow, about 24 bytes of memory a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

KEY = np.dtype("V16")
_BLOCK = 1 << 20  # keys looked up at once


class KeyIndex:
    """Positions by key. Positions are counted in the order in which keys were added."""

    def __init__(self) -> None:
        self._runs: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]] = []  # (sorted keys [n, 2], positions [n])
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, keys: npt.NDArray[Any]) -> None:
        """Append keys (V16, [n]) that are not there yet; a run is merged with its neighbour once it is as long."""
        self._runs.append(_sort(_halves(keys), np.arange(self._rows, self._rows + len(keys), dtype=np.int64)))
        self._rows += len(keys)
        while len(self._runs) > 1 and len(self._runs[-1][1]) >= len(self._runs[-2][1]):
            (one, one_at), (two, two_at) = self._runs.pop(), self._runs.pop()
            self._runs.append(_sort(np.concatenate([two, one]), np.concatenate([two_at, one_at])))

    def positions(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """int64 [n] positions of keys (V16, [n]); -1 where a key is not there."""
        found = np.full(len(keys), -1, dtype=np.int64)
        for start in range(0, len(keys), _BLOCK):
            wanted, part = _halves(keys[start : start + _BLOCK]), found[start : start + _BLOCK]
            for run, at in self._runs:
                _search(run, at, wanted, part)
        return found


def _halves(keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(keys, dtype=KEY).view(np.uint64).reshape(-1, 2)


def _sort(halves: npt.NDArray[np.uint64], at: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    order = np.argsort(halves[:, 0], kind="stable")
    return np.asfortranarray(halves[order]), at[order]


def _search(run: npt.NDArray[np.uint64], at: npt.NDArray[np.int64], wanted: npt.NDArray[np.uint64], found: npt.NDArray[np.int64]) -> None:
    """Fill `found` where a wanted key is in the run. First halves are searched; second halves settle the few that are alike."""
    rows = np.flatnonzero(found < 0)
    places = np.searchsorted(run[:, 0], wanted[rows, 0])
    while len(rows):
        inside = places < len(run)
        rows, places = rows[inside], places[inside]
        alike = run[places, 0] == wanted[rows, 0]
        rows, places = rows[alike], places[alike]
        same = run[places, 1] == wanted[rows, 1]
        found[rows[same]] = at[places[same]]
        rows, places = rows[~same], places[~same] + 1
