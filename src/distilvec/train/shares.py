"""The examples of a micro-batch that one of several processes encodes, and the outputs of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from distilvec.core import processes
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, change_tensors


@dataclass(frozen=True)
class Share:
    """A micro-batch, and the part of it that this process encodes.

    `own` has one example at least, as a model cannot run on none; its first `counted` examples are this process's.
    Alone, `own` is the `whole`. `seed` is that of the loss's random numbers, equal in all processes.
    """

    whole: TextBatch
    own: TextBatch
    counted: int
    seed: int = 0

    def to(self, device: torch.device) -> Share:
        """Return the share with its batches on `device`."""
        own = self.own.to(device)
        return replace(self, own=own, whole=own if self.whole is self.own else self.whole.to(device))

    def pin_memory(self) -> Share:
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


def share_of(whole: TextBatch) -> Share:
    """Return this process's share of a micro-batch: consecutive examples; the sizes of shares differ by at most one."""
    if processes.world_size() == 1:
        return Share(whole, whole, whole.examples)
    bounds = share_bounds(whole.examples)
    first = bounds[processes.rank()]
    end = bounds[processes.rank() + 1]
    own = whole.part(first, end) if end > first else whole.part(0, 1)
    return Share(whole, own, end - first)


def share_bounds(examples: int) -> list[int]:
    """Return the first example of each process, and the end of the last one's."""
    count = processes.world_size()
    return [examples * process // count for process in range(count + 1)]
