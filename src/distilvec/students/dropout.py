"""Dropout whose masks are cheap to draw on a processor.

torch draws one Bernoulli number an element, which is half of a small encoder's forward pass on a CPU. Here one 64-bit
word of NumPy's SFC64 decides four elements (16 bits each). Each mask is seeded by one number of torch's own generator,
so seeds, checkpoints and exact resume work as with torch's dropout. The rate is met to 1/65536. On other devices and in
compiled code torch's kernel is used.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Zero each element with probability `rate` and divide the others by 1 - rate; any shape."""
    if not training or rate == 0.0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # compiled, NumPy would break the graph in every layer
        return F.dropout(x, rate, training)
    return x * keep_scale(x, rate)


def keep_scale(x: Tensor, rate: float) -> Tensor:
    """A constant of x's shape and dtype: 0 with probability `rate`, else 1 / (1 - rate)."""
    dropped = round(rate * LEVELS)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    words: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.random.SFC64(seed).random_raw((x.numel() + 3) // 4)
    numbers = words.view(np.uint16)[: x.numel()]
    is_kept = torch.from_numpy((numbers >= dropped).view(np.uint8))  # uint8, as torch casts bool slowly
    return is_kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped)).view(x.shape)


class FastDropout(nn.Dropout):
    """`nn.Dropout` with the cheap masks; holds no state, so nothing changes in what is saved."""

    def forward(self, input: Tensor) -> Tensor:
        """The input with elements dropped while training."""
        return dropout(input, self.p, self.training)


def install_fast_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` below `model` in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p).train(child.training))
