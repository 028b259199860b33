"""The precision that sums, products of rows and losses are computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def full_precision(values: Tensor) -> Tensor:
    """Return the values in fp32, or in float64 if given; the same tensor if nothing changes."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
