"""Learning rates over time: functions of the step and the epoch, since REDACT's rate changes at epoch ends only."""

from __future__ import annotations

import math
from collections.abc import Callable

from distilvec.config.training import TrainSection

Schedule = Callable[[int, int], float]  # (step, epoch), both from 0, to a learning rate


def build_schedule(train: TrainSection, total_steps: int) -> Schedule:
    """The schedule a recipe names; `total_steps` counts optimiser steps of the whole run."""
    high, low = train.learning_rate, train.final_learning_rate
    name, warmup = train.schedule.name, train.schedule.warmup
    if name == "cycles":
        return cycles(high, low, math.ceil(train.epochs / train.schedule.cycles))
    warmup_steps = round(warmup if warmup >= 1 else warmup * total_steps)
    shape = {
        "constant": lambda share: 1.0,
        "linear": lambda share: 1.0 - share,
        "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
    }
    return by_step(high, low, shape[name], warmup_steps, total_steps)


def cycles(high: float, low: float, epochs_in_cycle: int) -> Schedule:
    """Linear from `high` to `low` over a cycle's epochs, changed at epoch ends, then reset (REDACT, section 3.2, A.2).

    Ten epochs give 1e-4 - 9e-5 * e / 9 for e = 0 ... 9. A cycle of one epoch stays at `high`.
    """

    def rate(step: int, epoch: int) -> float:
        position = epoch % epochs_in_cycle
        return high - (high - low) * position / max(epochs_in_cycle - 1, 1)

    return rate


def by_step(high: float, low: float, shape: Callable[[float], float], warmup_steps: int, total_steps: int) -> Schedule:
    """Linear warm-up from 0 to `high`, then low + (high - low) * shape(share of the remaining steps)."""

    def rate(step: int, epoch: int) -> float:
        if step < warmup_steps:
            return high * (step + 1) / warmup_steps
        share = (step - warmup_steps) / max(total_steps - warmup_steps - 1, 1)
        return low + (high - low) * shape(min(share, 1.0))

    return rate
