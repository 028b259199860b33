"""Distance of the student to the teacher text by text: by source, by length, and the texts with the greatest one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from distilvec.core.escape import shortened
from distilvec.core.vectors import evenly_spread
from distilvec.data.corpus import Corpus
from distilvec.evaluation.diagnostics import LENGTHS
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.encode import EmbeddedBatch

Array = np.ndarray[Any, Any]

TEXTS, LISTED = 2000, 100  # texts that are compared, and validation texts in the list
CHARACTERS = 200  # of a listed text


@dataclass(frozen=True)
class SourceDistance:
    """Distance to the teacher of the texts of one source: mean and standard deviation."""

    name: str
    texts: int
    distance: float
    std: float


@dataclass(frozen=True)
class LengthDistance:
    """Distance to the teacher of texts of `first` to `last` tokens."""

    first: Annotated[int, Field(alias="from")]
    last: Annotated[int, Field(alias="to")]
    texts: int
    distance: float
    std: float


@dataclass(frozen=True)
class FarText:
    """A text whose student vector is far from its teacher vector."""

    text: str
    source: str
    tokens: int
    distance: float


@dataclass(frozen=True)
class TextDistances:
    """Distances of texts to the teacher. `trained`: of texts that were trained on."""

    rows: int
    mean: float
    by_source: list[SourceDistance] = field(default_factory=list)
    by_length: list[LengthDistance] = field(default_factory=list)
    worst: list[FarText] = field(default_factory=list)
    trained: TextDistances | None = None


def spread_rows(rows: Array) -> Array:
    """Return at most TEXTS of the corpus's rows, evenly spread, int64."""
    rows = np.asarray(rows, dtype=np.int64)
    return rows[evenly_spread(len(rows), TEXTS)]


def row_batches(corpus: Corpus, rows: Array, embedder: Embedder) -> Iterator[EmbeddedBatch]:
    """Embed rows of the corpus batch by batch, each text with its source's role; `rows` of a batch count from 0."""
    texts = np.array(corpus.stored(rows), dtype=object)
    roles = np.array([corpus.roles[source] for source in corpus.sources[rows]])
    for role in dict.fromkeys(roles.tolist()):
        chosen = np.flatnonzero(roles == role)
        for batch in embedder.embed_batches(texts[chosen].tolist(), role):
            yield EmbeddedBatch(chosen[batch.rows], batch.signals, batch.work * len(chosen) / len(rows))


def text_distances(corpus: Corpus, rows: Array, teacher: Array, student: Array, tokens: Array) -> TextDistances:
    """Return L2 distances of vectors [rows, dim] by source and by length; `tokens` [rows] are the student's.

    `worst` and `trained` are empty: see `farthest_texts`.
    """
    distance, sources = _distances(teacher, student), np.asarray(corpus.sources[rows])
    by_source = []
    for number, name in enumerate(corpus.source_names):
        part = distance[sources == number]
        if len(part):
            by_source.append(SourceDistance(name, len(part), float(part.mean()), float(part.std())))
    by_length = []
    for low, high in pairwise(LENGTHS):
        part = distance[(tokens > low) & (tokens <= high)]
        if len(part):
            last = min(high, int(tokens.max()))
            by_length.append(LengthDistance(low + 1, last, len(part), float(part.mean()), float(part.std())))
    return TextDistances(len(rows), float(distance.mean()), by_source, by_length)


def farthest_texts(corpus: Corpus, rows: Array, teacher: Array, student: Array, tokens: Array) -> list[FarText]:
    """Return the LISTED texts with the greatest distances of their vectors [rows, dim], the greatest first."""
    distance = _distances(teacher, student)
    worst = np.argsort(-distance, kind="stable")[:LISTED]
    texts = []
    for row, text in zip(worst.tolist(), corpus.stored(rows[worst]), strict=True):
        source = corpus.source_names[int(corpus.sources[rows[row]])]
        texts.append(FarText(shortened(text, CHARACTERS), source, int(tokens[row]), round(float(distance[row]), 4)))
    return texts


def _distances(teacher: Array, student: Array) -> Array:
    return np.asarray(np.linalg.norm(student.astype(np.float64) - teacher, axis=1))
