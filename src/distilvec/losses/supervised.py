"""Loss on a task's labels."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from distilvec.core.batch import NO_LABEL, Labels, is_missing


def task_loss(
    logits: Float[Tensor, "examples classes"],
    labels: Labels,
    score_range: float = 1.0,
) -> Float[Tensor, " examples"]:
    """Return the cross-entropy of class logits, or the squared error of scores (float labels, from 0 to 1).

    Where a text has several classes (labels in two dimensions) it is the mean of one binary cross-entropy per class.
    The error is that of the task's own scale, whose greatest and least score differ by `score_range` (of STS-B by 5):
    EMO's and DistillMoE's squared error is that of 0 to 5, so that the task keeps its weight against other terms. An
    example without a label gets 0 and the others a share more, so that the mean is that of the labeled ones.
    """
    missing = is_missing(labels)
    if labels.ndim == 2:
        targets = labels.where(~missing[:, None], 0.0).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1) * ~missing
    elif labels.is_floating_point():
        # The prediction itself stands in for a missing score (NaN), so that its error is 0
        targets = labels.where(~missing, logits[:, 0].detach().to(labels.dtype))
        losses = score_range**2 * (logits[:, 0] - targets).square()
    else:
        losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=NO_LABEL)
    return losses * (len(labels) / (~missing).sum().clamp(min=1))
