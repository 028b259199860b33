"""Batches of the next steps, assembled in a background thread, so that no step waits for tokens or the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch

from distilvec.core.outputs import ModelOutputs
from distilvec.data.sampler import Rows
from distilvec.teachers.cached import Finish, read_ahead
from distilvec.train.dataset import TrainingRows
from distilvec.train.shares import Share, share_of

AHEAD = 2  # steps, in addition to the one that runs
T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch in the CPU's memory, with what was read of the teacher's outputs for this process's share of it."""

    share: Share
    finish: Finish

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self.share.whole.examples

    def to(self, device: torch.device) -> tuple[Share, ModelOutputs]:
        """Return the share and the teacher's outputs for it on `device`."""
        share = self.share.to(device)
        return share, self.finish(share.own)


def load(data: TrainingRows, numbers: Rows, device: torch.device) -> MicroBatch:
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
