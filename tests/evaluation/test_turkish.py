"""The Turkish suite on generated data in the form of its files: it loads, and STS has both of the paper's figures."""

from __future__ import annotations

import gzip
import json
import shutil

import numpy as np
import pytest
from samples import make_texts
from scipy.stats import pearsonr, spearmanr

from distilvec.config.builtin import recipe_files
from distilvec.evaluation.evaluator import score_tasks
from distilvec.evaluation.suite import load_suite


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A copy of the suite, and its data in the data folder."""
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "data"))
    (source,) = {path.parent / "suites" / "turkish.yaml" for path in recipe_files() if path.stem == "offline_cosine"}
    copy = tmp_path / "project" / "recipes" / "suites" / source.name
    copy.parent.mkdir(parents=True)
    shutil.copy(source, copy)
    texts = make_texts(60)
    pairs = [
        {
            "split": ("train", "validation")[n % 2],
            "sentence1": texts[n],
            "sentence2": texts[n + 30],
            "score": n % 6,
            "genre": "main-news",
        }
        for n in range(30)
    ]
    write(tmp_path / "data/stsb_tr/stsb_tr.jsonl.gz", pairs)
    folder = tmp_path / "data/tquad_retrieval_dev"
    write(
        folder / "corpus.jsonl.gz",
        [{"id": f"d{n}", "title": "Çok güzel", "text": text} for n, text in enumerate(texts[:20])],
    )
    write(folder / "queries.jsonl.gz", [{"id": f"q{n}", "text": f"{text}?"} for n, text in enumerate(texts[:20])])
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(20)))
    return copy


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_sts_with_both_correlations_and_retrieval(suite, embedder):
    graded, search = tasks = load_suite(suite)
    assert [(task.name, task.type) for task in tasks] == [("stsb_tr", "sts"), ("tquad", "retrieval")]
    assert len(graded.first) == 15, "the validation rows alone"
    assert not search.warnings and len(search.queries) == 20
    model = embedder()
    scores = score_tasks(tasks, model)
    assert [score.metric for score in scores] == ["spearman", "ndcg@10"]
    first, second = (model.embed(texts) for texts in (graded.first, graded.second))
    cosines = np.sum(first * second, 1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    assert scores[0].metrics == {
        "spearman": pytest.approx(100 * spearmanr(cosines, graded.gold).statistic),
        "pearson": pytest.approx(100 * pearsonr(cosines, graded.gold).statistic, abs=1e-3),
    }
