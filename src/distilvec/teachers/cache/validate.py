"""Vectors are checked before any of a shard is written: what is wrong is said with the text it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError
from distilvec.teachers.cache.layout import Ragged, Signal

Describe = Callable[[int], str]

_LONGEST_QUOTE = 80
_CHUNK = 2048  # rows looked at together, which bounds the memory


def stored_form(
    signal: str, vectors: npt.NDArray[Any], rows: int, width: int, dtype: npt.DTypeLike, describe: Describe
) -> npt.NDArray[Any]:
    """The vectors [rows, width] in the number format of the cache.

    `describe(row)` gives the text of a row. Errors: DistilvecError for another shape, NaN, infinite or all-zero vectors
    and values that overflow the format.
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise DistilvecError(
            f"[teacher] the teacher's {signal} vectors have shape {vectors.shape}; expected [{rows}, {width}] as the cache's manifest "
            "says. The model has changed since the cache was made: choose another cache folder."
        )
    if len(vectors) != rows:
        raise DistilvecError(
            f"[teacher] the teacher gave {len(vectors):,} {signal} vectors for {rows:,} texts; expected one for each. "
            "Nothing was written: this is an error of the teacher's own code or table."
        )
    stored = np.empty((rows, width), dtype=dtype)
    for start in range(0, rows, _CHUNK):
        chunk = np.asarray(vectors[start : start + _CHUNK])
        with np.errstate(over="ignore"):
            cast = chunk.astype(dtype)
        stored[start : start + _CHUNK] = cast
        _refuse(np.isfinite(chunk).all(1), start, rows, describe, f"{signal} vectors hold NaN or infinity", _BROKEN)
        _refuse(np.isfinite(cast).all(1), start, rows, describe, f"{signal} vectors overflow {np.dtype(dtype)}", _WIDER)
        _refuse(chunk.any(1), start, rows, describe, f"{signal} vectors are all zeros", _EMPTY)
        _refuse(cast.any(1), start, rows, describe, f"{signal} vectors are all zeros in {np.dtype(dtype)}", _WIDER)
    return stored


def stored_items(name: str, found: Ragged, rows: int, signal: Signal, describe: Describe) -> Ragged:
    """A signal of uneven length, which comes in the number format of the cache; DistilvecError for another shape or NaN."""
    expected = f"[items, {signal.width}] {signal.dtype} of {rows:,} rows"
    fits = (
        found.values.shape == (int(found.lengths.sum()), signal.width)
        and found.values.dtype == signal.dtype
        and len(found) == rows
    )
    if not fits:
        raise DistilvecError(
            f"[teacher] the teacher's {name} has shape {found.values.shape} and type {found.values.dtype} for {len(found):,} rows; "
            f"expected {expected}, as the cache's manifest says."
        )
    if signal.dtype == "float16":
        broken = ~np.isfinite(found.values).all(1)
        if broken.any():
            first = int(np.searchsorted(found.offsets, int(np.argmax(broken)), side="right")) - 1
            good = np.arange(rows) != first
            _refuse(good, 0, rows, describe, f"{name} holds NaN, infinity or what float16 cannot hold", _BROKEN)
    return found


def refuse_broken(good: npt.NDArray[np.bool_], what: str, describe: Describe) -> None:
    """DistilvecError that names the first text that is not `good` ([rows]); `what` is the signal."""
    _refuse(good, 0, len(good), describe, f"{what} hold NaN or infinity", _BROKEN)


def worst_cosine(exact: npt.NDArray[Any], stored: npt.NDArray[Any]) -> float:
    """The smallest cosine between vectors and their stored form (both [rows, width]), to 9 digits."""
    worst = 1.0
    for start in range(0, len(exact), _CHUNK):
        one, other = (array[start : start + _CHUNK].astype(np.float64) for array in (exact, stored))
        cosines = (one * other).sum(1) / np.sqrt((one * one).sum(1) * (other * other).sum(1))
        worst = min(worst, float(cosines.min()))
    return round(worst, 9)


def cut_dimensions(vectors: npt.NDArray[np.float32], width: int, normalized: bool) -> npt.NDArray[np.float32]:
    """The first `width` dimensions of [rows, full], brought back to length 1 where the model normalises."""
    if vectors.shape[1] == width:
        return vectors
    cut = np.ascontiguousarray(vectors[:, :width])
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12) if normalized else cut


def shortened(text: str) -> str:
    """The start of a text in quotes, on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= _LONGEST_QUOTE else line[:_LONGEST_QUOTE] + "…")


_BROKEN = "Look at this text and at teacher.dtype; float32 often helps."
_WIDER = "Set cache.dtype=float32."
_EMPTY = (
    "A zero vector has no direction to learn from: drop such texts, or look at teacher.max_length and the tokenizer."
)


def _refuse(good: Any, start: int, rows: int, describe: Describe, what: str, todo: str) -> None:
    if not good.all():
        first = start + int(np.argmin(good))
        raise DistilvecError(
            f"[teacher] {what}: the first of them among the {rows:,} texts of this shard belongs to {shortened(describe(first))}. "
            f"{todo} Nothing of this shard was written; shards before it are kept."
        )
