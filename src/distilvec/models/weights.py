"""Weights of a model in memory: their number, and the file that they lie in while they wait."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from distilvec.core.log import log

ALIGNMENT = 64  # bytes


def count_parameters(weights: Iterable[Tensor]) -> int:
    """Number of parameters; of 4-bit weights, which are stored two in a byte, their own number."""
    count = 0
    for weight in weights:
        state = getattr(weight, "quant_state", None)
        count += math.prod(getattr(state, "shape", weight.shape))
    return count


def own_weights(model: nn.Module) -> None:
    """Copy a model's weights on the CPU out of their file.

    The libraries map it into memory: where it is written over while the model is in use, vectors are those of other
    bytes, and a file that becomes shorter ends the process.
    """
    for values in chain(model.parameters(), model.buffers()):
        if values.device.type == "cpu":
            values.data = values.data.clone()


def map_weights(model: nn.Module, folder: Path) -> None:
    """Move a model's weights into a file without a name in `folder`, mapped into memory.

    For a model that waits while others are used: the system may take the memory of weights that nobody reads. Reading
    brings them back, and the file goes with the model. Weights on another device stay there, and so do all weights
    where the disk has no room.
    """
    weights = list(model.parameters())
    if not any(weight.numel() for weight in weights) or any(weight.device.type != "cpu" for weight in weights):
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            places = []
            for weight in weights:
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                places.append(file.tell())
                file.write(weight.detach().contiguous().flatten().view(torch.uint8).numpy().data)
            file.flush()
            # Copy on write: the file is never changed, and the map outlives it
            content = torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="c"))
    except OSError as error:
        log(f"the untrained student's weights stay in memory, {folder} has no room for them ({error.strerror})")
        return
    for weight, place in zip(weights, places, strict=True):
        size = weight.numel() * weight.element_size()
        weight.data = content[place : place + size].view(weight.dtype).view(weight.shape)


def load_mapped(model: nn.Module) -> None:
    """Bring the weights of a mapped model back into ordinary memory, for training."""
    for weight in model.parameters():
        weight.data = weight.data.clone()
