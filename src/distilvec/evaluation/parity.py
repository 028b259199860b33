"""Parity of an exported model with PyTorch: vectors, rankings, size and latency, and tolerances for them.

Texts are queries and documents of a retrieval task, truncated to 128 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from distilvec.evaluation.evaluator import EmbeddingCache, retrieval_vectors, score_task
from distilvec.evaluation.exported import Runnable, TextEncoder
from distilvec.evaluation.memory import random_tokens
from distilvec.evaluation.metrics import cosine_pairs, unit
from distilvec.evaluation.search import top_k
from distilvec.evaluation.significance import average_interval
from distilvec.evaluation.speed import ROLE_TOKENS, Timing, interleaved
from distilvec.evaluation.tasks import RetrievalTask, make_retrieval
from distilvec.formats.onnx import LOGITS, Graph, token_limit

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
            found.append(f"{100 * self.labels:.1f} % equal labels, lowest allowed is {100 * tolerance.labels:g} %")
        return found


def measure_parity(
    graph: Graph, exported: Runnable, task: RetrievalTask, megabytes: float, timing: Timing | None = None
) -> Parity:
    """Compare an exported model of `megabytes` with `graph`, the PyTorch model it was made from, in fp32 on the CPU.

    Errors: DistilvecError for vectors that are not finite.
    """
    task, model, memo = sample_task(task), graph.model, EmbeddingCache()
    theirs, ours = (TextEncoder(name, model, run, TOKENS) for name, run in (("PyTorch", graph), ("exported", exported)))
    expected, found = (retrieval_vectors(task, one, one, memo) for one in (theirs, ours))
    cosines = np.concatenate([cosine_pairs(left, right) for left, right in zip(expected[:2], found[:2], strict=True)])
    cosines = cosines[np.concatenate([np.ones(len(task.queries), dtype=bool), expected[2]])]
    similarities, top = [], []
    for queries, documents, filled in (expected, found):
        similarities.append(unit(queries) @ unit(documents).T)
        top.append(top_k(queries, documents, 10, ~filled, similarity=ours.similarity)[0])
    overlap = float((top[1][:, :, None] == top[0][:, None]).any(axis=2).mean())
    (pytorch_score, pytorch_sample), (score, sample) = (score_task(task, one, one, memo) for one in (theirs, ours))
    change = average_interval([(sample, pytorch_sample)])
    labels = None
    if graph.head is not None:
        chosen = [one.outputs(task.queries, "query", LOGITS).argmax(axis=1) for one in (theirs, ours)]
        labels = float(np.mean(chosen[0] == chosen[1]))
    inputs = random_tokens(model, 1, min(ROLE_TOKENS["query"], token_limit(model) or ROLE_TOKENS["query"]))
    seconds = interleaved([partial(one.run, inputs) for one in (graph, exported)], timing or TIMING)
    latencies = [1e3 * float(np.median(taken)) for taken in seconds]
    return Parity(
        task=task.name,
        queries=len(task.queries),
        documents=len(task.documents),
        mean_cosine=float(cosines.mean()),
        min_cosine=float(cosines.min()),
        similarity_error=float(np.abs(similarities[0] - similarities[1]).mean()),
        overlap=overlap,
        ndcg=score.value,
        pytorch_ndcg=pytorch_score.value,
        ndcg_low=change.low,
        ndcg_high=change.high,
        labels=labels,
        megabytes=megabytes,
        pytorch_megabytes=sum(weight.nbytes for weight in graph.parameters()) / 1e6,
        latency_ms=latencies[1],
        pytorch_latency_ms=latencies[0],
    )


def sample_task(task: RetrievalTask, queries: int = QUERIES, documents: int = DOCUMENTS) -> RetrievalTask:
    """Return evenly spaced queries of a task, all their relevant documents, and evenly spaced further ones."""
    kept = set(_spread(len(task.queries), queries))
    pairs = zip(task.judged.tolist(), task.gains.tolist(), strict=True)
    judged = {(query, document): gain for (query, document), gain in pairs if query in kept}
    relevant = {document for (_, document), gain in judged.items() if gain > 0}
    others = [row for row in range(len(task.documents)) if row not in relevant]
    rows = relevant | {others[number] for number in _spread(len(others), documents - len(relevant))}
    made = make_retrieval(
        task.name,
        {task.document_ids[row]: task.documents[row] for row in sorted(rows)},
        {task.query_ids[row]: task.queries[row] for row in sorted(kept)},
        {(task.query_ids[q], task.document_ids[d]): gain for (q, d), gain in judged.items() if d in rows},
    )
    return replace(made, domain=task.domain)


def _spread(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly spaced."""
    return sorted({int(number) for number in np.linspace(0, count - 1, min(count, max(0, most)))}) if count else []
