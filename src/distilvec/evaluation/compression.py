"""Scores of vectors with fewer dimensions (MRL), fewer bits per dimension, and both (REDACT, section 4.1, figure 5 and
appendix H).

Nothing is embedded again: every dim and precision is made from the vectors in the shared cache.

    float32, float16    rounded numbers
    int8                256 steps between the least and the greatest number of a dimension among the documents, as in
                        sentence_transformers.util.quantization; queries take the same steps
    binary              signs; the cosine of +1 and -1 is 1 - 2 x Hamming distance / dim
    binary_rescored     retrieval only: nearest by Hamming distance, ranked by float query times document signs

All but the last are compared by the model's similarity. "Documents" are the second sentences of a pair and the training
rows of a classification task, as in evaluator.py; in asymmetric retrieval they are the teacher's, and so are the steps
of int8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.core.similarity import Similarity
from distilvec.evaluation import metrics
from distilvec.evaluation.evaluator import EmbeddingCache, Score, embedders, score_task
from distilvec.evaluation.search import pack_signs, rescored_top_k
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task, embedded_texts
from distilvec.teachers.embedder import Embedder

Array = np.ndarray[Any, Any]

PRECISIONS = ("float32", "float16", "int8", "binary", "binary_rescored")
SMALLEST_DIM = 32


@dataclass(frozen=True)
class CompressionScore:
    """Score of a model on a task with vectors of so many dimensions in a precision."""

    task: str
    column: str
    precision: str
    width: int
    value: float
    metric: str | None = None


@dataclass
class CompressedCache(EmbeddingCache):
    """Vectors of another cache at one dim and precision. `unit` scales them to length 1, as a classifier needs them.

    Otherwise int8 and binary are whole numbers, so that equal similarities tie.
    """

    memo: EmbeddingCache = field(kw_only=True)
    dim: int = field(kw_only=True)
    precision: str = field(kw_only=True)
    similarity: Similarity = field(kw_only=True)
    ranges: Array | None = None
    unit: bool = False

    def vectors(self, embedder: Embedder, texts: Sequence[str], role: Role) -> Array:
        """Compressed vectors, float32 [texts, dim]."""
        full_vectors = self.memo.vectors(embedder, texts, role)
        compressed = compress_vectors(truncate(full_vectors, self.dim, self.similarity), self.precision, self.ranges)
        return metrics.unit(compressed) if self.unit else compressed


def truncate(vectors: Array, dim: int, similarity: Similarity = "cosine") -> Array:
    """First `dim` dimensions, float32 [rows, dim]; scaled to length 1 for the cosine, which alone ignores lengths."""
    if not 1 <= dim <= vectors.shape[1]:
        raise DistilvecError(
            f"cannot truncate vectors of dim {vectors.shape[1]} to dim {dim}.", "Choose a smaller one.", key="widths"
        )
    cut = np.asarray(vectors[:, :dim], dtype=np.float32)
    return metrics.unit(cut) if similarity == "cosine" else cut


def compress_vectors(vectors: Array, precision: str, ranges: Array | None = None) -> Array:
    """Vectors in another precision, as the float32 numbers that it stores [rows, dim].

    int8: whole numbers from -128 to 127, by `ranges` (`int8_ranges`). binary: +1 if above 0, else -1.
    """
    if precision == "int8" and ranges is not None:
        from sentence_transformers.util.quantization import quantize_embeddings

        return np.asarray(quantize_embeddings(vectors, "int8", ranges=ranges), dtype=np.float32)
    if precision == "binary":
        return np.where(vectors > 0, np.float32(1), np.float32(-1))
    if precision in ("float32", "float16"):
        return np.asarray(vectors, dtype=precision).astype(np.float32)
    raise DistilvecError(
        f"cannot store vectors as {precision!r}{' without ranges' if precision == 'int8' else ''}.",
        "Give float32, float16, int8 (with the ranges of int8_ranges) or binary.",
        key="precision",
    )


def int8_ranges(documents: Array) -> Array:
    """Least and greatest number of every dimension, float32 [2, dim]."""
    return np.stack([documents.min(axis=0), documents.max(axis=0)]).astype(np.float32)


def default_dims(full: int) -> list[int]:
    """Powers of two from 32 up, then the full dim."""
    powers = [SMALLEST_DIM << shift for shift in range(20)]
    return [*(dim for dim in powers if dim < full), full]


def compression_rows(
    task: Task,
    column: str,
    pair: tuple[Embedder, Embedder],
    memo: EmbeddingCache,
    dims: Sequence[int] | None = None,
    precisions: Sequence[str] = PRECISIONS,
    classification: bool = False,
) -> list[CompressionScore]:
    """Score a model, named `column`, on a task by dim and precision; `pair` are its query and document embedder.

    Values are times 100. `dims` None: `default_dims` of the model. Full dim in float32 is always there, on vectors as
    the model gives them. Without `classification`, a task of this type has no other row: each costs a logistic
    regression.
    """
    pair = embedders(task, *pair)
    role, texts = embedded_texts(task)[1]
    documents = memo.vectors(pair[1], texts, role)
    full = documents.shape[1]
    cells = {(full, "float32")}
    if classification or not isinstance(task, ClassificationTask):
        cells |= {(dim, kind) for dim in dims or default_dims(full) for kind in precisions}
    rows = []
    for dim, kind in sorted(cells, key=lambda cell: (cell[0], PRECISIONS.index(cell[1]))):
        if kind == "binary_rescored" and not isinstance(task, RetrievalTask):
            continue
        score = _score(task, pair, memo, documents, dim, kind)
        rows.append(CompressionScore(task.name, column, kind, dim, score.value, score.metric))
    return rows


def _score(
    task: Task, pair: tuple[Embedder, Embedder], memo: EmbeddingCache, documents: Array, dim: int, precision: str
) -> Score:
    """Score at one dim and precision; the ranges of int8 are those of `documents`. Rescoring packs the signs itself."""
    if (dim, precision) == (documents.shape[1], "float32"):
        return score_task(task, *pair, memo)[0]
    similarity = pair[1].similarity
    ranges = int8_ranges(truncate(documents, dim, similarity)) if precision == "int8" else None
    classes = isinstance(task, ClassificationTask)
    rescored = precision == "binary_rescored"
    kind = "float32" if rescored else precision
    cache = CompressedCache(memo=memo, dim=dim, precision=kind, similarity=similarity, ranges=ranges, unit=classes)
    return score_task(task, *pair, cache, _search_rescored if rescored else None)[0]


def _search_rescored(queries: Array, documents: Array, count: int, last: Array | None) -> tuple[Array, Array]:
    return rescored_top_k(queries, pack_signs(documents), count, last)
