"""A few of many, evenly spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Item = TypeVar("Item")


def evenly_spread(total: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most `most` of the numbers 0 to total - 1, evenly spread with the first and the last, each once.

    One alone is the first. Halves go to the even neighbour: 3 of 6 are 0, 2 and 5.
    """
    count = max(0, min(most, total))
    return np.linspace(0, total - 1, count).round().astype(np.int64)


def spread_items(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most `most` of the items, evenly spread."""
    return [items[number] for number in evenly_spread(len(items), most)]
