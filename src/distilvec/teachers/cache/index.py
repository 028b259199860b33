"""Row numbers of texts by their 16-byte keys: sorted runs that are merged as they grow, 17 bytes of memory a row.

Keys are hashes: their first bits show where in a run they are. So a lookup takes as long among 10 million rows as
among 1 million. np.searchsorted over the sorted keys would be less code, but is slower where it matters (medians of
nine, one core, 10 million rows): 65,536 random keys take 0.13 us each here, 1.36 us with searchsorted, 0.31 us if the
keys that are looked up are sorted first. With 32 keys it is faster, which no step notices: a run
looks all of its texts up at once.

Of a key 12 bytes are compared. Among a billion texts the chance that any two have these 12 in common is 6e-12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

KEY = np.dtype("V16")
_BLOCK = 1 << 16  # keys looked up together
_MAX_ROWS = 2**32  # positions are uint32
_BUCKET_BITS = 3  # a bucket of a run has 4 to 8 keys
# From so many rows on the keys are in 8 parts, by their first bits. A merge needs memory twice: that of a part alone.
# To look up and add 16,384 keys takes 0.96 us each with 8 parts, 1.20 us with 16.
_ROWS_OF_ONE_PART = 1 << 20
_PART_BITS = 3

Keys = npt.NDArray[Any]  # V16, [n]


class _Halves(NamedTuple):
    """The first 8 bytes of keys, uint64 [n], and 4 of the others, uint32 [n]."""

    first: npt.NDArray[np.uint64]
    second: npt.NDArray[np.uint32]

    def select(self, rows: Any) -> _Halves:
        """Those of some keys."""
        return _Halves(self.first[rows], self.second[rows])


@dataclass
class _Run:
    """Keys in the order of their first halves, and their positions."""

    first: npt.NDArray[np.uint64]
    second: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.first)

    def copy(self, start: int, end: int) -> _Run:
        """A run of the keys from `start` to `end`."""
        rows = slice(start, end)
        return _Run(self.first[rows].copy(), self.second[rows].copy(), self.positions[rows].copy())


class _Part:
    """Runs of keys that have their first `shared_bits` bits in common."""

    def __init__(self, shared_bits: int = 0) -> None:
        self.runs: list[_Run] = []  # each longer than the next one
        self._shared_bits = np.uint64(shared_bits)
        self._buckets: list[npt.NDArray[np.uint32]] = []  # of each run: see _bucket_starts

    def add(self, run: _Run) -> None:
        """Take in a run of keys that the part does not contain yet."""
        # Merging runs that are not longer than the new one leaves few runs to search, and moves a key rarely.
        while self.runs and len(self.runs[-1]) <= len(run):
            self._buckets.pop()
            run = _merge(self.runs.pop(), run)
        self.runs.append(run)
        self._buckets.append(_bucket_starts(run.first << self._shared_bits))

    def positions(self, keys: _Halves) -> npt.NDArray[np.int64]:
        """int64 [n] positions of keys; -1 for a key that the part does not contain."""
        positions = np.full(len(keys.first), -1, dtype=np.int64)
        for run, buckets in zip(self.runs, self._buckets, strict=True):
            rows = np.flatnonzero(positions < 0)
            slots = _first_slots(buckets, keys.first[rows] << self._shared_bits)
            _search(run, slots, keys, rows, positions)
        return positions


class KeyIndex:
    """Positions by key. Positions are counted in the order in which keys were added."""

    def __init__(self) -> None:
        self._parts = [_Part()]
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, keys: Keys) -> None:
        """Append keys that the index does not contain yet."""
        assert self._rows + len(keys) < _MAX_ROWS, "more rows than an index can number"
        if not len(keys):
            return
        halves = _halves(keys)
        positions = np.arange(self._rows, self._rows + len(keys), dtype=np.uint32)
        order = np.argsort(halves.first, kind="stable")
        self._rows += len(keys)
        if len(self._parts) == 1 and self._rows > _ROWS_OF_ONE_PART:
            runs = self._parts[0].runs
            self._parts = [_Part(_PART_BITS) for _ in range(1 << _PART_BITS)]
            while runs:
                self._add(runs.pop(0))
        self._add(_Run(*halves.select(order), positions[order]))

    def positions(self, keys: Keys) -> npt.NDArray[np.int64]:
        """int64 [n] positions of keys; -1 for a key that the index does not contain."""
        positions = np.empty(len(keys), dtype=np.int64)
        for start in range(0, len(keys), _BLOCK):
            halves = _halves(keys[start : start + _BLOCK])
            if len(self._parts) == 1:
                positions[start : start + _BLOCK] = self._parts[0].positions(halves)
                continue
            numbers = halves.first >> np.uint64(64 - _PART_BITS)
            for number, part in enumerate(self._parts):
                rows = np.flatnonzero(numbers == number)
                if len(rows):
                    positions[start + rows] = part.positions(halves.select(rows))
        return positions

    def _add(self, run: _Run) -> None:
        """Give a run's keys to the parts that they belong to."""
        if len(self._parts) == 1:
            self._parts[0].add(run)
            return
        later_starts = np.arange(1, len(self._parts), dtype=np.uint64) << np.uint64(64 - _PART_BITS)
        bounds = [0, *np.searchsorted(run.first, later_starts).tolist(), len(run)]
        for part, start, end in zip(self._parts, bounds, bounds[1:], strict=False):
            if start < end:
                part.add(run.copy(start, end))


class WantedKeys:
    """Keys that are looked for, each once: those of an index, less those that were found. 18 bytes of memory a key."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._is_wanted = np.ones(len(index), dtype=np.bool_)

    def take(self, keys: Keys) -> npt.NDArray[np.int64]:
        """The rows of `keys` that are wanted, in order, of equal keys the first; from then on they are not wanted."""
        slots = self._index.positions(keys)
        rows = np.flatnonzero(slots >= 0)
        rows = rows[self._is_wanted[slots[rows]]]
        rows = rows[np.sort(np.unique(slots[rows], return_index=True)[1])]
        self._is_wanted[slots[rows]] = False
        return rows


def _halves(keys: Keys) -> _Halves:
    """The bytes of every key that are compared."""
    halves = np.ascontiguousarray(keys, dtype=KEY).view(np.uint64).reshape(-1, 2).T
    return _Halves(halves[0], halves[1].astype(np.uint32))


def _merge(old: _Run, new: _Run) -> _Run:
    """Merge two sorted runs, which are used up."""
    new_places = np.searchsorted(old.first, new.first, side="right") + np.arange(len(new))
    is_old = np.ones(len(old) + len(new), dtype=np.bool_)
    is_old[new_places] = False
    for name in ("first", "second", "positions"):
        old_column = getattr(old, name)
        column = np.empty(len(is_old), old_column.dtype)
        column[new_places] = getattr(new, name)
        column[is_old] = old_column
        # Both runs let go of a column before the next one is made
        setattr(old, name, column)
        setattr(new, name, column)
        del old_column
    return old


def _bucket_starts(first: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """The slot at which each bucket of sorted halves begins; the number of buckets is a power of 2."""
    bits = max(1, len(first).bit_length() - _BUCKET_BITS)
    smallest = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
    return np.searchsorted(first, smallest).astype(np.uint32)


def _first_slots(buckets: npt.NDArray[np.uint32], first: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The slot at which the bucket of each first half begins."""
    return buckets[first >> np.uint64(65 - len(buckets).bit_length())].astype(np.int64)


def _search(
    run: _Run,
    slots: npt.NDArray[np.int64],
    keys: _Halves,
    rows: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
) -> None:
    """Fill `positions` for those `rows` of the keys that a run contains.

    Each key is compared with the run's keys from the start of its bucket on (`slots`), all keys one slot further in
    each round, until a larger first half shows that the run does not contain it.
    """
    while len(rows):
        is_inside = slots < len(run)
        first_here = run.first[np.minimum(slots, len(run) - 1)]
        same_first = np.flatnonzero((first_here == keys.first[rows]) & is_inside)
        same_key = same_first[run.second[slots[same_first]] == keys.second[rows[same_first]]]
        positions[rows[same_key]] = run.positions[slots[same_key]]
        goes_on = (first_here <= keys.first[rows]) & is_inside
        goes_on[same_key] = False
        rows = rows[goes_on]
        slots = slots[goes_on] + 1
