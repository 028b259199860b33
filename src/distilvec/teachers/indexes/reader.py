"""The interface of a reader of an index: batches of ids, texts and vectors, and a cursor to continue from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError
from distilvec.core.similarity import Similarity, read_similarity

Cursor = int | str | None  # where to continue; JSON holds it
Vectors = npt.NDArray[np.float32]
VectorLists = Sequence[Sequence[float] | None]  # where a vector is missing, or another length occurs
ROWS = 8192  # read together
METRICS: dict[str, Similarity] = {  # names of FAISS, LanceDB, Qdrant and pgvector
    "cosine": "cosine",
    "dot": "dot",
    "ip": "dot",
    "inner product": "dot",
    "l2": "euclidean",
    "euclid": "euclidean",
}


@dataclass(frozen=True)
class Batch:
    """Some rows in the index's order, each with an id, a text (None where it is missing) and a vector.

    `after`: the cursor behind the last of them.
    """

    ids: Sequence[str]
    texts: Sequence[str | None]
    vectors: Vectors | VectorLists
    after: Cursor


class Reader(Protocol):
    """One kind of index, opened: a context manager that closes the connection."""

    def __enter__(self) -> Self:
        """The reader itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close files and connections; by default nothing is open."""
        return None

    @property
    def metric(self) -> str | None:
        """The name that the index has for how it compares vectors; None where it states nothing."""
        return None

    def count(self) -> int:
        """Rows of the index."""
        ...

    def batches(self, after: Cursor) -> Iterator[Batch]:
        """All rows behind the cursor `after` (None: from the first), in an order that does not change."""
        ...


def metric_similarity(metric: str, origin: str, key: str) -> Similarity:
    """Return the similarity that an index's metric is.

    Errors: DistilvecError for a metric by which nothing is scored here.
    """
    fix = "State the nearest of these with teacher.similarity (--similarity)."
    return read_similarity(METRICS.get(metric.lower(), metric), origin, key, fix)


def rows_with_vectors(batch: Batch, origin: str, key: str) -> tuple[list[int], Vectors]:
    """Numbers of the rows that have a text and a vector, and their vectors float32 [rows, dim].

    Errors: DistilvecError for vectors of different dims.
    """
    rows = []
    for row, text in enumerate(batch.texts):
        if text and text.strip() and batch.vectors[row] is not None:
            rows.append(row)
    if isinstance(batch.vectors, np.ndarray):
        return rows, np.asarray(batch.vectors[rows], dtype=np.float32)
    try:
        vectors = np.array([batch.vectors[row] for row in rows], dtype=np.float32)
        is_matrix = vectors.ndim == 2 or not rows
    except (ValueError, TypeError):  # of lists of different lengths
        is_matrix = False
    if not is_matrix:
        raise DistilvecError(key, f"{origin} has vectors of different dims.", "Give vectors of one model.")
    return rows, vectors
