"""Agreement of student and teacher rankings: overlap at 10, Kendall's tau, top-10 lists (REDACT, table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from distilvec.core.errors import DistilvecError
from distilvec.evaluation import metrics
from distilvec.evaluation.evaluator import EmbeddingCache, retrieval_vectors, score_task
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import RetrievalTask
from distilvec.teachers.embedder import Embedder

Array = np.ndarray[Any, Any]
Vectors = tuple[Array, Array, Array]  # ranking_vectors of queries and documents, and the documents with text

DEPTH = 10
TEXT_CHARACTERS = 160
LISTED, RANKED = 500, 100  # queries of a task in the list, and those of them with every model's ranking
_SCORES_AT_ONCE = 4_000_000


def ranking_agreement(
    task: RetrievalTask,
    models: Mapping[str, tuple[Embedder, Embedder]],
    memo: EmbeddingCache,
) -> dict[str, Any]:
    """Agreement of each model (query embedder, document embedder) with the model "teacher", for report.json.

    By model, mean over queries and population standard deviation ("..._std") of:
    "overlap@10": share of the teacher's 10 best documents among the model's 10 best;
    "kendall_tau": tau-b between the ranks, in both full rankings, of all documents in either list of 10.
    "queries": see `_listed`. Documents without text rank last; equal scores rank in the task's order of documents.
    Errors: DistilvecError for no teacher, nothing to compare it with, or a model with two dims.
    """
    others = [name for name in models if name != "teacher"]
    if "teacher" not in models or not others:
        raise DistilvecError(
            "evaluation.columns",
            f"{task.name}: ranking agreement needs a column 'teacher' and another one; found "
            f"{', '.join(models) or 'none'}.",
            "Name both.",
        )
    vectors = {}
    for name, pair in models.items():
        queries, documents, filled = retrieval_vectors(task, *pair, memo)
        left, right = metrics.ranking_vectors(queries, documents, pair[1].similarity)
        vectors[name] = left, right, filled
    top = {}
    for name, (left, right, filled) in vectors.items():
        top[name] = top_k(left, right, DEPTH, ~filled, similarity="dot")[0]
    asked = np.concatenate([top[name] for name in others], axis=1)
    ranks = np.split(_ranks(vectors["teacher"], top["teacher"], asked), len(others), axis=1)
    report: dict[str, Any] = {}
    overlap = {}
    for name, theirs in zip(others, ranks, strict=True):
        shared = (top[name][:, :, None] == top["teacher"][:, None, :]).any(axis=2)
        overlap[name] = shared.mean(axis=1)
        ours = _ranks(vectors[name], top[name], top["teacher"])
        for key, values in (("overlap@10", overlap[name]), ("kendall_tau", _union_tau(ours, theirs, shared))):
            report.setdefault(name, {}).update({key: float(values.mean()), f"{key}_std": float(values.std())})
    values = {name: score_task(task, *pair, memo)[1].predicted for name, pair in models.items()}
    return report | _listed(task, values, overlap, top)


def _listed(
    task: RetrievalTask, values: Mapping[str, Array], overlap: Mapping[str, Array], top: Mapping[str, Array]
) -> dict[str, Any]:
    """List the queries with nDCG@10 (x 100) and overlap by model: those that lose most come first.

    "queries": at most LISTED of "count"; the first RANKED have "found", the ids of each model's 10 documents, and
    "relevant", those that are. "documents": their texts by id.
    """
    ours = next(name for name in ("student", *values) if name in values and name != "teacher")
    order = np.argsort(values[ours] - values["teacher"], kind="stable")[:LISTED].tolist()
    shown, rows = dict[int, None](), list[dict[str, Any]]()
    for place, query in enumerate(order):
        row: dict[str, Any] = {
            "query": task.queries[query][: 2 * TEXT_CHARACTERS],
            "scores": {name: round(100 * float(found[query]), 2) for name, found in values.items()},
            "overlap": {name: round(float(found[query]), 2) for name, found in overlap.items()},
        }
        if place < RANKED:
            found = {name: documents[query].tolist() for name, documents in top.items()}
            own = dict.fromkeys(one for documents in found.values() for one in documents)
            shown |= own
            relevant = set(task.judged[(task.judged[:, 0] == query) & (task.gains > 0), 1].tolist())
            row["found"] = {name: [task.document_ids[one] for one in documents] for name, documents in found.items()}
            row["relevant"] = [task.document_ids[one] for one in sorted(relevant & own.keys())]
        rows.append(row)
    texts = {task.document_ids[one]: task.documents[one][:TEXT_CHARACTERS] for one in shown}
    return {"queries": {"count": len(task.queries), "rows": rows, "documents": texts}}


def _ranks(vectors: Vectors, top: Array, asked: Array) -> Array:
    """Ranks from 1 of the `asked` documents [queries, asked] in the model's full ranking, which starts with its `top`.

    Queries are taken in blocks of four million scores; only documents outside `top` are counted up to.
    """
    queries, documents, filled = vectors
    same = asked[:, :, None] == top[:, None, :]
    ranks = np.where(same.any(axis=2), same.argmax(axis=2) + 1, 0)
    block = max(1, _SCORES_AT_ONCE // len(documents))
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ documents.T
        scores[:, ~filled] = -np.inf
        for query, ranking in enumerate(scores, start=start):
            ranking[top[query]] = np.nan  # compares as neither better nor equal
            for slot in np.flatnonzero(ranks[query] == 0):
                document = asked[query, slot]
                before = np.sum(ranking > ranking[document]) + np.sum(ranking[:document] == ranking[document])
                ranks[query, slot] = top.shape[1] + before + 1
    return ranks


def _union_tau(ours: Array, theirs: Array, shared: Array) -> Array:
    """Kendall's tau-b of every query over the union of both lists, float64 [queries].

    `ours` are ranks of the teacher's documents, `theirs` of the model's; `shared` are the model's documents that the
    teacher's list has too. One document is full agreement.
    """
    depth, taus = np.arange(1, ours.shape[1] + 1), np.ones(len(ours))
    for query, common in enumerate(shared):
        left, right = np.append(ours[query], depth[~common]), np.append(depth, theirs[query][~common])
        if len(left) > 1:
            taus[query] = kendalltau(left, right, variant="b").statistic
    return taus
