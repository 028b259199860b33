"""Exact nearest documents by cosine, dot product or Hamming distance, block by block, so that memory does not grow.

Among equal scores the document with the smaller row number comes first; tasks keep their documents in trec_eval's order of
ties (tasks.py). A product of large matrices gives equal documents scores that differ in the last bit, depending on where in
a block they stand. So `top_k` keeps `SPARE` documents more than it was asked for and computes the scores of those again,
each by itself in float64; what it returns does not depend on the size of the blocks. Only where more than `SPARE`
documents of equal score lie across the cut, and their vectors are not whole numbers, may others of them be chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np

from distilvec.core.errors import DistilvecError

Array = np.ndarray[Any, Any]
Metric = Literal["cosine", "dot"]
Search = Callable[
    [Array, Array, int, Array | None], tuple[Array, Array]
]  # (queries, documents, count, last) -> (rows, scores)

BLOCK = 8192  # documents in a block
SPARE = 64
OVERSAMPLING = 4
_VALUES_AT_ONCE = 4_000_000  # scores of a block, or numbers of the vectors that are scored again


def top_k(
    queries: Array,
    documents: Array,
    count: int,
    last: Array | None = None,
    *,
    metric: Metric = "cosine",
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """The `count` best documents of every query, best first: rows int64 [queries, count], scores float32 [queries, count].

    `queries` [queries, width] and `documents` [documents, width] may hold floats or integers of any precision (float16, int8
    ...) and be memory-mapped; one block of documents at a time becomes float32. Documents marked in `last` (bool [documents])
    come after all others, with score -infinity. The cosine with a zero vector is 0. `count` is cut to the number of documents.
    Errors: DistilvecError for two widths, or numbers that are not finite.
    """
    queries = np.asarray(queries, dtype=np.float32)
    _check(queries, documents, count, "numbers")
    found = _candidates(queries, documents, _floats, count + SPARE, last, metric == "cosine", block)[0]
    return _scored_again(queries, documents, _floats, found, count, last, metric == "cosine")


def hamming_top_k(
    queries: Array, documents: Array, count: int, last: Array | None = None, *, block: int = BLOCK
) -> tuple[Array, Array]:
    """The nearest documents by differing bits, nearest first: rows int64 [queries, count], distances float32 [queries, count].

    Both sides are packed signs, uint8 [rows, ceil(width / 8)], as `pack_signs` makes them; memory-mapped if need be. Documents
    marked in `last` come after all others, at infinity.
    Note: bits become +1 and -1 again, block by block, and distances come from their product, which is exact; from about 50
    queries on this is faster than counting the bits of an exclusive or (measured: twice as fast at 200 queries).
    """
    _check(queries, documents, count, "bytes")
    rows, products = _candidates(_signs(queries), documents, _signs, count, last, False, block)
    return rows, np.asarray((8 * queries.shape[1] - products) / 2, dtype=np.float32)


def rescored_top_k(
    queries: Array,
    documents: Array,
    count: int,
    last: Array | None = None,
    *,
    oversampling: int = OVERSAMPLING,
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """Binary search with rescoring: the `oversampling` x `count` nearest by Hamming, ordered by float query times signs.

    `queries` float [queries, width], `documents` packed signs, uint8 [documents, ceil(width / 8)]. Scores are dot products
    with +1 and -1, float32 [queries, count].
    Note: sentence_transformers.util.quantization multiplies with bits 0 and 1, which gives the same order: every score
    becomes half of ours plus the same number.
    """
    queries = np.asarray(queries, dtype=np.float32)
    near = hamming_top_k(pack_signs(queries), documents, oversampling * count, last, block=block)[0]
    return _scored_again(queries, documents, _signs, near, count, last, False)


def pack_signs(vectors: Array) -> Array:
    """One bit a dimension, set where the number is above 0: uint8 [rows, ceil(width / 8)], as "ubinary" of sentence-transformers."""
    return np.packbits(np.asarray(vectors) > 0, axis=1)


def rank_scores(scores: Array, count: int) -> Array:
    """Columns of the `count` highest scores of every row, highest first, ties by column number, int64 [rows, count].

    Score (as an integer of the same order as its float32 bits) and column share one 64-bit key: keys are distinct, so a
    partition is exact and deterministic even where ties cross the cut.
    """
    columns = scores.shape[1]
    bits = (np.asarray(scores, dtype=np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) * 2**32 + np.arange(columns - 1, -1, -1)
    if count < columns:
        keys = np.partition(keys, columns - count, axis=1)[:, columns - count :]
    keys = np.sort(keys, axis=1)[:, ::-1]
    return np.asarray(columns - 1 - (keys & 0xFFFFFFFF))


# -- the blocks ------------------------------------------------------------------------------------------------------

Decode = Callable[[Array], Array]  # stored documents [..., stored width] -> float32 [..., width]


def _candidates(
    queries: Array, documents: Array, decode: Decode, count: int, last: Array | None, cosine: bool, block: int
) -> tuple[Array, Array]:
    """The `count` best rows by float32 product, best first, and their scores (not divided by the length of the query)."""
    count = min(count, len(documents))
    rows = np.empty((len(queries), count), dtype=np.int64)
    scores = np.full((len(queries), count), -np.inf, dtype=np.float32)
    chunk = max(1, _VALUES_AT_ONCE // block)
    for start in range(0, len(documents), block):
        part = decode(documents[start : start + block])
        if not np.isfinite(part).all():
            raise DistilvecError(
                f"[documents] rows {start} to {start + len(part) - 1} hold numbers that are not finite. Compute them again."
            )
        lengths = np.sqrt(np.einsum("bw,bw->b", part, part, dtype=np.float64)) if cosine else np.ones(len(part))
        inverse = (1 / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        known, now = min(start, count), min(start + len(part), count)
        for first in range(0, len(queries), chunk):
            some = slice(first, first + chunk)
            found = queries[some] @ part.T
            if cosine:
                found *= inverse
            if last is not None:
                found[:, last[start : start + block]] = -np.inf
            rows[some, :now], scores[some, :now] = _merged(rows[some, :known], scores[some, :known], found, start, now)
    return rows, scores


def _merged(rows: Array, scores: Array, found: Array, start: int, count: int) -> tuple[Array, Array]:
    """The `count` best of those known so far and of the block `found` [queries, block], whose first column is row `start`.

    Once `count` are known, only a score above the lowest of them can enter: an equal one has the larger row number.
    """
    if rows.shape[1] < count:
        more_rows, more_scores = np.broadcast_to(start + np.arange(found.shape[1]), found.shape), found
    else:
        query, column = np.divmod(np.flatnonzero(found > scores[:, -1:]), found.shape[1])
        if not len(query):
            return rows, scores
        place = np.arange(len(query)) - np.searchsorted(query, query)
        more_scores = np.full((len(found), int(place.max()) + 1), -np.inf, dtype=np.float32)
        more_rows = np.zeros(more_scores.shape, dtype=np.int64)
        more_scores[query, place], more_rows[query, place] = found[query, column], start + column
    rows, scores = np.concatenate([rows, more_rows], axis=1), np.concatenate([scores, more_scores], axis=1)
    order = rank_scores(scores, count)
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _scored_again(
    queries: Array, documents: Array, decode: Decode, rows: Array, count: int, last: Array | None, cosine: bool
) -> tuple[Array, Array]:
    """The `count` best of the candidate `rows` [queries, candidates] by products in float64, rounded to float32."""
    scores = np.empty(rows.shape, dtype=np.float32)
    width = queries.shape[1]
    chunk = max(1, _VALUES_AT_ONCE // max(1, rows.shape[1] * width))
    for first in range(0, len(rows), chunk):
        some = slice(first, first + chunk)
        found, asked = decode(documents[rows[some]])[..., :width], queries[some]
        products = np.einsum("qw,qcw->qc", asked, found, dtype=np.float64)
        if cosine:
            theirs, ours = (
                np.einsum("qcw,qcw->qc", found, found, dtype=np.float64),
                np.einsum("qw,qw->q", asked, asked, dtype=np.float64),
            )
            squares = theirs * ours[:, None]
            products /= np.sqrt(np.where(squares > 0, squares, 1))
        scores[some] = products
    if last is not None:
        scores[last[rows]] = -np.inf
    order = np.lexsort((rows, -scores), axis=1)[:, :count]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _floats(stored: Array) -> Array:
    return np.asarray(stored, dtype=np.float32)


def _signs(stored: Array) -> Array:
    """Packed bits as +1 and -1, float32 [..., 8 x bytes]; the padding of the last byte is -1 everywhere."""
    return _signs_of_bytes().take(np.asarray(stored), axis=0).reshape(*stored.shape[:-1], -1)


@cache
def _signs_of_bytes() -> Array:
    return np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32) * 2 - 1


def _check(queries: Array, documents: Array, count: int, unit: str) -> None:
    if queries.ndim != 2 or documents.ndim != 2 or queries.shape[1] != documents.shape[1]:
        raise DistilvecError(
            f"[queries] vectors of shape {queries.shape} cannot be searched in documents of shape {documents.shape}; expected two tables "
            f"with the same number of {unit} a row."
        )
    if count < 1:
        raise DistilvecError(f"[count] a search for {count} documents finds nothing. Ask for at least 1.")
    if not np.isfinite(queries).all():
        raise DistilvecError("[queries] the queries hold numbers that are not finite. Compute them again.")
