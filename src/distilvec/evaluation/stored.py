"""Tasks made from a table of vectors itself, without queries or judgements of people.

- index-neighbors: the 10 stored texts nearest to a stored text, by the stored vectors.
- index-known-item: the stored text itself.

Queries are stored texts that the student is not trained on, nor on others of their origin, with the role of documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError, about
from distilvec.core.similarity import FEWEST_CANDIDATES, NEIGHBOR_COUNT, Similarity
from distilvec.data.corpus import text_key
from distilvec.data.origins import draw_origins, spread_over_origins
from distilvec.evaluation.overlap import (
    PARTS,
    Judgement,
    PartOverlap,
    find_overlap,
    nearest_rows,
)
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import KNOWN_ITEM, NEIGHBORS, RetrievalTask, StoredTask, Task, make_retrieval
from distilvec.models.parts import max_length
from distilvec.teachers.agreement import Agreement, compare_vectors, longer_texts
from distilvec.teachers.embedder import Embedder, FirstDims

if TYPE_CHECKING:
    from distilvec.teachers.table_embedder import TableEmbedder

Array = np.ndarray[Any, Any]
FEWEST = 50  # texts of a table that tasks are made from
LARGEST_SHARE = 5  # at most a fifth of the texts are queries
LEAST_HELD = 0.5  # of a task's documents, for a score among those that a table holds


def stored_tasks(teacher: TableEmbedder, count: int) -> list[RetrievalTask]:
    """Both tasks with `count` stored texts as queries, at most a fifth of the table.

    Neighbors are searched among the texts of other origins.
    """
    texts, vectors, origins = _stored_documents(teacher)
    chosen, others = draw_stored(texts, origins, count, str(teacher.table.path))
    neighbor_rows = others[top_k(vectors[chosen], vectors[others], NEIGHBOR_COUNT, similarity=teacher.similarity)[0]]
    digits = len(str(len(texts)))
    ids = [f"{row:0{digits}d}" for row in range(len(texts))]
    queries = {ids[row]: texts[row] for row in chosen}
    judged = {}
    for row, neighbors in zip(chosen, neighbor_rows, strict=True):
        for neighbor in neighbors:
            judged[ids[row], ids[neighbor]] = 1.0
    tasks = [
        make_retrieval(NEIGHBORS, {ids[row]: texts[row] for row in others}, queries, judged),
        make_retrieval(
            KNOWN_ITEM, dict(zip(ids, texts, strict=True)), queries, {(name, name): 1.0 for name in queries}
        ),
    ]
    return [StoredTask(**vars(task)) for task in tasks]


def _stored_documents(index: TableEmbedder) -> tuple[list[str], Array, Array]:
    """Return the texts of an index, their vectors float32 [texts, dim], and their origins [texts]."""
    with about("teacher"):
        texts, vectors = index.documents()
        return texts, vectors, index.origins


def draw_stored(texts: Sequence[str], origins: Array, count: int, path: str) -> tuple[Array, Array]:
    """Return the numbers of `count` texts that are searched for, and of all that have other origins than these.

    At most a fifth of the texts and of the `origins` [texts] are searched for, those with the smallest hashes: they are
    the same whatever the order of the table.
    """
    if len(texts) < FEWEST:
        raise DistilvecError(
            f"{path} has {len(texts)} distinct texts; expected at least {FEWEST}.",
            "Give an index with more texts.",
            key="evaluation.stored",
        )
    order = np.array(sorted(range(len(texts)), key=lambda row: text_key("stored", texts[row])))
    if not origins.any():  # a single document: a text has neighbours there alone
        origins = np.arange(len(texts))
    distinct, first = np.unique(origins[order], return_index=True)
    wanted = max(1, min(count, len(distinct) // LARGEST_SHARE))
    largest = len(texts) // LARGEST_SHARE
    is_asked = draw_origins(distinct[np.argsort(first)], np.bincount(origins), 0, wanted, largest)
    asked_rows = order[is_asked[origins[order]]]
    chosen = spread_over_origins(asked_rows, origins[asked_rows], min(count, largest))
    return chosen, np.flatnonzero(~is_asked[origins])


def tasks_in_table(tasks: Sequence[Task], table: TableEmbedder) -> list[Task]:
    """Return the tasks as they are scored with a table of vectors; every part of a report takes these.

    Searches are among the documents that the table holds; beside tasks that are made of an index itself, among all
    texts of the index.
    """
    searches = [task for task in tasks if isinstance(task, RetrievalTask)]
    stored = next((task.documents for task in searches if task.name == KNOWN_ITEM), [])
    with about("teacher"):
        return [searched_in_index(task, table, stored) if isinstance(task, RetrievalTask) else task for task in tasks]


def searched_in_index(task: RetrievalTask, table: TableEmbedder, stored: Sequence[str]) -> RetrievalTask:
    """Return the task among all texts that an index stores, if the index holds its documents.

    A switch searches the whole index. Among the documents of a file of judged queries alone, a score promises too much.
    `stored` are the texts; without them the task keeps its own documents, but for those that the table lacks.
    """
    task = held_part(task, table)
    if isinstance(task, StoredTask) or not table.holds(task.documents).all():
        return task
    # A document that is stored as well is there already, and a query that is stored would find itself
    present = {text.strip() for text in (*task.documents, *task.queries)}
    others = [text for text in stored if text.strip() not in present]
    if not others:
        return task
    return replace(
        task,
        document_ids=[*task.document_ids, *(f"stored text {number}" for number in range(len(others)))],
        documents=[*task.documents, *others],
        notes=(*task.notes, f"searched among all texts of the index, {len(others):,} of them without a judgement"),
    )


def held_part(task: RetrievalTask, table: TableEmbedder) -> RetrievalTask:
    """Return the task among the documents that a table holds, with a note, if it holds at least half of them.

    Queries whose relevant documents are all missing are left out. An index changes after its queries were judged: a few
    deleted documents should not cost the score.
    """
    held = table.holds(task.documents)
    if held.all() or held.mean() < LEAST_HELD:
        return task
    judged, gains = task.judged, task.gains
    remaining = held[judged[:, 1]]
    lost = np.setdiff1d(judged[gains > 0, 0], judged[remaining & (gains > 0), 0])
    kept_queries = np.setdiff1d(np.arange(len(task.queries)), lost)
    if not len(kept_queries):
        return task

    remaining &= ~np.isin(judged[:, 0], lost)
    document_rows, query_rows = np.cumsum(held) - 1, np.full(len(task.queries), -1)
    query_rows[kept_queries] = np.arange(len(kept_queries))
    missing = np.flatnonzero(~held)
    note = (
        f"{len(missing):,} of {len(held):,} documents are not in the index, such as '{task.document_ids[missing[0]]}'"
    )
    if len(lost):
        note += f", nor is anything that is relevant to {len(lost):,} of {len(task.queries):,} queries"
    own = [task.own[row] for row in kept_queries] if task.own else []
    return replace(
        task,
        document_ids=[task.document_ids[row] for row in np.flatnonzero(held)],
        documents=[task.documents[row] for row in np.flatnonzero(held)],
        query_ids=[task.query_ids[row] for row in kept_queries],
        queries=[task.queries[row] for row in kept_queries],
        judged=np.stack([query_rows[judged[remaining, 0]], document_rows[judged[remaining, 1]]], axis=1),
        gains=gains[remaining],
        own=tuple(int(document_rows[row]) if row >= 0 and held[row] else -1 for row in own),
        notes=(*task.notes, f"{note}; left out"),
    )


def judge_encoder(student: Embedder, index: TableEmbedder, queries: int, start: Embedder | None = None) -> Judgement:
    """Judge a model as the query encoder of an index: its vectors of stored texts among all other stored vectors.

    Where the index names enough documents, several rows of a document count once.
    Errors: DistilvecError for an index of too few texts.
    """
    texts, vectors, origins = _stored_documents(index)
    chosen, others = draw_stored(texts, origins, queries, str(index.table.path))
    query_origins = origins[chosen]
    with about("teacher"):
        by_document = index.named_documents > 0 and len(np.unique(origins[others])) >= FEWEST_CANDIDATES
    documents = origins[others] if by_document else np.arange(len(others))
    searched = len(np.unique(documents))
    candidates = vectors[others]
    expected = nearest_rows(vectors[chosen], candidates, NEIGHBOR_COUNT, index.similarity, documents=documents)
    query_texts = [texts[row] for row in chosen]
    models = {"student": student} if start is None else {"student": student, "start": start}
    shares, cosine, agreement = {}, None, None
    parts: list[PartOverlap] = []
    for name, model in models.items():
        model_vectors = model.embed(query_texts, "document")
        common_space = model_vectors.shape[1] == vectors.shape[1]
        shares[name] = find_overlap(
            expected, candidates, index.similarity, model_vectors, None, common_space, query_origins, documents
        )
        if name == "student" and common_space:
            agreement = _agreement(model, index, query_texts, model_vectors, vectors[chosen], vectors)
            cosine = agreement.cosine
            if index.all_rows is not None:
                parts = _parts(vectors[chosen], candidates, model_vectors, documents, index.similarity, query_origins)
                among = shares[name].summary().among
                assert among is not None
                parts.append(PartOverlap(searched, among))
    return Judgement(
        origin="index",
        queries=len(chosen),
        candidates=searched,
        texts=len(texts),
        similarity=index.similarity,
        student=shares["student"].summary(),
        start=None if start is None else shares["start"].summary(),
        gain=None if start is None else shares["student"].less(shares["start"]),
        cosine=cosine,
        query_origins=len(np.unique(query_origins)),
        agreement=agreement,
        similarity_source=index.similarity_source,
        all_rows=index.all_rows,
        parts=tuple(parts),
        by_document=by_document,
    )


def _parts(
    queries: Array,
    candidates: Array,
    student_queries: Array,
    documents: Array,
    similarity: Similarity,
    origins: Array,
) -> list[PartOverlap]:
    """What the student finds among a hundredth and a tenth of the candidates, drawn by seed."""
    order = np.random.default_rng(0).permutation(len(candidates))
    parts = []
    for divisor in PARTS:
        drawn = order[: len(candidates) // divisor]
        searched = len(np.unique(documents[drawn]))
        if searched >= FEWEST_CANDIDATES:
            expected = nearest_rows(queries, candidates[drawn], NEIGHBOR_COUNT, similarity, documents=documents[drawn])
            found = find_overlap(
                expected, candidates[drawn], similarity, student_queries, None, True, origins, documents[drawn]
            )
            among = found.summary().among
            assert among is not None
            parts.append(PartOverlap(searched, among))
    return parts


def _agreement(
    student: Embedder, index: TableEmbedder, texts: Sequence[str], student_vectors: Array, stored: Array, vectors: Array
) -> Agreement:
    """Compare a student's vectors of stored texts with those that are `stored` among all `vectors`."""
    model = getattr(student.embedder if isinstance(student, FirstDims) else student, "model", None)
    is_longer, limit = None, None
    if isinstance(model, SentenceTransformer):
        limit = max_length(model)
        is_longer = longer_texts(model, [student.prompts["document"] + text for text in texts])
    return compare_vectors(
        student_vectors, stored, vectors, lambda rows: index.ids([texts[row] for row in rows]), is_longer, limit
    )
