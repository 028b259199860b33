"""Cuts an epoch into batches of texts of similar length whose order is still random: little padding, no bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

_GATHER = 65_536  # batches moved at once while they are shuffled


@dataclass(frozen=True)
class Batches:
    """The batches of one epoch, int64: batch i is `rows[bounds[i]:bounds[i + 1]]`."""

    rows: Rows
    bounds: Rows

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, i: int) -> Rows:
        if not -len(self) <= i < len(self):
            raise IndexError(f"batch {i} of {len(self)}")
        i %= len(self)
        return self.rows[self.bounds[i] : self.bounds[i + 1]]


def epoch_batches(
    rows: Rows,
    lengths: npt.NDArray[np.int32],
    *,
    batch_size: int,
    max_tokens: int | None,
    window: int,
    seed: int,
    epoch: int,
    drop_last: bool = False,
    fixed: bool = False,
) -> Batches:
    """The batches of one epoch over `rows`, the same for the same seed and epoch.

    The rows are shuffled, cut into windows of `window * batch_size` rows, each sorted by length, cut into batches, and
    the batches are shuffled. `lengths[row]` is the number of tokens of a corpus row. With `max_tokens` a batch holds as
    many rows as fit (rows times the longest at most `max_tokens`; a longer text is a batch by itself), else
    `batch_size` rows; `drop_last` then leaves out the random rows that do not fill a batch, unless there is no full one
    at all. `fixed` batches are those of the first epoch in the order of this one (REDACT, section 3.2). Memory: 16
    bytes a row.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 0 if fixed else epoch]))
    order = np.array(rows, dtype=np.int64)
    generator.shuffle(order)
    if drop_last and max_tokens is None and len(order) >= batch_size:
        order = order[: len(order) // batch_size * batch_size]
    ends = [np.arange(batch_size, len(order) + batch_size, batch_size).clip(max=len(order))]
    if max_tokens is not None:
        ends = []
    for start in range(0, len(order), window * batch_size):
        part = order[start : start + window * batch_size]
        part[:] = part[np.argsort(lengths[part], kind="stable")]
        if max_tokens is not None:
            ends.append(start + _ends(lengths[part], max_tokens))
    if fixed and epoch > 0:
        generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    return _shuffled(order, np.concatenate([np.zeros(1, dtype=np.int64), *ends]), generator)


def _ends(ascending: npt.NDArray[np.int32], max_tokens: int) -> Rows:
    """Ends of the batches of one window, cut from its longest text down: the rest is the shortest texts."""
    ends = []
    end = len(ascending)
    while end > 0:
        ends.append(end)
        end = max(0, end - max(1, max_tokens // max(1, int(ascending[end - 1]))))
    return np.array(ends[::-1], dtype=np.int64)


def _shuffled(rows: Rows, bounds: Rows, generator: np.random.Generator) -> Batches:
    """The same batches in random order."""
    order = generator.permutation(len(bounds) - 1)
    starts, sizes = bounds[:-1][order], np.diff(bounds)[order]
    new_bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    moved = np.empty_like(rows)
    for first in range(0, len(order), _GATHER):
        begins, counts = starts[first : first + _GATHER], sizes[first : first + _GATHER]
        here = new_bounds[first : first + len(counts) + 1]
        shift = np.repeat(begins - here[:-1], counts)
        moved[here[0] : here[-1]] = rows[np.arange(here[0], here[-1]) + shift]
    return Batches(moved, new_bounds)
