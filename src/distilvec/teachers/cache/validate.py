"""Checks of vectors before any of a shard is written: an error quotes the first text concerned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.signals import Array, Ragged, Signal

Describe = Callable[[int], str]  # the text of a row

_QUOTE_LENGTH = 80  # characters
_INVALID = "Look at this text and at teacher.dtype; float32 often helps."
_FLOAT32 = "Set cache.dtype=float32."
_EMPTY = "A zero vector has no direction: drop such texts, or look at teacher.max_length and the tokenizer."


def stored_form(name: str, values: Array | Ragged, rows: int, signal: Signal, describe: Describe) -> Array | Ragged:
    """A signal of `rows` texts in the number format of the cache; of uneven length it comes in that format.

    Errors: DistilvecError for another shape, NaN, infinite or all-zero vectors and values that overflow the format.
    """
    if isinstance(values, Ragged):
        _check_ragged(name, values, rows, signal, describe)
        return values
    values = np.asarray(values)
    if values.shape != (rows, signal.width):
        raise _wrong_shape(f"{name} vectors", values, f"[{rows}, {signal.width}]", rows)
    with np.errstate(over="ignore"):  # an overflow is refused below, with its text
        stored = values.astype(signal.dtype)
    refuse(np.isfinite(values).all(1), f"{name} vectors hold NaN or infinity", describe)
    refuse(np.isfinite(stored).all(1), f"{name} vectors overflow {signal.dtype}", describe, _FLOAT32)
    refuse(values.any(1), f"{name} vectors are all zeros", describe, _EMPTY)
    refuse(stored.any(1), f"{name} vectors are all zeros in {signal.dtype}", describe, _FLOAT32)
    return stored


def _check_ragged(name: str, values: Ragged, rows: int, signal: Signal, describe: Describe) -> None:
    shape = (int(values.lengths.sum()), signal.width)
    if values.values.shape != shape or values.values.dtype != signal.dtype or len(values) != rows:
        what = f"{name} of {len(values):,} rows"
        raise _wrong_shape(what, values.values, f"{list(shape)} {signal.dtype}", rows)
    if signal.dtype == "float16":
        is_valid = np.ones(rows, dtype=bool)
        wrong_items = np.flatnonzero(~np.isfinite(values.values).all(1))
        is_valid[np.searchsorted(values.offsets, wrong_items, side="right") - 1] = False
        refuse(is_valid, f"{name} holds NaN, infinity or values beyond float16", describe)


def refuse(is_valid: Any, problem: str, describe: Describe, fix: str = _INVALID) -> None:
    """DistilvecError that quotes the first text that is not valid (`is_valid`: [rows]), unless all are."""
    if is_valid.all():
        return
    text = beginning(describe(int(np.argmin(is_valid))))
    count = int((~is_valid).sum())
    raise DistilvecError(
        f"{problem}: {count:,} of {len(is_valid):,} texts, such as {text}.",
        f"{fix} Shards before are kept.",
        key="teacher",
    )


def worst_cosine(exact: Array, stored: Array) -> float:
    """Smallest cosine between vectors and their stored form (both [rows, dim]), to 9 digits."""
    dots = np.einsum("rd,rd->r", exact, stored, dtype=np.float64)
    exact_squares = np.einsum("rd,rd->r", exact, exact, dtype=np.float64)
    stored_squares = np.einsum("rd,rd->r", stored, stored, dtype=np.float64)
    cosines = dots / np.sqrt(exact_squares * stored_squares)
    return round(float(min(1.0, cosines.min())), 9)


def beginning(text: str) -> str:
    """The start of a text in quotes, on one line."""
    line = " ".join(text.split())
    if len(line) > _QUOTE_LENGTH:
        line = line[:_QUOTE_LENGTH] + "…"
    return repr(line)


def _wrong_shape(what: str, values: Array, expected: str, rows: int) -> DistilvecError:
    return DistilvecError(
        f"the teacher's {what} have shape {values.shape} and type {values.dtype}; expected {expected}, for {rows:,} "
        "texts, as the cache's manifest has it. The model has changed since: choose another cache folder.",
        key="teacher",
    )
