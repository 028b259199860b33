"""What work takes: clocks of the wall and of the processor, the training loop with a clock, the memory in use."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.memory import own_megabytes
from distilvec.core.objective import LossTerms
from distilvec.data.sampler import Batches
from distilvec.train.trainer import Trainer
from distilvec.train.update import Gradients, Update

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


class Stopwatch:
    """An update rule that notes what it spends, step by step, besides the passes and the optimiser: on moving weights
    there and back.
    """

    def __init__(self, update: Update, device: str) -> None:
        self.update, self.device, self.seconds, self.elsewhere = update, device, list[float](), 0.0
        if update.section.name != "plain":
            update.descend = self.apart(update.descend)  # type: ignore[method-assign]

    def step(self, gradients: Gradients, number: int) -> LossTerms:
        """The rule's own step."""
        self.elsewhere, began = 0.0, now(self.device)
        terms = self.update.step(self.apart(gradients), number)
        self.seconds.append(now(self.device) - began - self.elsewhere)
        return terms

    def apart(self, work: Any) -> Any:
        """The same function, its time counted as spent elsewhere."""

        def timed(*values: Any, **named: Any) -> Any:
            began = now(self.device)
            result = work(*values, **named)
            self.elsewhere += now(self.device) - began
            return result

        return timed


class Bare(Trainer):
    """The loop alone: nothing is validated or saved, and no student goes back to its start."""

    def _validate(self) -> dict[str, float]:
        return {}

    def _checkpoint(self) -> None:
        """Nothing."""


class Timed(Bare):
    """The loop with a clock around every step."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        self.seconds: list[float] = []
        self.update = self.watch = Stopwatch(self.update, self.device.type)  # type: ignore[assignment]

    def _step(self, batches: Batches, index: int) -> dict[str, float]:
        began = now(self.device.type)
        norms = super()._step(batches, index)
        self.seconds.append(now(self.device.type) - began)
        return norms


def now(device: str) -> float:
    """The time, when the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def megabytes_of(device: str) -> Any:
    """What tells the memory in use: torch's own on CUDA, else the process's."""
    return (lambda: torch.cuda.memory_allocated() / 2**20) if device == "cuda" else own_megabytes


def settled_megabytes(device: str) -> float:
    """Memory in use when everything that can be freed is handed back."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)
    used: float = megabytes_of(device)()
    return used


def machine() -> str:
    """Where figures were taken, in words."""
    gpu = f"{torch.cuda.get_device_name()}, " if torch.cuda.is_available() else ""
    threads, instructions = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    return f"{gpu}{threads} threads, {instructions}, torch {torch.__version__}"
