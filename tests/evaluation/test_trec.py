"""A retrieval task's figures against trec_eval's own code (pytrec_eval), ties included: equal scores rank by descending
document id.
"""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.evaluation.evaluator import EmbeddingCache, score_task
from distilvec.evaluation.search import top_k
from distilvec.evaluation.tasks import make_retrieval


def test_queries_that_are_documents_score_as_in_beir(embedder):
    """BEIR takes a query's own document out of its results before trec_eval counts them; ids and texts are equal."""
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(0)
    texts = {f"d{i:02}": f"claim {i}" for i in range(40)}
    queries = {name: texts[name] for name in list(texts)[:15]} | {"q": "a question"}
    judged = {(query, str(document)): 1.0 for query in queries for document in rng.choice(list(texts)[20:], 3)}
    model = embedder(width=4)
    own = queries.keys() & texts.keys()
    task = make_retrieval("own", texts, queries, judged, own=own)
    score, _ = score_task(task, model, model, EmbeddingCache())

    documents, asked = model.embed(task.documents), model.embed(task.queries, "query")
    rows, similarities = top_k(asked, documents, len(documents))
    run = {}
    for place, query in enumerate(task.query_ids):
        found = {
            task.document_ids[row]: float(value) for row, value in zip(rows[place], similarities[place], strict=True)
        }
        found.pop(query, None)
        run[query] = found
    qrels = {query: {d: int(gain) for (q, d), gain in judged.items() if q == query} for query in queries}
    figures = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100"}).evaluate(run)
    for name, ours in (("ndcg_cut_10", "ndcg@10"), ("recall_100", "recall@100")):
        assert score.metrics[ours] == pytest.approx(100 * np.mean([row[name] for row in figures.values()]), abs=1e-4)
    assert any("documents themselves" in note for note in score.warnings)
    kept, _ = score_task(make_retrieval("own", texts, queries, judged), model, model, EmbeddingCache())
    assert kept.value < score.value


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
        (q, d): float(rng.integers(-1, 4)) for q in queries for d in rng.choice(list(documents), 15, replace=False)
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
