"""Do student and teacher rank alike? Overlap at 10, Kendall's tau, and top-10 lists side by side (REDACT, appendix D, table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from distilvec.core.errors import DistilvecError
from distilvec.evaluation import metrics
from distilvec.evaluation.evaluator import Embedder, EmbeddingCache, retrieval_vectors
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import RetrievalTask

Array = np.ndarray[Any, Any]
Pair = tuple[Embedder, Embedder]

DEPTH = 10
TEXT_CHARACTERS = 160
_SCORES_AT_ONCE = 4_000_000


def ranking_agreement(
    task: RetrievalTask, columns: Mapping[str, Pair], memo: EmbeddingCache, examples: int = 5, seed: int = 0
) -> dict[str, Any]:
    """How far each column (query embedder, document embedder) ranks as the column "teacher" does; plain data for report.json.

    By column, mean over queries and standard deviation (population) under "..._std":
    "overlap@10": share of the teacher's 10 best documents among the column's 10 best;
    "kendall_tau": tau-b between both sides' ranks of all documents in either list, at their true places in the full
    rankings. 1 = equal order, -1 = reversed; two lists that share little are negative. 1 where there is one document.
    "examples": so many queries with every column's 10 best documents; those of lowest and highest overlap (mean over
    columns) first, the others drawn by `seed`. An entry's score is the cosine, its text is cut to 160 characters.
    Documents without text come last in every ranking, as in `evaluate`; equal scores in the task's order of documents.
    Errors: DistilvecError for no teacher or nothing to compare it with, or for two widths in one column.
    """
    others = [name for name in columns if name != "teacher"]
    if "teacher" not in columns or not others:
        found = ", ".join(columns) or "none"
        raise DistilvecError(
            f"[evaluation.columns] {task.name}: ranking agreement needs a column 'teacher' and another one; found {found}. Name both."
        )
    top = {name: _top(task, pair, memo) for name, pair in columns.items()}
    shared = {name: (top[name][:, :, None] == top["teacher"][:, None, :]).any(axis=2) for name in others}
    overlap = {name: hits.mean(axis=1) for name, hits in shared.items()}
    wanted = np.concatenate([top[name] for name in others], axis=1)
    theirs = np.split(_ranks(task, columns["teacher"], memo, top["teacher"], wanted), len(others), axis=1)
    report: dict[str, Any] = {}
    for name, their_ranks in zip(others, theirs, strict=True):
        our_ranks = _ranks(task, columns[name], memo, top[name], top["teacher"])
        figures = {"overlap@10": overlap[name], "kendall_tau": _union_tau(our_ranks, their_ranks, shared[name])}
        report[name] = {key: float(values.mean()) for key, values in figures.items()}
        report[name] |= {f"{key}_std": float(values.std()) for key, values in figures.items()}
    report["examples"] = _examples(
        task, columns, memo, top, overlap, _chosen(np.mean(list(overlap.values()), axis=0), examples, seed)
    )
    return report


def _vectors(task: RetrievalTask, pair: Pair, memo: EmbeddingCache) -> tuple[Array, Array, Array]:
    """Unit vectors of queries and documents and which documents have text."""
    queries, documents, filled = retrieval_vectors(task, *pair, memo)
    return metrics.unit(queries), metrics.unit(documents), filled


def _top(task: RetrievalTask, pair: Pair, memo: EmbeddingCache) -> Array:
    """The best documents' rows of every query, best first, int64 [queries, 10 or fewer]."""
    queries, documents, filled = _vectors(task, pair, memo)
    return top_k(queries, documents, DEPTH, ~filled)[0]


def _ranks(task: RetrievalTask, pair: Pair, memo: EmbeddingCache, top: Array, wanted: Array) -> Array:
    """The ranks from 1 of the `wanted` documents [queries, wanted] in the column's full ranking, which starts with its `top`.

    Queries are taken in blocks of about four million scores; only documents outside `top` are counted up to.
    """
    queries, documents, filled = _vectors(task, pair, memo)
    same = wanted[:, :, None] == top[:, None, :]
    ranks = np.where(same.any(axis=2), same.argmax(axis=2) + 1, 0)
    block = max(1, _SCORES_AT_ONCE // len(documents))
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ documents.T
        scores[:, ~filled] = -np.inf
        for query, ranking in enumerate(scores, start=start):
            ranking[top[query]] = np.nan  # compares as neither better nor equal
            for place in np.flatnonzero(ranks[query] == 0):
                document = wanted[query, place]
                better = np.count_nonzero(ranking > ranking[document]) + np.count_nonzero(
                    ranking[:document] == ranking[document]
                )
                ranks[query, place] = top.shape[1] + better + 1
    return ranks


def _union_tau(our_ranks: Array, their_ranks: Array, shared: Array) -> Array:
    """Kendall's tau-b of every query over the union of both lists, float64 [queries].

    `our_ranks` are of the teacher's documents, `their_ranks` of the column's; `shared` marks which of the column's
    documents the teacher's list has as well.
    """
    depth = np.arange(1, our_ranks.shape[1] + 1)
    taus = np.ones(len(our_ranks))
    for query, (ours, theirs, twice) in enumerate(zip(our_ranks, their_ranks, shared, strict=True)):
        left, right = np.append(ours, depth[~twice]), np.append(depth, theirs[~twice])
        if len(left) > 1:
            taus[query] = kendalltau(left, right, variant="b").statistic
    return taus


def _chosen(overlap: Array, examples: int, seed: int) -> list[int]:
    """Rows of the example queries: the lowest and the highest overlap, then others by chance, no row twice."""
    drawn = np.random.default_rng(seed).permutation(len(overlap))
    return [int(row) for row in dict.fromkeys([int(overlap.argmin()), int(overlap.argmax()), *drawn])][:examples]


def _examples(
    task: RetrievalTask,
    columns: Mapping[str, Pair],
    memo: EmbeddingCache,
    top: Mapping[str, Array],
    overlap: Mapping[str, Array],
    chosen: list[int],
) -> list[dict[str, Any]]:
    """The chosen queries with every column's best documents."""
    relevant = {(int(query), int(document)) for query, document in task.judged[task.gains > 0]}
    lists: list[dict[str, Any]] = [{} for _ in chosen]
    for name, pair in columns.items():
        queries, documents, _ = _vectors(task, pair, memo)
        for query, found in zip(chosen, lists, strict=True):
            best = top[name][query]
            found[name] = _entries(task, query, best, documents[best] @ queries[query], relevant)
    return [
        {
            "query": task.queries[query],
            "overlap@10": {name: float(shares[query]) for name, shares in overlap.items()},
            "columns": found,
        }
        for query, found in zip(chosen, lists, strict=True)
    ]


def _entries(
    task: RetrievalTask, query: int, top: Array, cosines: Array, relevant: set[tuple[int, int]]
) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank,
            "score": float(score),
            "id": task.document_ids[document],
            "text": task.documents[document][:TEXT_CHARACTERS],
            "relevant": (query, int(document)) in relevant,
        }
        for rank, (document, score) in enumerate(zip(top, cosines, strict=True), start=1)
    ]
