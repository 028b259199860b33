"""Checks of vectors before any of a shard is written: an error quotes the first text concerned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.signals import Array, Ragged, Signal

Describe = Callable[[int], str]  # the text of a row

_LONGEST_QUOTE = 80
_BROKEN = "Look at this text and at teacher.dtype; float32 often helps."
_FLOAT32 = "Set cache.dtype=float32."
_EMPTY = "A zero vector has no direction: drop such texts, or look at teacher.max_length and the tokenizer."


def stored_form(name: str, values: Array | Ragged, rows: int, signal: Signal, describe: Describe) -> Any:
    """A signal of `rows` texts in the number format of the cache; of uneven length it comes in that format.

    Errors: DistilvecError for another shape, NaN, infinite or all-zero vectors and values that overflow the format.
    """
    if isinstance(values, Ragged):
        expected = (int(values.lengths.sum()), signal.width)
        if values.values.shape != expected or values.values.dtype != signal.dtype or len(values) != rows:
            raise _misshaped(f"{name} of {len(values):,} rows", values.values, f"{list(expected)} {signal.dtype}", rows)
        good = np.ones(rows, dtype=bool)
        if signal.dtype == "float16":
            items = np.flatnonzero(~np.isfinite(values.values).all(1))
            good[np.searchsorted(values.offsets, items, side="right") - 1] = False
        refuse(good, f"{name} holds NaN, infinity or values beyond float16", describe)
        return values
    values = np.asarray(values)
    if values.shape != (rows, signal.width):
        raise _misshaped(f"{name} vectors", values, f"[{rows}, {signal.width}]", rows)
    with np.errstate(over="ignore"):
        stored = values.astype(signal.dtype)
    refuse(np.isfinite(values).all(1), f"{name} vectors hold NaN or infinity", describe)
    refuse(np.isfinite(stored).all(1), f"{name} vectors overflow {signal.dtype}", describe, _FLOAT32)
    refuse(values.any(1), f"{name} vectors are all zeros", describe, _EMPTY)
    refuse(stored.any(1), f"{name} vectors are all zeros in {signal.dtype}", describe, _FLOAT32)
    return stored


def refuse(good: Any, problem: str, describe: Describe, fix: str = _BROKEN) -> None:
    """DistilvecError that quotes the first text that is not `good` ([rows])."""
    if not good.all():
        text = shortened(describe(int(np.argmin(good))))
        raise DistilvecError(
            "teacher",
            f"{problem}: {int((~good).sum()):,} of {len(good):,} texts, such as {text}.",
            f"{fix} Shards before are kept.",
        )


def worst_cosine(exact: Array, stored: Array) -> float:
    """Smallest cosine between vectors and their stored form (both [rows, dim]), to 9 digits."""
    dot, own, other = (
        np.einsum("rd,rd->r", one, two, dtype=np.float64)
        for one, two in ((exact, stored), (exact, exact), (stored, stored))
    )
    return round(float(min(1.0, (dot / np.sqrt(own * other)).min())), 9)


def shortened(text: str) -> str:
    """The start of a text in quotes, on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST_QUOTE else line[:_LONGEST_QUOTE] + "…")


def _misshaped(what: str, values: Array, expected: str, rows: int) -> DistilvecError:
    return DistilvecError(
        "teacher",
        f"the teacher's {what} have shape {values.shape} and type {values.dtype}; expected {expected}, for {rows:,} "
        "texts, as the cache's manifest has it. The model has changed since: choose another cache folder.",
    )
