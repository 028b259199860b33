"""Exact nearest documents by a similarity or by Hamming distance, block by block, so that memory does not grow.

Equal scores rank by row number; tasks keep their documents in trec_eval's order of ties. A product of large matrices
may give equal documents scores that differ in the last bit. `top_k` therefore finds `SPARE` more documents than
requested and computes their scores again in float64, so that block sizes change nothing. Only if more than `SPARE`
documents tie across the limit, and their vectors are not whole numbers, may others of them be chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from distilvec.core.similarity import Similarity

Array = np.ndarray[Any, Any]
Search = Callable[
    [Array, Array, int, Array | None], tuple[Array, Array]
]  # queries, documents, count, last: rows, scores
Decode = Callable[[Array], Array]  # stored documents [..., stored dim] to float32 [..., dim]

BLOCK = 8192  # documents in a block
SPARE = 64
OVERSAMPLING = 4
_VALUES_AT_ONCE = 4_000_000  # scores of a block, or vector components that are scored again


def top_k(
    queries: Array,
    documents: Array,
    count: int,
    last: Array | None = None,
    *,
    similarity: Similarity = "cosine",
    block: int = BLOCK,
) -> tuple[Array, Array]:
    """The `count` most similar documents of every query: rows int64 and scores float32, both [queries, count].

    `queries` [queries, dim] and `documents` [documents, dim] may have any number type and be memory-mapped. Documents
    with True in `last` (bool [documents]) come after all others, with score -infinity. The cosine with a zero vector is
    0; the score of "euclidean" is the negative distance. `count` is limited to the number of documents.
    """
    queries = np.asarray(queries, dtype=np.float32)
    rows = _scored_candidates(queries, documents, _floats, count + SPARE, last, similarity, block)[0]
    return _score_again(queries, documents, _floats, rows, count, last, similarity)


class DocumentSearch:
    """The `count` most similar documents of every query, among rows that come batch by batch.

    A document may have several rows: its score is that of the best one. `rows` int64, `scores` float32 and `documents`
    uint64 are the numbers of these rows, their scores and the keys of their documents, best first, all
    [queries, documents until now, at most `count`]; equal scores rank by row number. Nothing else is kept of a batch.
    """

    def __init__(self, queries: Array, count: int, similarity: Similarity) -> None:
        self.queries = np.asarray(queries, dtype=np.float32)
        self.count = count
        self.similarity = similarity
        self.rows = np.empty((len(queries), 0), dtype=np.int64)
        self.scores = np.empty((len(queries), 0), dtype=np.float32)
        self.documents = np.empty((len(queries), 0), dtype=np.uint64)

    def add(self, vectors: Array, documents: Array, numbers: Array) -> None:
        """Search further rows: `vectors` [rows, dim], the keys of their documents and their numbers, both [rows]."""
        if not len(vectors):
            return
        best_rows, best_scores = self._best_of_batch(vectors, documents)
        rows = np.concatenate([self.rows, numbers[best_rows]], axis=1)
        scores = np.concatenate([self.scores, best_scores], axis=1)
        keys = np.concatenate([self.documents, documents[best_rows]], axis=1)
        order = np.lexsort((rows, -scores), axis=1)
        rows, scores, keys = (np.take_along_axis(values, order, axis=1) for values in (rows, scores, keys))

        is_first = _is_first(keys)
        count = min(self.count, int(is_first.sum(axis=1).min()))
        best = np.argsort(~is_first, axis=1, kind="stable")[:, :count]
        self.rows = np.take_along_axis(rows, best, axis=1)
        self.scores = np.take_along_axis(scores, best, axis=1)
        self.documents = np.take_along_axis(keys, best, axis=1)

    def _best_of_batch(self, vectors: Array, documents: Array) -> tuple[Array, Array]:
        """So many of a batch's best rows that no further one can be the first of a document among the best."""
        wanted = min(self.count, len(np.unique(documents)))
        count = self.count
        while True:
            rows, scores = top_k(self.queries, vectors, count, similarity=self.similarity)
            is_enough = _is_first(documents[rows]).sum(axis=1) >= wanted
            if self.scores.shape[1] == self.count:
                is_enough |= scores[:, -1] <= self.scores[:, -1]
            if is_enough.all() or rows.shape[1] == len(vectors):
                return rows, scores
            count *= 4


def _is_first(keys: Array) -> Array:
    """Which keys are the first equal ones of their row, bool as `keys` [rows, n]."""
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(keys, order, axis=1)
    is_first = np.ones(keys.shape, dtype=bool)
    np.put_along_axis(is_first, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
    return is_first


def without_own(ranked: Array, own_rows: Sequence[int], count: int) -> Array:
    """The first `count` documents of every query, of rankings `ranked` [queries, ranks] with one document to spare.

    The document that is the query itself, of the row in `own_rows` (-1: none), goes to the end: it is among the results
    only where there are not enough others.
    """
    is_own = ranked == np.asarray(own_rows)[:, None]
    order = np.argsort(is_own, axis=1, kind="stable")
    return np.take_along_axis(ranked, order, axis=1)[:, :count]


def hamming_top_k(
    queries: Array, documents: Array, count: int, last: Array | None = None, *, block: int = BLOCK
) -> tuple[Array, Array]:
    """Nearest documents by differing bits: rows int64 [queries, count], distances float32 [queries, count].

    Inputs are packed signs of `pack_signs`, uint8 [rows, ceil(dim / 8)]; documents of `last` have distance infinity.
    Note: distances are products of +1 and -1, which is exact and, for many queries, faster than counting bits.
    """
    rows, products = _scored_candidates(_signs(queries), documents, _signs, count, last, "dot", block)
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
    """Rank the `oversampling` x `count` nearest by Hamming distance by float query times document signs.

    `queries` float [queries, dim], `documents` packed signs, uint8 [documents, ceil(dim / 8)]. The order is that of
    sentence_transformers.util.quantization, which multiplies with bits 0 and 1.
    """
    queries = np.asarray(queries, dtype=np.float32)
    near = hamming_top_k(pack_signs(queries), documents, oversampling * count, last, block=block)[0]
    return _score_again(queries, documents, _signs, near, count, last, "dot")


def pack_signs(vectors: Array) -> Array:
    """One bit per dimension, set if above 0: uint8 [rows, ceil(dim / 8)], "ubinary" of sentence-transformers."""
    return np.packbits(np.asarray(vectors) > 0, axis=1)


def rank_scores(scores: Array, count: int) -> Array:
    """Columns of the `count` highest scores of every row, highest first, ties by column number, int64 [rows, count].

    The float32 bits of a score, as an integer of the same order, and its column make a distinct 64-bit key.
    """
    columns = scores.shape[1]
    bits = (np.asarray(scores, dtype=np.float32) + np.float32(0)).view(np.int32).astype(np.int64)
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) * 2**32 + np.arange(columns - 1, -1, -1)
    if count < columns:
        keys = np.partition(keys, columns - count, axis=1)[:, columns - count :]
    return np.asarray(columns - 1 - (np.sort(keys, axis=1)[:, ::-1] & 0xFFFFFFFF))


def _scored_candidates(
    queries: Array,
    documents: Array,
    decode: Decode,
    count: int,
    last: Array | None,
    similarity: Similarity,
    block: int,
) -> tuple[Array, Array]:
    """The `count` best rows by float32 products, best first, and numbers that rank them.

    These are the similarities but for what is equal for all documents of a query: its length.
    """
    count, chunk = min(count, len(documents)), max(1, _VALUES_AT_ONCE // block)
    rows = np.empty((len(queries), count), dtype=np.int64)
    scores = np.full((len(queries), count), -np.inf, dtype=np.float32)
    for start in range(0, len(documents), block):
        part = decode(documents[start : start + block])
        squares = np.zeros(len(part)) if similarity == "dot" else np.einsum("bd,bd->b", part, part, dtype=np.float64)
        before, after = min(start, count), min(start + len(part), count)
        for first in range(0, len(queries), chunk):
            part_of_queries = slice(first, first + chunk)
            products = queries[part_of_queries] @ part.T
            if similarity == "cosine":
                products *= (1 / np.sqrt(np.where(squares > 0, squares, 1))).astype(np.float32)
            elif similarity == "euclidean":
                products -= (squares / 2).astype(np.float32)
            if last is not None:
                products[:, last[start : start + block]] = -np.inf
            rows[part_of_queries, :after], scores[part_of_queries, :after] = _merge_blocks(
                rows[part_of_queries, :before], scores[part_of_queries, :before], products, start, after
            )
    return rows, scores


def _merge_blocks(rows: Array, scores: Array, block_scores: Array, start: int, count: int) -> tuple[Array, Array]:
    """The `count` best of the known documents and of a block, `block_scores` [queries, block], from row `start` on.

    Once `count` are known, only a score above their lowest can enter: an equal one has the larger row number.
    """
    if rows.shape[1] < count:
        more_rows = np.broadcast_to(start + np.arange(block_scores.shape[1]), block_scores.shape)
        more_scores = block_scores
    else:
        query, column = np.divmod(np.flatnonzero(block_scores > scores[:, -1:]), block_scores.shape[1])
        if not len(query):
            return rows, scores
        slot = np.arange(len(query)) - np.searchsorted(query, query)
        more_scores = np.full((len(block_scores), int(slot.max()) + 1), -np.inf, dtype=np.float32)
        more_rows = np.zeros(more_scores.shape, dtype=np.int64)
        more_scores[query, slot], more_rows[query, slot] = block_scores[query, column], start + column
    rows, scores = np.concatenate([rows, more_rows], axis=1), np.concatenate([scores, more_scores], axis=1)
    order = rank_scores(scores, count)
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _score_again(
    queries: Array,
    documents: Array,
    decode: Decode,
    rows: Array,
    count: int,
    last: Array | None,
    similarity: Similarity,
) -> tuple[Array, Array]:
    """The `count` best of the candidate `rows` [queries, candidates] by float64 products, rounded to float32."""
    scores = np.empty(rows.shape, dtype=np.float32)
    chunk = max(1, _VALUES_AT_ONCE // max(1, rows.shape[1] * queries.shape[1]))
    for first in range(0, len(rows), chunk):
        part_of_queries = slice(first, first + chunk)
        query = queries[part_of_queries]
        candidates = decode(documents[rows[part_of_queries]])[..., : queries.shape[1]]
        if similarity == "euclidean":
            scores[part_of_queries] = -np.linalg.norm(query[:, None].astype(np.float64) - candidates, axis=2)
            continue
        products = np.einsum("qd,qcd->qc", query, candidates, dtype=np.float64)
        if similarity == "cosine":
            squares = np.einsum("qcd,qcd->qc", candidates, candidates, dtype=np.float64)
            squares *= np.einsum("qd,qd->q", query, query, dtype=np.float64)[:, None]
            products /= np.sqrt(np.where(squares > 0, squares, 1))
        scores[part_of_queries] = products
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
