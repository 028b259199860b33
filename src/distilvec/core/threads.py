"""Independent work on several threads, each of which computes alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

MOST_WORKERS = 16  # each needs memory for a batch
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_on_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> Generator[Result, None, None]:
    """Results of `work`, in the order of the items; torch's threads are shared out among items.

    Two batches of 1,000 tokens on a thread each take less time than one after the other on two threads: no operation
    waits for its slower half. With one thread, or fewer than two items for each, they run here, one after another.
    `work` must not change anything that it shares, and needs its own `torch.no_grad()`, which counts for one thread.
    Closed early, it waits for the items that are being worked on.
    """
    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS)
    if workers == 1 or len(items) < 2 * workers:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(workers, "distilvec", initializer=torch.set_num_threads, initargs=(threads // workers,))
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # else threads that begin later get the workers' number
