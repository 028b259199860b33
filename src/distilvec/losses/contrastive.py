"""Contrastive losses over the texts of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def info_nce(
    anchors: Float[Tensor, "batch dim"],
    positives: Float[Tensor, "batch dim"],
    temperature: float | Float[Tensor, ""],
    negatives: Float[Tensor, "more dim"] | None = None,
    counted: Bool[Tensor, " more"] | None = None,
) -> Float[Tensor, " batch"]:
    """Return -log softmax(cos(anchor_i, .) / temperature) at positive i (SimCSE, eq. 1; TALAS, eq. 6).

    The softmax is over all positives and `negatives`; `counted` selects among the negatives.
    """
    candidates = positives if negatives is None else torch.cat([positives, negatives])
    similarities = F.normalize(anchors, dim=-1) @ F.normalize(candidates, dim=-1).T / temperature
    if counted is not None:
        is_candidate = F.pad(counted, (len(positives), 0), value=True)
        similarities = similarities.where(is_candidate, -torch.inf)
    own_positive = torch.arange(len(anchors), device=anchors.device)
    return F.cross_entropy(similarities, own_positive, reduction="none")
