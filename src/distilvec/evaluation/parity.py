"""Parity of an exported model with PyTorch: vectors, rankings, size and latency, and tolerances for them.

Texts are queries and documents of a retrieval task, truncated to 128 tokens. What decides is whether the file gives
PyTorch's vectors, rankings and labels, which does not depend on what the model has learnt. The task's own score is
shown, and does not decide: among a hundred queries its interval is several points wide, and the losses that a form may
have are half a point at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distilvec.core.vectors import cosine_pairs, evenly_spread
from distilvec.evaluation.evaluator import EmbeddingCache, retrieval_vectors, score_task
from distilvec.evaluation.memory import random_tokens
from distilvec.evaluation.metrics import unit
from distilvec.evaluation.overlap import overlap_by_query
from distilvec.evaluation.significance import average_interval, share_interval
from distilvec.evaluation.speed import ROLE_TOKENS, Timing, interleaved
from distilvec.evaluation.tasks import RetrievalTask, make_retrieval
from distilvec.formats.onnx import LOGITS, Graph
from distilvec.models.parts import max_length
from distilvec.teachers.graph_embedder import GraphEmbedder, Runnable

QUERIES, DOCUMENTS = 100, 200  # most queries, and documents unless their relevant ones are more
RANKED = 100  # texts whose neighbours are compared: documents, where there are fewer queries
TOKENS = 128
TIMING = Timing(5, 100, 1.0)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """Lowest mean cosine with PyTorch's vectors, lowest share of its ten nearest documents and of its labels.

    Labels count where their 95% interval is below the tolerance: among few texts a single one is more than any.
    """

    mean_cosine: float
    overlap: float
    labels: float


@dataclass(frozen=True)
class Parity:
    """An exported model against PyTorch in fp32. Sizes in 10^6 bytes, latencies in ms for one text of 16 tokens.

    `similarity_error`: mean absolute difference of the cosines of all queries with all documents. `overlap`: share of
    PyTorch's 10 best documents among the 10 best, over the queries, and documents where these are fewer than RANKED.
    `ndcg`: nDCG@10 x 100; `ndcg_low`, `ndcg_high`: the 95% interval of
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
        problems = []
        if not self.mean_cosine >= tolerance.mean_cosine:
            problems.append(f"mean cosine {self.mean_cosine:.4f}, lowest allowed is {tolerance.mean_cosine:g}")
        if not self.overlap >= tolerance.overlap:
            problems.append(f"overlap@10 {self.overlap:.3f}, lowest allowed is {tolerance.overlap:g}")
        if self.labels is not None and self._most_labels(self.labels) < tolerance.labels:
            problems.append(f"{100 * self.labels:.1f}% equal labels, lowest allowed is {100 * tolerance.labels:g}%")
        return problems

    def _most_labels(self, labels: float) -> float:
        """Upper end of the interval of the share of equal labels."""
        return share_interval(round(labels * self.queries), self.queries)[1]


def measure_parity(graph: Graph, exported: Runnable, task: RetrievalTask, megabytes: float) -> Parity:
    """Compare an exported model of `megabytes` with `graph`, the PyTorch model it was made from, in fp32 on the CPU."""
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
    candidates, expected_candidates = documents[filled], expected_documents[filled]
    ranked = evenly_spread(len(candidates), RANKED - len(queries))
    candidate_rows = np.cumsum(filled) - 1
    own_rows = [candidate_rows[row] if row >= 0 else -1 for row in task.own or [-1] * len(queries)]
    kept = overlap_by_query(
        np.concatenate([expected_queries, expected_candidates[ranked]]),
        expected_candidates,
        np.concatenate([queries, candidates[ranked]]),
        candidates,
        export.similarity,
        export.similarity,
        np.array([*own_rows, *ranked]),
    )

    pytorch_score, pytorch_sample = score_task(task, pytorch, pytorch, memo)
    score, sample = score_task(task, export, export, memo)
    change = average_interval([(sample, pytorch_sample)])
    labels = None
    if graph.head is not None:
        pytorch_logits = pytorch.outputs(task.queries, "query", LOGITS)
        logits = export.outputs(task.queries, "query", LOGITS)
        labels = equal_labels(pytorch_logits, logits, several=graph.head.task.kind == "multilabel")

    inputs = random_tokens(model, 1, min(ROLE_TOKENS["query"], max_length(model)), of_graph=True)
    pytorch_seconds, seconds = interleaved([partial(graph.run, inputs), partial(exported.run, inputs)], TIMING)
    return Parity(
        task=task.name,
        queries=len(task.queries),
        documents=len(task.documents),
        mean_cosine=float(cosines.mean()),
        min_cosine=float(cosines.min()),
        similarity_error=float(np.abs(similarities - expected_similarities).mean()),
        overlap=float(kept.mean()),
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


def equal_labels(expected: Array, logits: Array, several: bool) -> float:
    """Return the share of texts [texts, classes] with the same label, or with `several` with the same set of them."""
    if several:
        return float(((expected > 0) == (logits > 0)).all(axis=1).mean())
    return float((expected.argmax(axis=1) == logits.argmax(axis=1)).mean())


def with_documents(task: RetrievalTask, further: RetrievalTask) -> RetrievalTask:
    """Return a task that is searched among another one's documents as well, which answer none of its queries."""
    documents = {f"{further.name} {row}": text for row, text in enumerate(further.documents)}
    documents |= dict(zip(task.document_ids, task.documents, strict=True))
    made = make_retrieval(
        f"{task.name} and {further.name}",
        documents,
        dict(zip(task.query_ids, task.queries, strict=True)),
        {
            (task.query_ids[query], task.document_ids[document]): gain
            for (query, document), gain in zip(task.judged.tolist(), task.gains.tolist(), strict=True)
        },
        own=[task.query_ids[query] for query, row in enumerate(task.own) if row >= 0],
    )
    return replace(made, domain=task.domain)


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
