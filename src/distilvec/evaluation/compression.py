"""Scores of vectors that were made smaller: fewer dimensions (MRL), fewer bits a dimension, and both (REDACT, appendix D).

Nothing is embedded again: every width and precision is made from the vectors in the shared Memo, and scored by
evaluate.score_task. What a precision is:

    float32, float16    rounded numbers, compared by cosine
    int8                256 steps between the least and the greatest number a dimension has among the documents, as
                        sentence_transformers.util.quantization makes them; queries take the same steps; compared by cosine
    binary              signs; the cosine of +1 and -1 is 1 - 2 x Hamming distance / width
    binary_rescored     retrieval only: the nearest by Hamming distance, put in order by float query times document signs

"Documents" are the second sentences of a pair and the training rows of a classification task, as in evaluate.py; in an
asymmetric column they are the teacher's, and so are the steps of int8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from distilvec.config.schema import Role
from distilvec.core.errors import DistilvecError
from distilvec.evaluation import metrics
from distilvec.evaluation.evaluator import Embedder, EmbeddingCache, score_task
from distilvec.evaluation.search import Search, pack_signs, rescored_top_k, top_k
from distilvec.evaluation.tasks import ClassificationTask, RetrievalTask, Task

Array = np.ndarray[Any, Any]
Precision = Literal["float32", "float16", "int8", "binary", "binary_rescored"]
Pair = tuple[Embedder, Embedder]

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SMALLEST_WIDTH = 32


@dataclass(frozen=True, eq=False)
class CompressedEmbedder:
    """An Embedder that gives another one's vectors, cut to `width` and rounded to `precision`, out of the shared memo.

    `ranges` [2, width] are int8's least and greatest numbers. `scaled` makes vectors of any precision unit length, as a
    classifier needs them; without, int8 and binary keep whole numbers, so that equal similarities stay equal.
    """

    embedder: Embedder
    memo: EmbeddingCache
    width: int
    precision: Literal["float32", "float16", "int8", "binary"]
    ranges: Array | None = None
    scaled: bool = False

    @property
    def name(self) -> str:
        """The model's name with width and precision."""
        return f"{self.embedder.name} ({self.width} {self.precision})"

    def embed(self, texts: Sequence[str], role: Role = "document") -> Array:
        """The compressed vectors as float32 [texts, width]."""
        vectors = compress(
            truncate(self.memo.vectors(self.embedder, texts, role), self.width), self.precision, self.ranges
        )
        return metrics.unit(vectors) if self.scaled else vectors


def truncate(vectors: Array, width: int) -> Array:
    """The first `width` dimensions, at unit length again, float32 [rows, width] (zero rows stay zero).

    Errors: DistilvecError if the vectors are narrower.
    """
    if not 1 <= width <= vectors.shape[1]:
        raise DistilvecError(
            f"[widths] vectors of width {vectors.shape[1]} cannot be cut to width {width}. Choose widths from 1 to {vectors.shape[1]}."
        )
    return metrics.unit(vectors[:, :width])


def compress(vectors: Array, precision: str, ranges: Array | None = None) -> Array:
    """The vectors in another precision, as the float32 numbers that this precision stands for [rows, width].

    int8: whole numbers from -128 to 127, by `ranges` (`int8_ranges`); binary: +1 where above 0, else -1.
    Errors: DistilvecError for another precision, or int8 without ranges.
    """
    if precision == "float32":
        return np.asarray(vectors, dtype=np.float32)
    if precision == "float16":
        return np.asarray(vectors, dtype=np.float16).astype(np.float32)
    if precision == "int8" and ranges is not None:
        from sentence_transformers.util.quantization import quantize_embeddings

        return np.asarray(quantize_embeddings(vectors, "int8", ranges=ranges), dtype=np.float32)
    if precision == "binary":
        return np.where(vectors > 0, np.float32(1), np.float32(-1))
    raise DistilvecError(
        f"[precision] vectors cannot be made {precision!r}{' without ranges' if precision == 'int8' else ''}; "
        "expected float32, float16, int8 (with the ranges of int8_ranges) or binary."
    )


def int8_ranges(documents: Array) -> Array:
    """The least and the greatest number of every dimension, float32 [2, width]."""
    return np.stack([documents.min(axis=0), documents.max(axis=0)]).astype(np.float32)


def default_widths(full: int) -> list[int]:
    """Powers of two from 32 up, then the full width."""
    widths, width = [], SMALLEST_WIDTH
    while width < full:
        widths.append(width)
        width *= 2
    return [*widths, full]


def compression_rows(
    tasks: Sequence[Task],
    columns: Mapping[str, Pair],
    memo: EmbeddingCache,
    widths: Sequence[int] | None = None,
    precisions: Sequence[str] = PRECISIONS,
    progress: Callable[[str, int, int], None] | None = None,
    classification: bool = False,
) -> list[dict[str, Any]]:
    """Main figures by task, column (query and document embedder), width and precision: the rows of report.json's "compression".

    A row has task, metric, column, width, precision, value (times 100). Without `widths`, every column gets its
    `default_widths`. Full width in float32 is always there and is the plain score, on vectors as the model gives them. Without
    `classification`, tasks of this type have no other row: each costs a logistic regression. `progress` is called with
    ("column: task", done, all) before each task of a column and once at the end.
    Errors: DistilvecError for a width above a column's, an unknown precision, and as `score_task`.
    """
    if unknown := [name for name in precisions if name not in PRECISIONS]:
        raise DistilvecError(
            f"[precisions] unknown precision {', '.join(map(repr, unknown))}; expected {', '.join(PRECISIONS)}."
        )
    rows: list[dict[str, Any]] = []
    parts = [(task, column) for task in tasks for column in columns]
    label = ""
    for done, (task, column) in enumerate(parts):
        label = f"{column}: {task.name}"
        if progress is not None:
            progress(label, done, len(parts))
        for width, precision, metric, value in _figures(
            task, columns[column], memo, widths, precisions, classification
        ):
            rows.append(
                {
                    "task": task.name,
                    "metric": metric,
                    "column": column,
                    "width": width,
                    "precision": precision,
                    "value": value,
                }
            )
    if progress is not None and parts:
        progress(label, len(parts), len(parts))
    return rows


def _figures(
    task: Task,
    pair: Pair,
    memo: EmbeddingCache,
    widths: Sequence[int] | None,
    precisions: Sequence[str],
    classification: bool,
) -> Iterator[tuple[int, str, str, float]]:
    """Width, precision, metric and value of one task and column, widths ascending, precisions in their usual order."""
    documents = memo.vectors(
        pair[1], _document_texts(task), "document" if isinstance(task, RetrievalTask) else task.role
    )
    full = documents.shape[1]
    wanted = sorted({*(default_widths(full) if widths is None else widths)})
    if wanted and wanted[-1] > full:
        raise DistilvecError(
            f"[widths] {task.name}: model '{pair[1].name}' gives vectors of width {full}, which cannot be cut to width {wanted[-1]}. "
            f"Choose widths up to {full}."
        )
    cells = {(width, precision) for width in wanted for precision in precisions}
    if isinstance(task, ClassificationTask) and not classification:
        cells = set()
    for width, precision in sorted(cells | {(full, "float32")}, key=lambda cell: (cell[0], PRECISIONS.index(cell[1]))):  # type: ignore[arg-type]
        if precision == "binary_rescored" and not isinstance(task, RetrievalTask):
            continue
        if (width, precision) == (full, "float32"):
            score, _ = score_task(task, *pair, memo)
        else:
            query, document = _compressed(task, pair, memo, documents, width, precision)
            search: Search = _search_rescored if precision == "binary_rescored" else top_k
            score, _ = score_task(task, query, document, EmbeddingCache(), search)
        yield width, precision, score.metric, score.value


def _compressed(
    task: Task, pair: Pair, memo: EmbeddingCache, documents: Array, width: int, precision: str
) -> tuple[CompressedEmbedder, CompressedEmbedder]:
    """Both sides in one width and precision; int8's ranges are those of the `documents`, rescoring keeps float queries."""
    ranges = int8_ranges(truncate(documents, width)) if precision == "int8" else None
    sides = ("float32", "binary") if precision == "binary_rescored" else (precision, precision)
    scaled = isinstance(task, ClassificationTask)
    query, document = (
        CompressedEmbedder(embedder, memo, width, side, ranges, scaled)  # type: ignore[arg-type]
        for embedder, side in zip(pair, sides, strict=True)
    )
    return query, document


def _document_texts(task: Task) -> list[str]:
    """The texts that the document side embeds; documents without text are never embedded."""
    if isinstance(task, RetrievalTask):
        return [text for text in task.documents if text.strip()]
    return task.train_texts if isinstance(task, ClassificationTask) else task.second


def _search_rescored(queries: Array, documents: Array, count: int, last: Array | None) -> tuple[Array, Array]:
    return rescored_top_k(queries, pack_signs(documents), count, last)
