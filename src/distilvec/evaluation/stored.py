"""Tasks made from a table of vectors itself, without queries or judgements of people.

- index-neighbors: the 10 stored texts nearest to a stored text, by the stored vectors.
- index-known-item: the stored text itself.

Queries are stored texts that the student is not trained on, with the role of documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import text_key
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import KNOWN_ITEM, NEIGHBORS, RetrievalTask, StoredTask, make_retrieval
from distilvec.teachers.table_embedder import TableEmbedder

Array = np.ndarray[Any, Any]

DEPTH = 10
FEWEST = 50  # texts of a table that tasks are made from
LARGEST_SHARE = 5  # at most a fifth of the texts are queries


def stored_tasks(teacher: TableEmbedder, count: int) -> list[RetrievalTask]:
    """Both tasks with `count` stored texts as queries, at most a fifth of the table.

    Neighbors are searched among the other texts. Errors: DistilvecError for a table of fewer than 50 distinct texts.
    """
    texts, vectors = teacher.documents()
    chosen, others = draw_stored(texts, count, str(teacher.table.path))
    nearest = others[top_k(vectors[chosen], vectors[others], DEPTH, similarity=teacher.similarity)[0]]
    digits = len(str(len(texts)))
    ids = [f"{row:0{digits}d}" for row in range(len(texts))]
    queries = {ids[row]: texts[row] for row in chosen}
    judged = {}
    for row, neighbors in zip(chosen, nearest, strict=True):
        for neighbor in neighbors:
            judged[ids[row], ids[neighbor]] = 1.0
    tasks = [
        make_retrieval(NEIGHBORS, {ids[row]: texts[row] for row in others}, queries, judged),
        make_retrieval(
            KNOWN_ITEM, dict(zip(ids, texts, strict=True)), queries, {(name, name): 1.0 for name in queries}
        ),
    ]
    return [StoredTask(**vars(task)) for task in tasks]


def draw_stored(texts: Sequence[str], count: int, path: str) -> tuple[Array, Array]:
    """Return the numbers of `count` texts that are searched for, at most a fifth, and of all others.

    They are those with the smallest hashes, so they are the same whatever the order of the table. Errors:
    DistilvecError for fewer than 50 texts.
    """
    if len(texts) < FEWEST:
        raise DistilvecError(
            "evaluation.stored",
            f"{path} has {len(texts)} distinct texts; expected at least {FEWEST}.",
            "Give more, or remove the key.",
        )
    order = sorted(range(len(texts)), key=lambda row: text_key("stored", texts[row]))
    count = min(count, len(texts) // LARGEST_SHARE)
    return np.array(order[:count]), np.sort(order[count:])
