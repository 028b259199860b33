"""The Sinkhorn benchmark runs, and both sides find the same values (small; times mean nothing here)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_sinkhorn_is_measured_at_equal_values(tmp_path):
    line = [sys.executable, "-m", "benchmarks.sinkhorn", "--json", str(tmp_path / "out.json"), "--rounds", "1"]
    small = ["--problems", "4", "--student", "8", "--teacher", "10"]
    subprocess.run([*line, *small], check=True, capture_output=True, cwd=Path(__file__).parents[2], timeout=120)
    found = json.loads((tmp_path / "out.json").read_text())
    for stop in ("tolerance", "fixed"):
        assert found[stop]["largest_difference"] < 1e-5 and found[stop]["ratio"] > 0
        assert set(found[stop]["ms"]) == {"distilvec", "pot_numpy_float64", "pot_numpy_float32", "pot_torch_float32"}
