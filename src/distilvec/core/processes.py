"""Processes that train one student together: rows gathered with their gradients, gradients averaged, decisions shared.

Each process encodes its own examples of a micro-batch, gathers the outputs of all, and computes the loss of the whole
micro-batch. This loss is equal in all processes, so the mean of their gradients is the gradient of one process:

- The gradient of gathered rows returns to their own process, times the number of processes, without communication.
- The gradients of an objective's parameters are equal in all processes.

Alone, every function returns its argument and communicates with nobody.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import PartialState
from accelerate.state import AcceleratorState
from torch import Tensor, nn

from distilvec.core.device import pick_device
from distilvec.core.errors import DistilvecError, ProcessLost, first_line

LONGEST_WAIT = timedelta(days=30)  # one process fills a teacher's cache, and the others wait
_BUCKET = 1 << 24  # numbers averaged at once
_DIMENSIONS = 8  # at most, of a gathered tensor


def join_processes(device: str) -> None:
    """Join the processes of this run. WORLD_SIZE and RANK in the environment say how many there are, and which is this.

    `torchrun`, `accelerate launch` and `distilvec run --processes` set them. In a single process the state that an
    earlier run left in accelerate is reset. Errors: DistilvecError for a device that several processes cannot use.
    """
    name = pick_device(device)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several and name == "mps":
        raise DistilvecError(
            "mps serves one process.", "Set train.device=cpu, or start one process.", key="train.device"
        )
    if several and name == "cuda":
        processes_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        gpus = torch.cuda.device_count()
        if processes_here > gpus:
            raise DistilvecError(
                f"{processes_here} on a machine with {gpus} GPUs.",
                "Start at most one process per GPU.",
                key="processes",
            )
    with exchange():
        alone = PartialState(cpu=name == "cpu", timeout=LONGEST_WAIT).num_processes == 1
    AcceleratorState._reset_state(reset_partial_state=alone)
    PartialState(cpu=name == "cpu")
    if several:
        _messages()  # must be created by all processes at the same point, or they wait for each other forever
        with suppress(OSError, AttributeError):  # stop after the step if the launcher is killed (Linux)
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def close() -> None:
    """Close gloo's connections before Python exits.

    A thread of gloo may hold the tensors of its last exchange. If it frees them while Python is being torn down, the
    process aborts (SIGABRT; pull request 179291 of PyTorch).
    """
    if dist.is_initialized():
        dist.destroy_process_group(_messages())


def exit_process(status: int) -> None:
    """Exit one of several processes without Python's teardown; a single process just returns.

    A C++ thread that still runs during the teardown aborts the process ("terminate called without an active
    exception"), and its exit status would be lost.
    """
    if world_size() > 1:
        with suppress(Exception):  # another process may have closed the connections
            close()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Return whether this process writes files and reports: the first one."""
    return rank() == 0


@contextmanager
def main_first() -> Iterator[None]:
    """Run the block in the main process, then in the others, which find its files. Errors: ProcessLost."""
    if not is_main():
        wait()
    yield
    if is_main():
        wait()


def wait() -> None:
    """Wait until all processes are here. Errors: ProcessLost."""
    max_over_ranks(0)


def max_over_ranks(value: int) -> int:
    """Return the largest of the processes' values. Errors: ProcessLost."""
    if world_size() == 1:
        return value
    largest = torch.tensor(value)
    with exchange():
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=_messages())
    return int(largest)


def total(values: Tensor) -> Tensor:
    """Return the sum of the processes' values. Errors: ProcessLost."""
    if world_size() > 1:
        with exchange():
            dist.all_reduce(values)
    return values


def is_sharded(value: Tensor) -> bool:
    """Return whether this process holds a part of the tensor only (train/sharding.py)."""
    return hasattr(value, "to_local")  # DTensor, whose import takes a second


def broadcast(module: nn.Module) -> None:
    """Give parameters and buffers the values of the main process; sharded ones stay. Errors: ProcessLost."""
    if world_size() > 1:
        values = (value for value in (*module.parameters(), *module.buffers()) if not is_sharded(value))
        with exchange(), torch.no_grad():
            for value in values:
                raw = value.detach().contiguous()
                dist.broadcast(raw.view(-1).view(torch.uint8), 0)
                value.copy_(raw)


def gather_rows(values: Sequence[Tensor], fills: Sequence[int]) -> list[Tensor]:
    """Return each tensor with the rows of all processes, the first process's rows first.

    Each process gets the gradient of its own rows, times the number of processes. A process may have any number of
    rows, also 0. Other dimensions are padded at their ends with `fills` where their sizes differ. Errors: ProcessLost.
    """
    if world_size() == 1 or not values:
        return list(values)
    # all_gather needs tensors of equal shape: exchange the shapes first, pad to the largest, cut the rows again
    shapes_here = torch.full((len(values), _DIMENSIONS), 0)
    for row, value in zip(shapes_here, values, strict=True):
        row[: value.ndim] = torch.tensor(value.shape)
    shapes = [torch.empty_like(shapes_here) for _ in range(world_size())]
    with exchange():
        dist.all_gather(shapes, shapes_here, group=_messages())
    largest = torch.stack(shapes).amax(0)

    gathered = []
    for index, (value, fill) in enumerate(zip(values, fills, strict=True)):
        missing = (largest[index, : value.ndim] - shapes_here[index, : value.ndim]).tolist()
        padding = [end for size in reversed(missing) for end in (0, size)]  # F.pad begins with the last dimension
        stacked: Tensor = _Gather.apply(F.pad(value, padding, value=fill))  # type: ignore[no-untyped-call]
        parts = [part[: int(shape[index, 0])] for part, shape in zip(stacked, shapes, strict=True)]
        gathered.append(torch.cat(parts))
    return gathered


class _Gather(torch.autograd.Function):
    """A tensor of equal shape in all processes, stacked."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        raw = value.contiguous().view(-1).view(torch.uint8)
        parts = [torch.empty_like(raw) for _ in range(world_size())]
        with exchange():
            dist.all_gather(parts, raw)
        return torch.stack([part.view(value.dtype).view(value.shape) for part in parts])

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0][rank()] * world_size()


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace gradients by their mean over the processes. Errors: ProcessLost.

    A gradient that this process lacks counts as 0; one that all lack stays None. Sharded parameters are left out:
    FSDP has averaged their gradients already.
    """
    if world_size() == 1:
        return
    whole = [parameter for parameter in parameters if not is_sharded(parameter)]
    used = torch.tensor([parameter.grad is not None for parameter in whole], dtype=torch.uint8)
    with exchange():
        dist.all_reduce(used, dist.ReduceOp.MAX, group=_messages())
    for bucket in _buckets([parameter for parameter, use in zip(whole, used.tolist(), strict=True) if use]):
        gradients = []
        for parameter in bucket:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(gradient.flatten())
        sums = total(torch.cat(gradients))
        parts = torch.split(sums / world_size(), [parameter.numel() for parameter in bucket])
        for parameter, part in zip(bucket, parts, strict=True):
            parameter.grad = part.view_as(parameter)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters of one type in groups of about `_BUCKET` numbers."""
    bucket: list[nn.Parameter] = []
    for parameter in sorted(parameters, key=lambda each: str(each.dtype)):  # stable: the same order everywhere
        if bucket and (sum(p.numel() for p in bucket) > _BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket


@cache
def _messages() -> Any:
    """Return a gloo group for small messages in the CPU's memory, which need not wait for the GPU."""
    atexit.register(close)
    return dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo", timeout=LONGEST_WAIT)


@contextmanager
def exchange(only: bool = True) -> Iterator[None]:
    """Turn connection errors inside the block into ProcessLost.

    `only`: the block does nothing but communicate, so every RuntimeError is a lost connection. Otherwise only errors of
    torch.distributed and gloo are.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if not (only or isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise ProcessLost(
            f"another process of this run ended, or cannot be reached ({first_line(error)}). Its own error is above "
            "or below.",
            "Run the same command again to go on from the last checkpoint.",
            key="process",
        ) from error
