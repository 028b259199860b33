"""Parity of an exported model with PyTorch: vectors, rankings, size and latency, and tolerances for them.

Texts are queries and documents of a retrieval task, truncated to 128 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distilvec.core.spread import evenly_spread
from distilvec.core.vectors import cosine_pairs
from distilvec.evaluation.evaluator import EmbeddingCache, ranked_documents, retrieval_vectors, score_task
from distilvec.evaluation.memory import random_tokens
from distilvec.evaluation.metrics import unit
from distilvec.evaluation.search import top_k
from distilvec.evaluation.significance import average_interval
from distilvec.evaluation.speed import ROLE_TOKENS, Timing, interleaved
from distilvec.evaluation.tasks import RetrievalTask, make_retrieval
from distilvec.formats.onnx import LOGITS, Graph
from distilvec.models.limits import max_length
from distilvec.teachers.graph_embedder import GraphEmbedder, Runnable

QUERIES, DOCUMENTS = 100, 200  # most queries, and documents unless their relevant ones are more
TOKENS = 128
TIMING = Timing(5, 100, 1.0)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """Lowest mean cosine with PyTorch's vectors, most points of nDCG@10 lost, lowest share of equal labels.

    A loss of nDCG@10 counts where its 95% interval is below 0: among few queries one that changes is more than any
    tolerance.
    """

    mean_cosine: float
    ndcg_loss: float
    labels: float


@dataclass(frozen=True)
class Parity:
    """An exported model against PyTorch in fp32. Sizes in 10^6 bytes, latencies in ms for one text of 16 tokens.

    `similarity_error`: mean absolute difference of the cosines of all queries with all documents. `overlap`: share of
    PyTorch's 10 best documents among the 10 best. `ndcg`: nDCG@10 x 100; `ndcg_low`, `ndcg_high`: the 95% interval of
    its difference from PyTorch's, over the queries. `labels`: share of queries with the same label; None without a
    head.
    """

    task: str
    queries: int
    documents: int
    mean_cosine: float
    min_cosine: float
    similarity_error: float
    overlap: float
    ndcg: float
    pytorch_ndcg: float
    ndcg_low: float
    ndcg_high: float
    labels: float | None
    megabytes: float
    pytorch_megabytes: float
    latency_ms: float
    pytorch_latency_ms: float

    def problems(self, tolerance: Tolerance) -> list[str]:
        """Return what is out of tolerance, with the found and the allowed value; NaN is out of tolerance."""
        found = []
        if not self.mean_cosine >= tolerance.mean_cosine:
            found.append(f"mean cosine {self.mean_cosine:.4f}, lowest allowed is {tolerance.mean_cosine:g}")
        if not (self.pytorch_ndcg - self.ndcg <= tolerance.ndcg_loss or self.ndcg_high >= 0):
            found.append(
                f"nDCG@10 of {self.task} {self.ndcg:.2f} against {self.pytorch_ndcg:.2f} (difference "
                f"{self.ndcg_low:+.2f} to {self.ndcg_high:+.2f}), allowed loss is {tolerance.ndcg_loss:g}"
            )
        if self.labels is not None and not self.labels >= tolerance.labels:
            found.append(f"{100 * self.labels:.1f}% equal labels, lowest allowed is {100 * tolerance.labels:g}%")
        return found


def measure_parity(graph: Graph, exported: Runnable, task: RetrievalTask, megabytes: float) -> Parity:
    """Compare an exported model of `megabytes` with `graph`, the PyTorch model it was made from, in fp32 on the CPU.

    Errors: DistilvecError for vectors that are not finite.
    """
    task = sample_task(task)
    model = graph.model
    memo = EmbeddingCache()
    pytorch = GraphEmbedder("PyTorch", model, graph, TOKENS)
    export = GraphEmbedder("exported", model, exported, TOKENS)
    expected_queries, expected_documents, filled = retrieval_vectors(task, pytorch, pytorch, memo)
    queries, documents, _ = retrieval_vectors(task, export, export, memo)

    # a document without text is not embedded: it has no cosine
    cosines = np.concatenate(
        [cosine_pairs(expected_queries, queries), cosine_pairs(expected_documents, documents)[filled]]
    )
    expected_similarities = unit(expected_queries) @ unit(expected_documents).T
    similarities = unit(queries) @ unit(documents).T
    search = partial(top_k, similarity=export.similarity)
    expected_top = ranked_documents(task, expected_queries, expected_documents, filled, 10, search)
    top = ranked_documents(task, queries, documents, filled, 10, search)
    overlap = float((top[:, :, None] == expected_top[:, None]).any(axis=2).mean())

    pytorch_score, pytorch_sample = score_task(task, pytorch, pytorch, memo)
    score, sample = score_task(task, export, export, memo)
    change = average_interval([(sample, pytorch_sample)])
    labels = None
    if graph.head is not None:
        expected, found = (one.outputs(task.queries, "query", LOGITS) for one in (pytorch, export))
        labels = equal_labels(expected, found, several=graph.head.task.kind == "multilabel")

    inputs = random_tokens(model, 1, min(ROLE_TOKENS["query"], max_length(model)))
    pytorch_seconds, seconds = interleaved([partial(graph.run, inputs), partial(exported.run, inputs)], TIMING)
    return Parity(
        task=task.name,
        queries=len(task.queries),
        documents=len(task.documents),
        mean_cosine=float(cosines.mean()),
        min_cosine=float(cosines.min()),
        similarity_error=float(np.abs(similarities - expected_similarities).mean()),
        overlap=overlap,
        ndcg=score.value,
        pytorch_ndcg=pytorch_score.value,
        ndcg_low=change.low,
        ndcg_high=change.high,
        labels=labels,
        megabytes=megabytes,
        pytorch_megabytes=sum(weight.nbytes for weight in graph.parameters()) / 1e6,
        latency_ms=1e3 * float(np.median(seconds)),
        pytorch_latency_ms=1e3 * float(np.median(pytorch_seconds)),
    )


def equal_labels(expected: Array, found: Array, several: bool) -> float:
    """Return the share of texts [texts, classes] with the same label, or with `several` with the same set of them."""
    if several:
        return float(((expected > 0) == (found > 0)).all(axis=1).mean())
    return float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())


def sample_task(task: RetrievalTask, queries: int = QUERIES, documents: int = DOCUMENTS) -> RetrievalTask:
    """Return evenly spaced queries of a task, all their relevant documents, and evenly spaced further ones."""
    kept = set(evenly_spread(len(task.queries), queries).tolist())
    pairs = zip(task.judged.tolist(), task.gains.tolist(), strict=True)
    judged = {(query, document): gain for (query, document), gain in pairs if query in kept}
    relevant = {document for (_, document), gain in judged.items() if gain > 0}
    others = [row for row in range(len(task.documents)) if row not in relevant]
    rows = relevant | {others[number] for number in evenly_spread(len(others), documents - len(relevant))}
    made = make_retrieval(
        task.name,
        {task.document_ids[row]: task.documents[row] for row in sorted(rows)},
        {task.query_ids[row]: task.queries[row] for row in sorted(kept)},
        {(task.query_ids[q], task.document_ids[d]): gain for (q, d), gain in judged.items() if d in rows},
        own=[task.query_ids[query] for query, row in enumerate(task.own) if row in rows],
    )
    return replace(made, domain=task.domain)
