"""What a row of a cache has: signals of one width, and signals of uneven length, their values end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

HIDDEN = "hidden"


@dataclass(frozen=True)
class Signal:
    """`width` values of `dtype` a row; where `uneven`, a row has any number of items, each of `width` values."""

    width: int
    dtype: str
    uneven: bool = False


@dataclass(frozen=True)
class Ragged:
    """Rows of uneven length: `values` [items, width] end to end, `lengths` [rows] items of each."""

    values: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64 [rows + 1]: where each row's items begin, and the end."""
        return np.r_[0, np.cumsum(self.lengths, dtype=np.int64)]

    def take(self, rows: npt.NDArray[np.int64]) -> Ragged:
        """These rows, in this order."""
        lengths = self.lengths[rows]
        return Ragged(self.values[item_places(self.offsets[:-1][rows], lengths)], lengths)


@dataclass(frozen=True)
class TokenSettings:
    """What a cache tells of a teacher's tokens, and all that this depends on beside the teacher. None: it does not apply.

    `hidden` is the number format of the hidden states of `hidden_layers` (-1: the last). The student's tokenizer and
    `student_max_length` change the pairs, and with them the selected ones and their Gram matrices, nothing else.
    """

    hidden: str | None = None
    hidden_width: int | None = None
    hidden_layers: tuple[int, ...] = ()
    importance: bool = False
    gram_layers: tuple[int, ...] = ()
    divisor: int | None = None
    alignment: str | None = None
    student_tokenizer: str | None = None
    student_max_length: int | None = None

    @property
    def hidden_names(self) -> dict[int, str]:
        """What the hidden states of each layer are called in the cache."""
        return {layer: HIDDEN if layer == -1 else f"{HIDDEN}{layer}" for layer in self.hidden_layers}

    @property
    def signals(self) -> dict[str, Signal]:
        """How they lie in the cache (teachers/cache/codec.py)."""
        found: dict[str, Signal] = {}
        if self.hidden_width is not None:
            packed = self.hidden == "int8"
            states = Signal(self.hidden_width + 4 * packed, "int8" if packed else "float16", uneven=True)
            found |= dict.fromkeys(self.hidden_names.values(), states)
        if self.importance:
            found["importance"] = Signal(1, "float16", uneven=True)
        if self.gram_layers:
            found["selected"] = Signal(2, "int16", uneven=True)
            found["grams"] = Signal(len(self.gram_layers), "float16", uneven=True)
        return found


def item_places(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [items]: the places of the items of rows that begin at `starts` (both [rows])."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def join(parts: Sequence[Ragged]) -> Ragged:
    """Several parts, one after another."""
    return Ragged(np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts]))
