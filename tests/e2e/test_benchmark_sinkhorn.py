"""The Sinkhorn benchmark runs, and both sides find the same values (small; times mean nothing here)."""

from __future__ import annotations


def test_sinkhorn_is_measured_at_equal_values(measured):
    _, found = measured("sinkhorn", "--rounds", "1", "--problems", "4", "--student", "8", "--teacher", "10")
    for stop in ("tolerance", "fixed"):
        assert found[stop]["largest_difference"] < 1e-5 and found[stop]["ratio"] > 0
        assert set(found[stop]["ms"]) == {"distilvec", "pot_numpy_float64", "pot_numpy_float32", "pot_torch_float32"}
