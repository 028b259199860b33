"""A model as the query encoder of an index, judged on the queries of a log: no labels, and the whole index is searched.

The model that made the index embeds the queries, and so does the student; both search all stored rows, which are read
batch by batch. What the index's own model finds is right by definition: overlap@10 is the share of its ten documents
among the student's ten, and the share among the student's first WIDER is what a reranker could still put right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError, about, each_about
from distilvec.core.log import progress
from distilvec.core.similarity import FEWEST_CANDIDATES, NEIGHBOR_COUNT
from distilvec.core.vectors import spread_items
from distilvec.data.origins import origin_numbers
from distilvec.evaluation.overlap import (
    PARTS,
    WIDER,
    DifferingQuery,
    Hit,
    Judgement,
    LengthOverlap,
    LogOverlap,
    PartOverlap,
    QueryOverlaps,
    shares,
)
from distilvec.evaluation.search import DocumentSearch
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.table_embedder import TableEmbedder

Array = np.ndarray[Any, Any]
MOST_QUERIES = 1000  # of a log: an interval reaches 0.03 to each side at most
DIFFERING = 20
GROUPS = 3  # of queries by their length


@dataclass(frozen=True)
class QueryLog:
    """Queries drawn evenly from the `distinct` ones of a log."""

    queries: list[str]
    distinct: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> QueryLog:
        """Draw at most MOST_QUERIES; equal ones count once, empty ones not at all."""
        distinct = [text for text in dict.fromkeys(map(str.strip, texts)) if text]
        if not distinct:
            raise DistilvecError("the log has no query.", "Give a file with one query a line.", key="queries")
        return cls(spread_items(distinct, MOST_QUERIES), len(distinct))


@dataclass(frozen=True)
class _Searches:
    """The same rows, searched by both models' vectors of the queries."""

    maker: DocumentSearch
    student: DocumentSearch
    start: DocumentSearch | None = None

    @classmethod
    def of(cls, maker: Array, student: Array, index: TableEmbedder, start: Array | None = None) -> _Searches:
        """Begin with no rows."""
        return cls(
            DocumentSearch(maker, NEIGHBOR_COUNT, index.similarity),
            DocumentSearch(student, WIDER, index.similarity),
            None if start is None else DocumentSearch(start, WIDER, index.similarity),
        )

    def add(self, vectors: Array, documents: Array, numbers: Array) -> None:
        """Search further rows."""
        for search in (self.maker, self.student, self.start):
            if search is not None:
                search.add(vectors, documents, numbers)

    def overlaps(self, search: DocumentSearch, origins: Array) -> QueryOverlaps:
        """The shares by query that the student or its start finds."""
        expected = self.maker.documents
        among = shares(expected, search.documents[:, :NEIGHBOR_COUNT])
        return QueryOverlaps(among=among, among_wider=shares(expected, search.documents), origins=origins)


def judge_log(
    log: QueryLog,
    maker: str,
    maker_vectors: Array,
    student: Embedder,
    index: TableEmbedder,
    start: Embedder | None = None,
) -> Judgement:
    """Judge a student by the queries of a log: it and the index's model search all rows of the index.

    `maker` is that model's name, `maker_vectors` are its vectors of the queries, float32 [queries, dim]; `start` is the
    student before its training. Of a part of
    an index the shares among fewer of its documents are measured as well.
    Errors: DistilvecError for an index of too few documents.
    """
    with about("teacher"):
        by_document = index.named_documents >= FEWEST_CANDIDATES
    student_vectors = student.embed(log.queries, "query")
    start_vectors = None if start is None else start.embed(log.queries, "query")
    whole = _Searches.of(maker_vectors, student_vectors, index, start_vectors)
    parts = {}
    if index.all_rows is not None:
        parts = {divisor: _Searches.of(maker_vectors, student_vectors, index) for divisor in PARTS}
    candidates = dict.fromkeys(parts, 0)
    keys = [np.empty(0, dtype=np.uint64)]  # of all documents
    rows = 0
    with progress(f"searching {index.shown}", index.table.rows_of_files, "rows") as advance:
        for batch, documents in each_about(index.document_rows(by_document), "teacher"):
            vectors = batch.vectors["embedding"]
            whole.add(vectors, documents, batch.numbers)
            for divisor, searches in parts.items():
                chosen = documents % divisor == 0  # keys are hashes, so that a document is in a part as a whole
                searches.add(vectors[chosen], documents[chosen], batch.numbers[chosen])
                candidates[divisor] += int(chosen.sum())
            keys.append(np.unique(documents))
            rows += len(batch)
            advance(rows)
    if whole.student.documents.shape[1] < FEWEST_CANDIDATES:
        raise DistilvecError(
            f"{index.shown} has {whole.student.documents.shape[1]} documents; expected at least {FEWEST_CANDIDATES}.",
            "Give an index with more of them.",
            key="index",
        )

    origins = origin_numbers(log.queries)
    overlaps = whole.overlaps(whole.student, origins)
    of_start = None if whole.start is None else whole.overlaps(whole.start, origins)
    summary = overlaps.summary()
    assert summary.among is not None
    measured_parts = []
    for divisor, searches in parts.items():
        if searches.student.documents.shape[1] >= FEWEST_CANDIDATES:
            among = searches.overlaps(searches.student, origins).summary().among
            assert among is not None
            measured_parts.append(PartOverlap(candidates[divisor], among))
    if parts:
        measured_parts.append(PartOverlap(rows, summary.among))
    return Judgement(
        origin="index",
        queries=len(log.queries),
        candidates=len(np.unique(np.concatenate(keys))) if by_document else rows,
        texts=rows,
        similarity=index.similarity,
        student=summary,
        start=None if of_start is None else of_start.summary(),
        gain=None if of_start is None else overlaps.less(of_start),
        query_origins=len(np.unique(origins)),
        similarity_source=index.similarity_source,
        all_rows=index.all_rows,
        parts=tuple(measured_parts),
        by_document=by_document,
        log=LogOverlap(
            maker,
            log.distinct,
            _by_length(log.queries, overlaps),
            _differing(log.queries, overlaps, whole, index),
        ),
    )


def _by_length(queries: Sequence[str], overlaps: QueryOverlaps) -> tuple[LengthOverlap, ...]:
    """The shares of GROUPS of queries of about one size each, by characters; queries of one length are in one group."""
    lengths = np.array([len(query) for query in queries])
    limits = np.quantile(lengths, np.arange(1, GROUPS) / GROUPS, method="lower")
    group_of_query = np.searchsorted(limits, lengths)
    groups = []
    for group in np.unique(group_of_query):
        mask = group_of_query == group
        shortest, longest = int(lengths[mask].min()), int(lengths[mask].max())
        groups.append(LengthOverlap(shortest, longest, int(mask.sum()), overlaps.summary(mask)))
    return tuple(groups)


def _differing(
    queries: Sequence[str], overlaps: QueryOverlaps, searches: _Searches, index: TableEmbedder
) -> tuple[DifferingQuery, ...]:
    """The queries for which the student finds least, with both lists; those with the same ten documents are none."""
    among, among_wider = overlaps.among, overlaps.among_wider
    assert among is not None and among_wider is not None
    order = np.lexsort((np.arange(len(queries)), among_wider, among))
    chosen = order[among[order] < 1][:DIFFERING].tolist()
    lists = [(search.rows[:, :NEIGHBOR_COUNT], search.scores) for search in (searches.maker, searches.student)]
    wanted = {int(row) for rows, _ in lists for row in rows[chosen].ravel()}
    stored = index.table.ids_and_texts(wanted)
    differing = []
    for query in chosen:
        hits = []
        for rows, scores in lists:
            pairs = zip(rows[query].tolist(), scores[query].tolist(), strict=False)
            hits.append(tuple(Hit(*stored[row], score) for row, score in pairs))
        differing.append(DifferingQuery(queries[query], float(among[query]), float(among_wider[query]), *hits))
    return tuple(differing)
