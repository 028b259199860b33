"""The examples of a micro-batch that one of several processes encodes, and the outputs of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, change_tensors
from distilvec.core.processes import gather_rows, rank, world_size


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

    def moved(self, move: Callable[[TextBatch], TextBatch]) -> Share:
        """Return the share with its batches moved."""
        own = move(self.own)
        return replace(self, whole=own if self.whole is self.own else move(self.whole), own=own)

    def gather(self, student: ModelOutputs, teacher: ModelOutputs) -> tuple[ModelOutputs, ModelOutputs]:
        """Return both models' outputs for the whole micro-batch, from those for `own` in each process.

        Random numbers drawn after this are equal in all processes.
        """
        if world_size() == 1:
            return student, teacher
        torch.manual_seed(self.seed)
        own: list[tuple[Tensor, int]] = []

        def take(value: Tensor, fill: int) -> Tensor:
            own.append((value, fill))
            return value

        change_tensors((student, teacher), take)
        texts = self.whole.texts_per_example
        several = [texts if len(value) == len(self.own) else 1 for value, _ in own]  # logits are one per example
        kept = [value[: self.counted * each] for (value, _), each in zip(own, several, strict=True)]
        gathered = gather_rows(kept, [fill for _, fill in own])
        found = iter(
            value if each == 1 else value[self._order()] for value, each in zip(gathered, several, strict=True)
        )
        whole: tuple[ModelOutputs, ModelOutputs] = change_tensors((student, teacher), lambda value, fill: next(found))
        return whole

    def _order(self) -> Tensor:
        """Positions of the whole batch's rows among the gathered ones, where examples have several texts."""
        bounds = share_bounds(self.whole.examples)
        rows = [self.whole.rows_of(first, end) for first, end in pairwise(bounds)]
        return torch.cat(rows).argsort()


def share_of(whole: TextBatch) -> Share:
    """Return this process's share of a micro-batch: consecutive examples, as many as the others' but for one."""
    if world_size() == 1:
        return Share(whole, whole, whole.examples)
    first, end = share_bounds(whole.examples)[rank() : rank() + 2]
    return Share(whole, whole.part(first, end) if end > first else whole.part(0, 1), end - first)


def share_bounds(examples: int) -> list[int]:
    """Return the first example of each process, and the end of the last one's."""
    return [examples * each // world_size() for each in range(world_size() + 1)]
