"""Loss on a task's labels."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def task_loss(
    logits: Float[Tensor, "examples classes"], labels: Int[Tensor, " examples"] | Float[Tensor, " examples"]
) -> Float[Tensor, " examples"]:
    """Return the cross-entropy of class logits, or the squared error of scores (float labels, from 0 to 1)."""
    if labels.is_floating_point():
        return (logits[:, 0] - labels).square()
    return F.cross_entropy(logits, labels, reduction="none")
