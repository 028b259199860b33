"""A judgement without labels: overlap@10, the share of the teacher's ten nearest neighbours that a model finds.

Each query is a text that was not trained on. Its neighbours are searched among texts of other origins, once with the
teacher's vectors and once with the model's:

    alone     the model embeds the query and the candidates
    among     the model embeds the query, the candidates are the teacher's vectors: only in the teacher's space
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from distilvec.core.similarity import NEIGHBOR_COUNT, Similarity, SimilaritySource
from distilvec.core.vectors import cosine_pairs
from distilvec.evaluation.search import DocumentSearch, top_k
from distilvec.evaluation.significance import difference_interval, mean_interval
from distilvec.teachers.agreement import Agreement

Array = np.ndarray[Any, Any]
Compatibility = Literal["yes", "in part", "not yet"]

WIDER = 100  # the model's candidates that would be ranked again
PARTS = (100, 10)  # a hundredth and a tenth of the candidates, searched as well where a part of an index was read
FITS, DOUBTFUL = 0.8, 0.5  # overlap@10, among the teacher's vectors


@dataclass(frozen=True)
class OverlapShare:
    """A mean over queries, from 0 to 1, with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def text(self) -> str:
        """The interval as text."""
        return f"[{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Overlap:
    """overlap@10 of one model. None where it was not, or cannot be, measured.

    `among_wider`: the mean share that is in the model's first WIDER, among the teacher's vectors, and
    `among_wider_interval` its 95% interval.
    """

    alone: OverlapShare | None = None
    among: OverlapShare | None = None
    among_wider: float | None = None
    among_wider_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class SourceOverlap:
    """The queries of one source of the corpus."""

    name: str
    queries: int
    shares: Overlap


@dataclass(frozen=True)
class PartOverlap:
    """overlap@10 among a part of the candidates, drawn at random: it falls as an index grows."""

    candidates: int
    share: OverlapShare


@dataclass(frozen=True)
class LengthOverlap:
    """The logged queries of `shortest` to `longest` characters."""

    shortest: int
    longest: int
    queries: int
    shares: Overlap


@dataclass(frozen=True)
class Hit:
    """A stored row among the ten that a query finds: its id, its text and its score."""

    id: str
    text: str
    score: float


@dataclass(frozen=True)
class DifferingQuery:
    """A query for which the student finds little of what the index's own model finds; both lists, best first."""

    query: str
    among: float
    among_wider: float
    maker: tuple[Hit, ...]
    student: tuple[Hit, ...]


@dataclass(frozen=True)
class LogOverlap:
    """The queries of a log, embedded by `made_by`, the model of the index, and by the student.

    `distinct` queries are in the log. `lengths`: from the shortest third to the longest; `differing`: the queries whose
    lists differ most.
    """

    made_by: str
    distinct: int
    lengths: tuple[LengthOverlap, ...]
    differing: tuple[DifferingQuery, ...]


@dataclass(frozen=True)
class Judgement:
    """The judgement of a student: report.json's "overlap".

    `origin`: whose vectors the student is compared with. The `queries` are texts of `query_origins` documents, over
    whose means the intervals are; None in reports of earlier versions. `candidates` of the `texts` were searched.
    `similarity` is the teacher's, of an index as `similarity_source` says. `start` is the student before training,
    `gain` the student's shares less those of the start, query by query. `trained` takes texts as queries that the
    student was trained on. `cosine` is the mean cosine of the student's and the teacher's vectors of the queries, None
    without a common space. `agreement` compares them row by row with those that an index stores. Of an index of which
    a part was read, `all_rows` are the rows of the whole, and `parts` what is found among fewer candidates. With
    `by_document` several rows of a document count once. `log` has the details where the queries are those of a log, not
    stored texts.
    """

    origin: Literal["teacher", "index"]
    queries: int
    candidates: int
    texts: int
    similarity: Similarity
    student: Overlap
    start: Overlap | None = None
    gain: Overlap | None = None
    trained: Overlap | None = None
    sources: tuple[SourceOverlap, ...] = ()
    cosine: float | None = None
    query_origins: int | None = None
    agreement: Agreement | None = None
    similarity_source: SimilaritySource | None = None
    all_rows: int | None = None
    parts: tuple[PartOverlap, ...] = ()
    by_document: bool = False
    log: LogOverlap | None = None

    @property
    def share(self) -> OverlapShare | None:
        """The number that is named first: among the teacher's vectors where there is one space, else alone."""
        return self.student.among or self.student.alone

    @property
    def by_chance(self) -> float:
        """The overlap@10 that a random choice among the candidates has."""
        return min(1.0, NEIGHBOR_COUNT / max(self.candidates, 1))

    @property
    def compatibility(self) -> Compatibility | None:
        """Whether the student's queries can search the teacher's vectors; None without a common space."""
        share = self.student.among
        if share is None:
            return None
        if share.low >= FITS:
            return "yes"
        return "in part" if share.mean >= DOUBTFUL and share.low > self.by_chance else "not yet"

    def to_json(self) -> dict[str, Any]:
        """Plain data, with every field."""
        return asdict(self)


@dataclass(frozen=True)
class QueryOverlaps:
    """The shares of one model by query, float64 [queries]; see `Overlap`.

    `origins` int64 [queries]: queries of one origin are not independent, so they count as one, with their mean. By
    default each query has its own.
    """

    alone: Array | None = None
    among: Array | None = None
    among_wider: Array | None = None
    origins: Array | None = None

    def summary(self, chosen: Array | None = None) -> Overlap:
        """Means and intervals over the origins of all queries, or of those in a mask."""
        wider = self._means(self.among_wider, chosen)
        return Overlap(
            _share(self._means(self.alone, chosen)),
            _share(self._means(self.among, chosen)),
            None if wider is None else float(wider.mean()),
            None if wider is None else mean_interval(wider)[1:],
        )

    def less(self, other: QueryOverlaps) -> Overlap:
        """Means and intervals of the differences, query by query."""
        alone = None if self.alone is None or other.alone is None else self.alone - other.alone
        among = None if self.among is None or other.among is None else self.among - other.among
        return Overlap(_gain(self._means(alone)), _gain(self._means(among)))

    def _means(self, values: Array | None, chosen: Array | None = None) -> Array | None:
        """The mean of each origin, of all queries or of those in a mask."""
        if values is None:
            return None
        origins = np.arange(len(values)) if self.origins is None else self.origins
        if chosen is not None:
            values, origins = values[chosen], origins[chosen]
        numbers = np.unique(origins, return_inverse=True)[1]
        return np.asarray(np.bincount(numbers, weights=values) / np.bincount(numbers))


def overlap_by_query(
    teacher_queries: Array,
    teacher_candidates: Array,
    student_queries: Array,
    student_candidates: Array,
    similarity: Similarity = "cosine",
    student_similarity: Similarity = "cosine",
    own: Array | None = None,
) -> Array:
    """Share of each query's nearest candidates by the teacher that are among the student's, float64 [queries].

    Candidates are in the same order. With the teacher's vectors as `student_candidates` the student searches among
    these, by their similarity. `own` [queries] are the candidates' rows that are the queries themselves, and never
    their neighbours, -1 for none; by default none is.
    """
    expected = nearest_rows(teacher_queries, teacher_candidates, NEIGHBOR_COUNT, similarity, own)
    return shares(expected, nearest_rows(student_queries, student_candidates, NEIGHBOR_COUNT, student_similarity, own))


def nearest_rows(
    queries: Array,
    candidates: Array,
    count: int,
    similarity: Similarity = "cosine",
    own: Array | None = None,
    documents: Array | None = None,
) -> Array:
    """Rows of each query's `count` nearest candidates, best first, without its `own` row: int64 [queries, count].

    With `documents`, the numbers of the documents that the candidates are parts of, int64 [candidates], these numbers
    instead, each once: a document is as near as its nearest part.
    """
    if documents is not None:
        search = DocumentSearch(queries, count, similarity)
        search.add(candidates, documents.astype(np.uint64), np.arange(len(candidates)))
        return search.documents.astype(np.int64)
    if own is None:
        return top_k(queries, candidates, count, similarity=similarity)[0]
    rows = top_k(queries, candidates, count + 1, similarity=similarity)[0]
    dropped = rows == own[:, None]
    # by inner product a text need not be among its own nearest: then the last row is the one too many
    dropped[~dropped.any(axis=1), -1] = True
    return np.asarray(rows[~dropped].reshape(len(rows), -1))


def shares(expected: Array, rows: Array) -> Array:
    """Share of each query's `expected` rows that are among its `rows`, float64 [queries]."""
    return np.asarray((expected[:, :, None] == rows[:, None, :]).any(axis=2).mean(axis=1))


def find_overlap(
    expected: Array,
    teacher_candidates: Array,
    similarity: Similarity,
    student_queries: Array,
    student_candidates: Array | None,
    common_space: bool,
    origins: Array | None = None,
    documents: Array | None = None,
) -> QueryOverlaps:
    """What a student finds of the teacher's `expected` neighbours [queries, NEIGHBOR_COUNT].

    `similarity` is the teacher's; a student in the teacher's space is trained for it. One with a space of its own is
    compared by cosine. Without `student_candidates` nothing is searched alone. `origins` are those of the queries. With
    the `documents` of the candidates, `expected` are numbers of documents; see `nearest`.
    """
    alone = among = wider = None
    if student_candidates is not None:
        compared: Similarity = similarity if common_space else "cosine"
        hits = nearest_rows(student_queries, student_candidates, NEIGHBOR_COUNT, compared, documents=documents)
        alone = shares(expected, hits)
    if common_space:
        rows = nearest_rows(student_queries, teacher_candidates, WIDER, similarity, documents=documents)
        among, wider = shares(expected, rows[:, :NEIGHBOR_COUNT]), shares(expected, rows)
    return QueryOverlaps(alone, among, wider, origins)


def mean_cosine(first: Array, second: Array) -> float:
    """Mean cosine of row i of `first` [rows, dim] with row i of `second`, -1..1; a zero vector counts as 0."""
    return float(cosine_pairs(first, second).mean())


def _share(values: Array | None) -> OverlapShare | None:
    return None if values is None else OverlapShare(*mean_interval(values))


def _gain(differences: Array | None) -> OverlapShare | None:
    interval = None if differences is None else difference_interval([differences])
    return (
        None if interval is None else OverlapShare(interval.difference / 100, interval.low / 100, interval.high / 100)
    )
