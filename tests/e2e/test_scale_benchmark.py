"""The benchmark of scale in small, and the simulated queue: ideal without trouble, and at its end with trouble."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.shard_queue import Cluster, simulate
from distilvec.teachers.cache.store import SHARD_ROWS

CALM = Cluster(8, texts=4000 * SHARD_ROWS, slow_share=0, hours_to_failure=1e9, write_rate=1e15)


@pytest.mark.slow
def test_scale_is_measured(measured):
    printed, found = measured("scale", "--rows", "2000", "6000")
    small, large = found["sizes"]["2000"], found["sizes"]["6000"]
    assert (small["kept"], large["kept"]) == (1800, 5400)
    assert small["stages"].keys() == {"corpus", "tokens", "vectors"} and large["disk_mb"]["corpus"] > 0.1
    assert found["slopes"]["memory_bytes_a_row"].keys() == small["stages"].keys() and "slopes" not in printed


def test_a_calm_queue_is_ideal():
    found = simulate(CALM)
    assert found["shards"] == 4000 and found["failures"] == 0 and 0.97 < found["efficiency"] <= 1.02


def test_trouble_costs_what_it_must():
    failing = simulate(replace(CALM, hours_to_failure=0.05))
    assert failing["failures"] > 50 and failing["repeated"] > 0
    ideal = 180 / (180 + 120 + 4)  # seconds alive, of the restart, and of half a shard that is lost
    assert failing["efficiency"] == pytest.approx(ideal, rel=0.1)
    slow = simulate(replace(CALM, slow_share=1.0))
    assert slow["efficiency"] == pytest.approx(1 / 3, rel=0.03)
    writer = simulate(replace(CALM, write_rate=1e6))  # one writer: more workers do not help
    assert writer["hours"] == pytest.approx(writer["writer_hours"], rel=0.05)


def test_one_slow_worker_stops_nobody():
    """Seven workers go on while the eighth is three times as slow."""
    found = simulate(replace(CALM, slow_share=0.125, seed=next(seed for seed in range(50) if slow_workers(seed) == 1)))
    assert found["efficiency"] == pytest.approx((7 + 1 / 3) / 8, rel=0.03)


def slow_workers(seed: int) -> int:
    import numpy as np

    return int((np.random.default_rng(seed).random(8) < 0.125).sum())
