"""Reading rows out of a cache's files: runs of neighbours in one call, straight into the result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError, explained
from distilvec.teachers.cache.layout import Ragged, Signal
from distilvec.teachers.cache.shard import CACHE_PATH, Shard, how_to_repair

OFFSETS = "-offsets"  # behind the name of a signal of uneven length
_OPEN_FILES = 128

Run = tuple[int, int, int, int]  # rows of the result from, to; shard; first row in it


class Reader:
    """The shards of a cache in order and their open files; the files read last stay open, offsets stay in memory (8 bytes a row)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: list[Shard] = []
        self.ends: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # rows up to each shard's end
        self._files: dict[tuple[int, str], int] = {}
        self._offsets: dict[tuple[int, str], npt.NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def admit(self, shard: Shard) -> None:
        """Add a shard behind the others."""
        self.shards.append(shard)
        self.ends = np.append(self.ends, len(self) + shard.rows)

    def forget(self) -> None:
        """No shards any more."""
        self.close()
        self.shards, self.ends = [], self.ends[:0]

    def rows(self, positions: npt.NDArray[np.int64], name: str, signal: Signal) -> npt.NDArray[Any]:
        """[n, width] of a signal with one row a text, as stored. IndexError for a position that is not there."""
        rows = np.empty((len(positions), signal.width), dtype=signal.dtype)
        for first, last, number, row in self._runs(positions):
            size = rows[first].nbytes
            self._read_into(rows[first:last], number, name, self.shards[number].rows, size, row)
        return rows

    def ragged(self, positions: npt.NDArray[np.int64], name: str, signal: Signal) -> Ragged:
        """The items of a signal of uneven length, as stored. IndexError for a position that is not there."""
        runs = list(self._runs(positions))
        parts = [self._offsets_of(number, name)[row : row + last - first + 1] for first, last, number, row in runs]
        lengths = np.concatenate([np.diff(part) for part in parts]) if parts else np.zeros(0, dtype=np.int64)
        values = np.empty((int(lengths.sum()), signal.width), dtype=signal.dtype)
        size, done = signal.width * values.itemsize, 0
        for (_, _, number, _), part in zip(runs, parts, strict=True):
            start, end = int(part[0]), int(part[-1])
            self._read_into(
                values[done : done + end - start], number, name, int(self._offsets_of(number, name)[-1]), size, start
            )
            done += end - start
        return Ragged(values, lengths)

    def close(self) -> None:
        """Close the files that are open; reading opens them again."""
        self._offsets.clear()
        while self._files:
            os.close(self._files.popitem()[1])

    def _runs(self, positions: npt.NDArray[np.int64]) -> Iterator[Run]:
        """Stretches of the positions that lie end to end in one shard."""
        if len(positions) == 0:
            return
        if positions.min() < 0 or positions.max() >= len(self):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of a cache with {len(self)} rows")
        shards = np.searchsorted(self.ends, positions, side="right")
        starts = np.flatnonzero(np.r_[True, (np.diff(positions) != 1) | (np.diff(shards) != 0)])
        for first, last in zip(starts.tolist(), [*starts[1:].tolist(), len(positions)], strict=True):
            number = int(shards[first])
            yield first, last, number, int(positions[first]) - (int(self.ends[number]) - self.shards[number].rows)

    def _offsets_of(self, number: int, name: str) -> npt.NDArray[np.int64]:
        """int64 [rows + 1] of a shard."""
        found = self._offsets.get((number, name))
        if found is None:
            found = np.load(self.shards[number].verify(self.folder, name + OFFSETS), allow_pickle=False)
            self._offsets[number, name] = found
        return found

    def _read_into(self, rows: npt.NDArray[Any], number: int, name: str, count: int, size: int, first: int) -> None:
        """Fill `rows` from row `first` on of a shard's file, which has `count` rows of `size` bytes."""
        handle = self._files.pop((number, name), None)
        if handle is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            path = self.shards[number].verify(self.folder, name)
            with explained(CACHE_PATH, path):
                handle = os.open(path, os.O_RDONLY)
        self._files[number, name] = handle
        offset = self.shards[number].files[name].bytes - (count - first) * size  # behind the file's header
        if rows.size == 0:
            return
        view = rows.view(np.uint8).reshape(-1).data
        while len(view):
            read = os.preadv(handle, [view], offset)
            if read == 0:
                raise DistilvecError(
                    f"[{CACHE_PATH}] teacher cache {self.folder}: shard {number} ends too early. {how_to_repair(self.folder)}"
                )
            view, offset = view[read:], offset + read
