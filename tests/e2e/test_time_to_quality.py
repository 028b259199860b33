"""`python -m benchmarks.time_to_quality`: the clock, the neighbours, the students that count, the figure."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from benchmarks import time_to_quality
from benchmarks.time_to_quality import draw, nearest, saved_students, wait


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


def test_a_figure_of_two_jobs_and_a_side_without_students(tmp_path):
    points = [{"minutes": 1.0, "neighbors": 0.4, "find": 30.0}, {"minutes": 2.0, "neighbors": 0.5, "find": 35.0}]
    sides = {
        "distilvec": {"parameters": 4_800_000, "points": points},
        "model2vec": {"points": []},
    }
    job = {"teacher": {"neighbors": 1.0, "find": 60.0}, "sides": sides}
    draw({"5M": job, "minilm": job}, tmp_path / "curves.svg")
    assert "4.8 M" in (tmp_path / "curves.svg").read_text() or (tmp_path / "curves.svg").stat().st_size > 10_000
