"""Distance of the student to the teacher text by text: by source, by length, and the texts with the greatest one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from distilvec.data.corpus import Corpus
from distilvec.evaluation.diagnostics import LENGTHS
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.encode import EmbeddedBatch

Array = np.ndarray[Any, Any]

TEXTS, LISTED = 2000, 100  # texts that are compared, and validation texts in the list
CHARACTERS = 200  # of a listed text


def spread_rows(rows: Array) -> Array:
    """Return at most TEXTS of the corpus's rows, evenly spread, int64."""
    rows = np.asarray(rows, dtype=np.int64)
    chosen = np.linspace(0, len(rows) - 1, min(TEXTS, len(rows))).round().astype(int)
    return rows[chosen]


def row_batches(corpus: Corpus, rows: Array, embedder: Embedder) -> Iterator[EmbeddedBatch]:
    """Embed rows of the corpus batch by batch, each text with its source's role; `rows` of a batch count from 0."""
    texts = np.array(corpus.stored(rows), dtype=object)
    roles = np.array([corpus.roles[source] for source in corpus.sources[rows]])
    for role in dict.fromkeys(roles.tolist()):
        chosen = np.flatnonzero(roles == role)
        for batch in embedder.embed_batches(texts[chosen].tolist(), role):
            yield EmbeddedBatch(chosen[batch.rows], batch.signals, batch.work * len(chosen) / len(rows))


def text_distances(corpus: Corpus, rows: Array, teacher: Array, student: Array, tokens: Array) -> dict[str, Any]:
    """Return L2 distances of vectors [rows, dim]: "rows", "mean", and by source and by length the mean, standard
    deviation and number of texts; `tokens` [rows] are the student's.
    """
    distance, sources = _distances(teacher, student), np.asarray(corpus.sources[rows])
    bins = [(low, high, (tokens > low) & (tokens <= high)) for low, high in pairwise(LENGTHS)]
    return {
        "rows": len(rows),
        "mean": float(distance.mean()),
        "by_source": [
            {"name": name, **_summary(distance[sources == number])}
            for number, name in enumerate(corpus.source_names)
            if (sources == number).any()
        ],
        "by_length": [
            {"from": low + 1, "to": min(high, int(tokens.max())), **_summary(distance[inside])}
            for low, high, inside in bins
            if inside.any()
        ],
    }


def farthest_texts(corpus: Corpus, rows: Array, teacher: Array, student: Array, tokens: Array) -> list[dict[str, Any]]:
    """Return the LISTED texts with the greatest distances of their vectors [rows, dim], the greatest first."""
    distance = _distances(teacher, student)
    worst = np.argsort(-distance, kind="stable")[:LISTED]
    return [
        {
            "text": text[:CHARACTERS],
            "source": corpus.source_names[int(corpus.sources[rows[row]])],
            "tokens": int(tokens[row]),
            "distance": round(float(distance[row]), 4),
        }
        for row, text in zip(worst.tolist(), corpus.stored(rows[worst]), strict=True)
    ]


def _distances(teacher: Array, student: Array) -> Array:
    return np.asarray(np.linalg.norm(student.astype(np.float64) - teacher, axis=1))


def _summary(distance: Array) -> dict[str, Any]:
    return {"texts": len(distance), "distance": float(distance.mean()), "std": float(distance.std())}
