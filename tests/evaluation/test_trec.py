"""A retrieval task's figures against trec_eval's own code (pytrec_eval), ties included: equal scores rank by descending
document id.
"""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.evaluation.evaluator import EmbeddingCache, score_task
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import make_retrieval


@pytest.mark.parametrize("levels", [3, 1000], ids=["many ties", "few ties"])
def test_figures_are_trec_evals(embedder, levels):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(levels)
    documents = {f"d{i:03}": f"document {i}" for i in range(150)}
    queries = {f"q{i}": f"query {i}" for i in range(12)}
    known = {
        text: rng.integers(-levels, levels + 1, size=2).astype(float) + 0.5
        for text in (*documents.values(), *queries.values())
    }
    judged = {
        (q, d): float(rng.integers(0, 4)) for q in queries for d in rng.choice(list(documents), 15, replace=False)
    }
    judged |= {(q, "d007"): 1.0 for q in queries}
    model = embedder(width=2, known=known)
    task = make_retrieval("trec", documents, queries, judged)
    score, sample = score_task(task, model, model, EmbeddingCache())

    matrix = np.array([known[text] for text in task.documents]), np.array([known[text] for text in task.queries])
    rows, scores = top_k(matrix[1], matrix[0], len(documents))
    run = {
        query: {task.document_ids[row]: float(value) for row, value in zip(rows[place], scores[place], strict=True)}
        for place, query in enumerate(task.query_ids)
    }
    qrels = {query: {d: int(gain) for (q, d), gain in judged.items() if q == query} for query in queries}
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100", "recip_rank"}).evaluate(run)
    ndcg = np.array([found[query]["ndcg_cut_10"] for query in task.query_ids])
    np.testing.assert_allclose(sample.predicted, ndcg, atol=1e-6)
    assert score.metrics["ndcg@10"] == pytest.approx(100 * ndcg.mean(), abs=1e-4)
    assert score.metrics["recall@100"] == pytest.approx(
        100 * np.mean([found[query]["recall_100"] for query in queries]), abs=1e-4
    )
    cut = [rank if (rank := found[query]["recip_rank"]) >= 0.1 else 0.0 for query in queries]
    assert score.metrics["mrr@10"] == pytest.approx(100 * np.mean(cut), abs=1e-4)
