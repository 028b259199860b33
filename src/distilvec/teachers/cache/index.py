"""Finding a text's row by its 16-byte key: sorted runs that are merged as they grow, 20 bytes of memory a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

KEY = np.dtype("V16")
_BLOCK = 1 << 16  # keys looked up at once
_MOST = 2**32  # rows that an index holds

Run = tuple[
    npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32]
]  # keys' halves and positions, by first half


class KeyIndex:
    """Positions by key. Positions are counted in the order in which keys were added."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, keys: npt.NDArray[Any]) -> None:
        """Append keys (V16, [n]) that are not there yet; a run is merged with its neighbour once it is as long."""
        assert self._rows + len(keys) < _MOST, "more rows than an index holds"
        first, second = _halves(keys)
        self._runs.append(_sort([(first, second, np.arange(self._rows, self._rows + len(keys), dtype=np.uint32))]))
        self._rows += len(keys)
        while len(self._runs) > 1 and len(self._runs[-1][2]) >= len(self._runs[-2][2]):
            self._runs[-2:] = [_sort(self._runs[-2:])]

    def positions(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """int64 [n] positions of keys (V16, [n]); -1 where a key is not there."""
        found = np.full(len(keys), -1, dtype=np.int64)
        for start in range(0, len(keys), _BLOCK):
            wanted, part = _halves(keys[start : start + _BLOCK]), found[start : start + _BLOCK]
            for run in self._runs:
                _search(run, wanted, part)
        return found


def _halves(keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Both halves of every key, uint64 [2, n]."""
    return np.ascontiguousarray(keys, dtype=KEY).view(np.uint64).reshape(-1, 2).T


def _sort(runs: list[Run]) -> Run:
    """The runs as one, column by column, so that few copies are alive at once."""
    order = np.argsort(np.concatenate([run[0] for run in runs]), kind="stable")
    first, second, at = (np.concatenate([run[column] for run in runs])[order] for column in range(3))
    return first, second, at


def _search(run: Run, wanted: npt.NDArray[np.uint64], found: npt.NDArray[np.int64]) -> None:
    """Fill `found` where a wanted key is in the run. First halves are searched; second halves settle the few that are alike."""
    first, second, at = run
    rows = np.flatnonzero(found < 0)
    places = np.searchsorted(first, wanted[0, rows])
    while len(rows):
        inside = places < len(first)
        rows, places = rows[inside], places[inside]
        alike = first[places] == wanted[0, rows]
        rows, places = rows[alike], places[alike]
        same = second[places] == wanted[1, rows]
        found[rows[same]] = at[places[same]]
        rows, places = rows[~same], places[~same] + 1
