"""What work takes: clocks of the wall and of the processor, the training loop alone, and the machine in words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from distilvec.train.trainer import Trainer

QUIET = 0.25  # load a core that the start of Python itself gives; more is other work


@dataclass(frozen=True)
class Spent:
    """Seconds of the clock, and of the processor: all threads and the child processes that have ended."""

    seconds: float
    processor_seconds: float


def spent(work: Callable[[], Any]) -> Spent:
    """Do some work; return what it took."""
    processor, began = processor_time(), time.perf_counter()
    work()
    return Spent(time.perf_counter() - began, processor_time() - processor)


def processor_time() -> float:
    """Return the seconds of the processor that this process and its children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def busy_note(load: float) -> str:
    """Say that other work ran when a measurement began, by the load average of then; "" on a quiet machine."""
    cores = os.cpu_count() or 1
    if load <= QUIET * cores:
        return ""
    return f"busy machine: a load of {load:.1f} on {cores} cores before the start. Compare the processor's time."


class Bare(Trainer):
    """The loop alone: nothing is validated or saved, and no student goes back to its start."""

    def _validate(self) -> dict[str, float]:
        return {}

    def _checkpoint(self) -> None:
        """Nothing."""


def machine() -> str:
    """Where figures were taken, in words."""
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    threads, instructions = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    noun = "thread" if threads == 1 else "threads"
    return f"{gpu}{threads} {noun}, {instructions}, torch {torch.__version__}"
