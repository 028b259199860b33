"""The benchmark of DynamicCKA runs, and loop and batch have the same values and gradients (small; times mean nothing
here).
"""

from __future__ import annotations

import pytest

from benchmarks import aggregation
from benchmarks.dynamic_cka_loop import draw
from distilvec.losses.dynamic_cka import RULES, narrow_is_cheaper


def test_aggregation_is_measured_at_equal_values(measured):
    small = ["--texts", "3", "--student", "8", "--teacher", "10", "--widths", "16", "24", "384", "16"]
    _, found = measured("aggregation", "--rounds", "1", "--loop-rounds", "1", *small)
    for name in ("3 texts, 16 to 24", "3 texts, 384 to 16", "4 texts, 256 to 256"):
        for rule in RULES:
            case = found[name][rule]
            assert case["largest_difference_float64"] < 1e-9 and case["largest_difference_float32"] < 1e-4
            names = {"alone", "aggregation", "dynamic_cka", "aggregation_both", "dynamic_cka_both"}
            assert set(case["distilvec_ms"]) == set(case["loop_ms"]) == set(case["times_faster"]) == names
            assert min(case["distilvec_ms"].values()) > 0
        assert found[name]["similarity_ms"].keys() == {"taken", "student's", "teacher's"}
    assert set(found["under_mark"]) == set(RULES)
    assert found["gram"]["16"]["bytes_a_text_and_layer"] == {"states": 10 * 20, "gram": 110}
    assert found["selection"]["paper"]["share_of_random"]["64"] > 0.85
    assert found["selection"]["paper, most 3"]["copies_keep"] <= 3


def test_what_is_looked_at_is_put_back():
    case = draw(2, 4, 5, 6, 7)
    assert aggregation.widths(case, 1)["taken"] == "teacher's"
    assert aggregation.batched.narrow_is_cheaper is narrow_is_cheaper


def test_a_difference_is_no_figure_but_a_failure(monkeypatch):
    monkeypatch.setattr(
        aggregation, "value_by_loop", lambda case, rule: (case.states * case.projection.sum()).sum((1, 2))
    )
    with pytest.raises(AssertionError, match="not close"):
        aggregation.differences(draw(2, 4, 5, 6, 7), RULES["paper"])
