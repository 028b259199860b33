"""Which rows stay: the first of every key, or so many by chance. One byte a row in memory, the rest by chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from distilvec.core.artifacts import open_column

Mask = npt.NDArray[np.bool_]

CHUNK = 65_536  # rows handled at once
_PARTITIONS = 128  # files open at once


def first_occurrences(keys_file: Path, progress: Callable[[str, int], None]) -> Mask:
    """[rows] True where a 16-byte key of the .npy column occurs for the first time.

    The keys are parted by their low bits into files beside the column, each sorted alone and removed.
    """
    keys = open_column(keys_file)
    keep = np.ones(len(keys), dtype=np.bool_)
    parts = max(1, min(_PARTITIONS, -(-len(keys) // CHUNK)))
    paths = [keys_file.with_name(f"part-{part}.bin") for part in range(parts)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for start in range(0, len(keys), CHUNK):
            block = np.frombuffer(keys[start : start + CHUNK].tobytes(), dtype=np.uint64).reshape(-1, 2)
            keyed = np.column_stack([block, np.arange(start, start + len(block), dtype=np.uint64)])
            part_of = block[:, 0] % np.uint64(parts)
            for part in range(parts):
                files[part].write(keyed[part_of == part].tobytes())
    for number, path in enumerate(paths, 1):
        one, other, rows = np.fromfile(path, dtype=np.uint64).reshape(-1, 3).T
        order = np.lexsort((rows, other, one))
        again = (np.diff(one[order]) == 0) & (np.diff(other[order]) == 0)
        keep[rows[order][1:][again].astype(np.int64)] = False
        path.unlink()
        progress("removing duplicates", len(keys) * number // parts)
    return keep


def thin(mask: Mask, count: int, generator: np.random.Generator) -> None:
    """Leave `count` of the True entries True, in place; every choice as likely as another, in one pass by chunks."""
    left = int(np.count_nonzero(mask))
    assert count <= left, (count, left)
    for start in range(0, len(mask), CHUNK):
        chunk = mask[start : start + CHUNK]
        rows = np.flatnonzero(chunk)
        if len(rows):
            take = int(generator.hypergeometric(len(rows), left - len(rows), count))
            chunk[rows] = False
            chunk[rows[generator.choice(len(rows), take, replace=False, shuffle=False)]] = True
            left, count = left - len(rows), count - take
