"""`python -m benchmarks.time_to_quality`: the clock, overlap@10, the students that count, the table."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from benchmarks import time_to_quality
from benchmarks.time_to_quality import nearest, saved_students, wait
from experiments.quality_over_time import draw_quality, first_better, quality_table
from experiments.untouched import TITLE, Untouched


def test_a_process_that_is_late_is_ended():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    assert not wait(process, 0.2) and process.returncode < 0
    process = subprocess.Popen([sys.executable, "-c", ""])
    assert wait(process, 600) and process.returncode == 0


def test_neighbours_are_the_most_similar_other_texts(monkeypatch):
    monkeypatch.setattr(time_to_quality, "QUERIES", 5)
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for query, rows in enumerate(nearest(vectors)):
        order = np.argsort(-vectors @ vectors[query])
        assert order[0] == query and set(rows) == set(order[1:11].tolist())


def test_students_without_weights_do_not_count(tmp_path):
    for name, files in {
        "run/students/step-20": ["modules.json", "model.safetensors"],
        "trainer/checkpoint-10": ["modules.json", "0_StaticEmbedding/model.safetensors"],
        "run/students/step-40": ["modules.json"],
        "run/student": ["modules.json", "model.safetensors"],
    }.items():
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    assert {path.name for path in saved_students(tmp_path)} == {"step-20", "checkpoint-10"}


def test_the_table_says_when_each_best_is_reached_and_leaves_out_sides_without_students():
    def point(minutes: float, overlap: float, cranfield: float) -> dict[str, float]:
        return {"minutes": minutes, "overlap": overlap, "cranfield": cranfield, "xquad-en": 80.0}

    sides = {
        "distilvec": {"parameters": 4_800_000, "points": [point(1, 0.4, 30), point(2, 0.5, 35)]},
        "sentence-transformers": {"parameters": 22_700_000, "points": [point(5, 0.45, 41), point(9, 0.44, 40)]},
        "model2vec": {"points": []},
    }
    job = {"teacher": point(0, 1.0, 60), "sides": sides, "texts": 10_000, "epochs": 3}
    table = quality_table({"5M": job}, Untouched({"cranfield": 51.3, "xquad-en": 80.0}, {}))
    assert "| distilvec | 4.8 M | 2.0 | 0.50 | 35.0 | 80.0 |" in table
    assert "model2vec" not in table
    assert f"| {TITLE} |  | 22.7 M |  |  | **51.3** | 80.0 |" in table, "the rival is bold where it wins"
    assert "overlap@10 0.45 after 5.0 minutes, reached after 2.0 minutes" in table
    assert "Cranfield 41.0 after 5.0 minutes, not reached" in table
    assert draw_quality({"5M": job}).count("<circle") == 3 * 4 + 4, "four students in three panels, four jobs"
    assert first_better(job, "sentence-transformers") is None
    job["sides"]["sentence-transformers"]["points"] = [{**point(9, 0.39, 34), "xquad-en": 79.0}]
    assert first_better(job, "sentence-transformers") == (2, 9)
