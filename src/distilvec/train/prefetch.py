"""Batches of the next steps, assembled in a background thread, so that no step waits for tokens or the cache.

Several processes share a micro-batch: each encodes some of its examples, and gets the outputs of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TypeVar

import torch
from torch import Tensor

from distilvec.core import processes
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, change_tensors
from distilvec.data.sampler import Rows
from distilvec.teachers.cached import Finish, read_ahead
from distilvec.train.dataset import TrainingRows

AHEAD = 2  # steps, in addition to the one that runs
T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch in the CPU's memory, with what was read of the teacher's outputs for this process's share of it."""

    share: ProcessShare
    finish: Finish

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self.share.whole.examples

    def to(self, device: torch.device) -> tuple[ProcessShare, ModelOutputs]:
        """Return the share and the teacher's outputs for it on `device`."""
        share = self.share.to(device)
        return share, self.finish(share.own)


def load_micro_batch(data: TrainingRows, numbers: Rows, device: torch.device) -> MicroBatch:
    """Return the micro-batch of these examples, in pinned memory if the device is a GPU."""
    share = share_of(data.batch(numbers))
    if device.type == "cuda":
        share = share.pin_memory()
    return MicroBatch(share, read_ahead(data.teacher, share.own))


@contextmanager
def prefetched(make: Callable[[int], T], numbers: Sequence[int]) -> Iterator[Iterator[T]]:
    """Give make(n) of all numbers in their order, each made by one thread, at most AHEAD of them in advance.

    An error of `make` is raised where its result is taken. At the end, or on any error, the thread ends: what it makes
    at that moment is finished, nothing else is begun.
    """
    with ThreadPoolExecutor(1, "prefetch") as thread:
        waiting = deque(thread.submit(make, number) for number in numbers[:AHEAD])

        def results() -> Iterator[T]:
            remaining = iter(numbers[AHEAD:])
            while waiting:
                result = waiting.popleft()
                for number in islice(remaining, 1):  # one more, before this one is waited for
                    waiting.append(thread.submit(make, number))
                yield result.result()

        try:
            yield results()
        finally:
            thread.shutdown(cancel_futures=True)


# -- what each of several processes encodes of a micro-batch -----------------------------------------------------------


@dataclass(frozen=True)
class ProcessShare:
    """A micro-batch, and the part of it that this process encodes.

    `own` has one example at least, as a model cannot run on none; its first `counted` examples are this process's.
    Alone, `own` is the `whole`. `seed` is that of the loss's random numbers, equal in all processes.
    """

    whole: TextBatch
    own: TextBatch
    counted: int
    seed: int = 0

    def to(self, device: torch.device) -> ProcessShare:
        """Return the share with its batches on `device`."""
        own = self.own.to(device)
        return replace(self, own=own, whole=own if self.whole is self.own else self.whole.to(device))

    def pin_memory(self) -> ProcessShare:
        """Return the share with its batches in pinned memory."""
        own = self.own.pin_memory()
        return replace(self, own=own, whole=own if self.whole is self.own else self.whole.pin_memory())

    def gather(self, student: ModelOutputs, teacher: ModelOutputs) -> tuple[ModelOutputs, ModelOutputs]:
        """Return both models' outputs for the whole micro-batch, from those for `own` in each process.

        Random numbers drawn after this are equal in all processes.
        """
        if processes.world_size() == 1:
            return student, teacher
        torch.manual_seed(self.seed)
        tensors: list[Tensor] = []
        fills: list[int] = []

        def collect(value: Tensor, fill: int) -> Tensor:
            tensors.append(value)
            fills.append(fill)
            return value

        change_tensors((student, teacher), collect)
        rows_per_example = []
        counted = []
        for value in tensors:
            rows = self.whole.texts_per_example if len(value) == len(self.own) else 1  # logits are one per example
            rows_per_example.append(rows)
            counted.append(value[: self.counted * rows])

        gathered = processes.gather_rows(counted, fills)
        for number, rows in enumerate(rows_per_example):
            if rows > 1:
                gathered[number] = gathered[number][self._order()]
        remaining = iter(gathered)
        whole: tuple[ModelOutputs, ModelOutputs] = change_tensors(
            (student, teacher), lambda value, fill: next(remaining)
        )
        return whole

    def _order(self) -> Tensor:
        """Positions of the whole batch's rows among the gathered ones, where examples have several texts."""
        bounds = share_bounds(self.whole.examples)
        rows = [self.whole.rows_of(first, end) for first, end in pairwise(bounds)]
        return torch.cat(rows).argsort()


def share_of(whole: TextBatch) -> ProcessShare:
    """Return this process's share of a micro-batch: consecutive examples; the sizes of shares differ by at most one."""
    if processes.world_size() == 1:
        return ProcessShare(whole, whole, whole.examples)
    bounds = share_bounds(whole.examples)
    first = bounds[processes.rank()]
    end = bounds[processes.rank() + 1]
    own = whole.part(first, end) if end > first else whole.part(0, 1)
    return ProcessShare(whole, own, end - first)


def share_bounds(examples: int) -> list[int]:
    """Return the first example of each process, and the end of the last one's."""
    count = processes.world_size()
    return [examples * process // count for process in range(count + 1)]
