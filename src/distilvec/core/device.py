"""The device to compute on, its number formats, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os

import torch
from torch import Tensor

from distilvec.core.errors import DistilvecError
from distilvec.core.log import log


def pick_device(name: str) -> str:
    """'auto' becomes cuda, mps or cpu, whichever is there first; a named one must be there.

    Errors: DistilvecError for a GPU asked for where torch finds none.
    """
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if has_mps else "cpu"
    is_missing = name.startswith("cuda") and not torch.cuda.is_available()
    if is_missing or (name == "mps" and not has_mps):
        problem = f"is {name}, but torch finds no GPU of this kind."
        raise DistilvecError(problem, "Use auto or cpu, or another build of torch.", key="train.device")
    return name


def fast_bf16(device: str) -> bool:
    """Return whether the hardware multiplies bf16 matrices faster than fp32 ones."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return device == "cpu" and any(check is not None and check() for check in checks)


def warn_slow_bf16(device: str, instead: str) -> None:
    """Log a warning if bf16 is asked for and the hardware has to emulate it; `instead` is the setting to take."""
    if device in ("cpu", "cuda") and not fast_bf16(device):
        log(f"this {device} emulates bf16, which is many times slower than fp32. Set {instead}.")


def keep_memory() -> None:
    """Make glibc keep freed memory for the next step instead of returning it to the system; elsewhere nothing.

    Otherwise tensors above 32 MB (gradients of embeddings) are mapped again in each step and cleared page by page.
    """
    _set_allocator(mmap_threshold=1 << 30, trim_threshold=2**31 - 1)


def return_memory() -> None:
    """Make glibc return freed memory to the system: for a process that runs for weeks.

    Call before the first operation of torch. Every batch of a server has another shape: by default its blocks leave
    holes in the heap.
    """
    keep_few_kernels()
    _set_allocator(mmap_threshold=200_000, trim_threshold=200_000, arenas=1)


def release_memory() -> None:
    """Make glibc hand unused memory back to the system, also after `keep_memory`; elsewhere nothing.

    Call between the parts of a long command. Blocks of many sizes leave holes that glibc keeps.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_few_kernels() -> None:
    """Make torch (LRU_CACHE_CAPACITY) and oneDNN keep 32 CPU kernels, unless the environment has other limits.

    By default they keep 1,024, one for each layer's and batch's shape, each with a buffer that grows with the batch.
    Call before the first operation of torch, which reads the limits once.
    """
    for limit in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(limit, "32")


def _set_allocator(mmap_threshold: int, trim_threshold: int, arenas: int | None = None) -> None:
    settings = {-3: mmap_threshold, -1: trim_threshold, -8: arenas}  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for name, value in settings.items():
            if value is not None:
                library.mallopt(name, value)


def full_precision(values: Tensor) -> Tensor:
    """Return the values in fp32, or in float64 if given; the same tensor if nothing changes."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
