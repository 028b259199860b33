"""Agreement of student and teacher rankings: overlap at 10, Kendall's tau, top-10 lists (REDACT, table 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy.stats import kendalltau

from distilvec.core.errors import DistilvecError
from distilvec.core.escape import shortened
from distilvec.core.similarity import NEIGHBOR_COUNT
from distilvec.evaluation import metrics
from distilvec.evaluation.evaluator import EmbeddingCache, ranked_documents, retrieval_vectors, score_task
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import RetrievalTask
from distilvec.teachers.embedder import Embedder

Array = np.ndarray[Any, Any]
Vectors = tuple[Array, Array, Array]  # ranking_vectors of queries and documents, and the documents with text

TEXT_CHARACTERS = 160
LISTED, RANKED = 500, 100  # queries of a task in the list, and those of them with every model's ranking
_SCORES_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class RankedQuery:
    """A query with its nDCG@10 and overlap@10, by model.

    found: ids of each model's 10 documents, only of the first queries
    relevant: those that are
    """

    query: str
    scores: dict[str, float]
    overlap: dict[str, float]
    found: dict[str, list[str]] | None = None
    relevant: list[str] | None = None

    @property
    def change(self) -> float:
        """The score of `compared` less the teacher's; without one of them 0."""
        if self.compared not in self.scores or "teacher" not in self.scores:
            return 0.0
        return self.scores[self.compared] - self.scores["teacher"]

    @property
    def compared(self) -> str:
        """The student alone, or as the query encoder of an index, where nothing else was scored."""
        return "student" if "student" in self.scores else "asymmetric"


@dataclass(frozen=True)
class RankedQueries:
    """Queries of a task, those that lose most first: at most 500 of `count`. `documents`: their texts by id."""

    count: int
    rows: list[RankedQuery]
    documents: dict[str, str]


@dataclass(frozen=True)
class RankingAgreement:
    """Agreement of a model with the teacher's rankings: means over queries, and their standard deviations."""

    overlap: Annotated[float, Field(alias="overlap@10")]
    kendall_tau: float
    overlap_std: Annotated[float | None, Field(alias="overlap@10_std")] = None
    kendall_tau_std: float | None = None


@dataclass(frozen=True)
class TaskRankings:
    """Rankings of a retrieval task. Published reports have no texts: `queries` is None."""

    models: dict[str, RankingAgreement]
    queries: RankedQueries | None = None


def ranking_agreement(
    task: RetrievalTask,
    models: Mapping[str, tuple[Embedder, Embedder]],
    memo: EmbeddingCache,
) -> TaskRankings:
    """Agreement of each model (query embedder, document embedder) with the model "teacher".

    By model, mean over queries and population standard deviation of:
    overlap: share of the teacher's 10 best documents among the model's 10 best;
    kendall_tau: tau-b between the ranks, in both full rankings, of all documents in either list of 10.
    Documents without text rank last; equal scores rank in the task's order of documents.
    """
    others = [name for name in models if name != "teacher"]
    if "teacher" not in models or not others:
        raise DistilvecError(
            f"{task.name}: ranking agreement needs a column 'teacher' and another one; found "
            f"{', '.join(models) or 'none'}.",
            "Name both.",
            key="evaluation.columns",
        )
    vectors = {}
    for name, pair in models.items():
        queries, documents, filled = retrieval_vectors(task, *pair, memo)
        left, right = metrics.ranking_vectors(queries, documents, pair[1].similarity)
        vectors[name] = left, right, filled
    top = {}
    for name, (left, right, filled) in vectors.items():
        top[name] = ranked_documents(task, left, right, filled, NEIGHBOR_COUNT, partial(top_k, similarity="dot"))
    compared_documents = np.concatenate([top[name] for name in others], axis=1)
    ranks = np.split(_ranks(vectors["teacher"], top["teacher"], compared_documents, task.own), len(others), axis=1)
    agreement = {}
    overlap = {}
    for name, ranks_by_teacher in zip(others, ranks, strict=True):
        shared = (top[name][:, :, None] == top["teacher"][:, None, :]).any(axis=2)
        overlap[name] = shared.mean(axis=1)
        ranks_by_model = _ranks(vectors[name], top[name], top["teacher"], task.own)
        tau = _union_tau(ranks_by_model, ranks_by_teacher, shared)
        means = float(overlap[name].mean()), float(tau.mean())
        agreement[name] = RankingAgreement(*means, float(overlap[name].std()), float(tau.std()))
    values = {name: score_task(task, *pair, memo)[1].predicted for name, pair in models.items()}
    return TaskRankings(agreement, _listed_queries(task, values, overlap, top))


def _listed_queries(
    task: RetrievalTask, values: Mapping[str, Array], overlap: Mapping[str, Array], top: Mapping[str, Array]
) -> RankedQueries:
    """List at most LISTED queries: those that lose most come first. The first RANKED have the documents' ids."""
    compared = next(name for name in ("student", *values) if name in values and name != "teacher")
    worst_first = np.argsort(values[compared] - values["teacher"], kind="stable")[:LISTED].tolist()
    listed_documents = dict[int, None]()  # a set that keeps the order
    rows = []
    for place, query in enumerate(worst_first):
        row = RankedQuery(
            query=shortened(task.queries[query], 2 * TEXT_CHARACTERS),
            scores={name: round(100 * float(by_query[query]), 2) for name, by_query in values.items()},
            overlap={name: round(float(by_query[query]), 2) for name, by_query in overlap.items()},
        )
        if place < RANKED:
            ids_by_model = {}
            ranked = dict[int, None]()
            for name, documents_by_query in top.items():
                documents = documents_by_query[query].tolist()
                ids_by_model[name] = [task.document_ids[document] for document in documents]
                ranked |= dict.fromkeys(documents)
            listed_documents |= ranked
            is_relevant = (task.judged[:, 0] == query) & (task.gains > 0)
            relevant = ranked.keys() & set(task.judged[is_relevant, 1].tolist())
            relevant_ids = [task.document_ids[document] for document in sorted(relevant)]
            row = replace(row, found=ids_by_model, relevant=relevant_ids)
        rows.append(row)
    texts = {}
    for document in listed_documents:
        texts[task.document_ids[document]] = shortened(task.documents[document], TEXT_CHARACTERS)
    return RankedQueries(len(task.queries), rows, texts)


def _ranks(vectors: Vectors, top: Array, targets: Array, own_rows: Sequence[int]) -> Array:
    """Ranks from 1 of documents `targets` [queries, targets] in the model's full ranking, which starts with its `top`.

    Queries are taken in blocks of four million scores; only documents outside `top` are counted up to.
    """
    queries, documents, filled = vectors
    same = targets[:, :, None] == top[:, None, :]
    ranks = np.where(same.any(axis=2), same.argmax(axis=2) + 1, 0)
    block = max(1, _SCORES_AT_ONCE // len(documents))
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ documents.T
        scores[:, ~filled] = -np.inf
        for query, ranking in enumerate(scores, start=start):
            ranking[top[query]] = np.nan  # compares as neither better nor equal
            if own_rows and own_rows[query] >= 0:
                ranking[own_rows[query]] = np.nan
            for slot in np.flatnonzero(ranks[query] == 0):
                document = targets[query, slot]
                before = np.sum(ranking > ranking[document]) + np.sum(ranking[:document] == ranking[document])
                ranks[query, slot] = top.shape[1] + before + 1
    return ranks


def _union_tau(ranks_by_model: Array, ranks_by_teacher: Array, shared: Array) -> Array:
    """Kendall's tau-b of every query over the union of both lists, float64 [queries].

    The model ranks the teacher's documents, the teacher the model's; `shared` are the model's documents that the
    teacher's list has too. One document is full agreement.
    """
    depth, taus = np.arange(1, ranks_by_model.shape[1] + 1), np.ones(len(ranks_by_model))
    for query, common in enumerate(shared):
        left = np.append(ranks_by_model[query], depth[~common])
        right = np.append(depth, ranks_by_teacher[query][~common])
        if len(left) > 1:
            taus[query] = kendalltau(left, right, variant="b").statistic
    return taus
