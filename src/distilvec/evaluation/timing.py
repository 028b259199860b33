"""Timing several calls side by side, and what a list of latencies says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from distilvec.core.errors import DistilvecError

LEAST_REPEATS, WARMUP_SHARE = 5, 0.25


@dataclass(frozen=True)
class Statistics:
    """Latencies of one batch in ms and texts a second, with their spread; `std` are sample standard deviations.

    `texts_per_second` is the batch over the mean latency, as DistillMoE gives it.
    """

    mean_ms: float
    median_ms: float
    p99_ms: float
    std_ms: float
    texts_per_second: float
    texts_per_second_std: float
    repeats: int


@dataclass(frozen=True)
class Timing:
    """How often: warm-up rounds, measured rounds, and the seconds one model may take in one setting (null: no bound).

    Warm-up may take a quarter of the budget beside it. Errors: DistilvecError for counts that give no spread.
    """

    warmup: int
    repeats: int
    budget_seconds: float | None

    def __post_init__(self) -> None:
        if self.repeats < 2 or self.warmup < 0 or (self.budget_seconds is not None and not self.budget_seconds > 0):
            raise DistilvecError(
                "[--seconds] expected at least 2 repeats (a spread needs two), a warm-up of 0 or more, more than 0 seconds; found repeats "
                f"{self.repeats}, warm-up {self.warmup}, budget {self.budget_seconds}."
            )


def statistics_of(seconds: Sequence[float], batch: int) -> Statistics:
    """Statistics of a batch's latencies, at least two of them."""
    times = np.asarray(seconds, dtype=np.float64)
    return Statistics(
        mean_ms=float(1e3 * times.mean()),
        median_ms=float(1e3 * np.median(times)),
        p99_ms=float(1e3 * np.percentile(times, 99)),
        std_ms=float(1e3 * times.std(ddof=1)),
        texts_per_second=float(batch / times.mean()),
        texts_per_second_std=float((batch / times).std(ddof=1)),
        repeats=len(times),
    )


def interleaved(
    calls: Sequence[Callable[[], Any]], timing: Timing, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of every call, [calls][rounds]: warm-up rounds, then measured rounds, each of which runs every call once.

    Measured rounds end when the calls took the budget each on average, but not before LEAST_REPEATS (or `repeats`, if less).
    """
    budget = float("inf") if timing.budget_seconds is None else timing.budget_seconds * len(calls)
    _rounds(calls, timing.warmup, min(1, timing.warmup), WARMUP_SHARE * budget, clock)
    return _rounds(calls, timing.repeats, min(LEAST_REPEATS, timing.repeats), budget, clock)


def _rounds(
    calls: Sequence[Callable[[], Any]], count: int, least: int, budget: float, clock: Callable[[], float]
) -> list[list[float]]:
    seconds: list[list[float]] = [[] for _ in calls]
    spent, done = 0.0, 0
    while done < count and (done < least or spent < budget):
        for call, kept in zip(calls, seconds, strict=True):
            start = clock()
            call()
            kept.append(clock() - start)
            spent += kept[-1]
        done += 1
    return seconds
