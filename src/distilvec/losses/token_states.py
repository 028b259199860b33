"""States of single tokens, padded and masked: their mean, pairs of an alignment, distances of directions, attention across models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def mean_state(
    states: Float[Tensor, "batch tokens width"], mask: Bool[Tensor, "batch tokens"]
) -> Float[Tensor, "batch width"]:
    """The mean state of a text's tokens."""
    return states.where(mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def pair_states(
    student: Float[Tensor, "batch tokens width"],
    teacher: Float[Tensor, "batch others inner"],
    pairs: Int[Tensor, "batch pairs 2"],
) -> tuple[Float[Tensor, "batch pairs width"], Float[Tensor, "batch pairs inner"], Bool[Tensor, "batch pairs"]]:
    """The states at the pairs' positions, and which pairs there are (-1 fills up)."""
    mask, places = pairs[..., 0] >= 0, pairs.clamp_min(0)
    ours, theirs = (
        states.gather(1, places[..., side, None].expand(-1, -1, states.shape[-1]))
        for side, states in enumerate((student, teacher))
    )
    return ours, theirs, mask


def unit_squares(x: Float[Tensor, "*batch width"], y: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch"]:
    """||x/|x| - y/|y|||^2 = 2 - 2 cos(x, y), in [0, 4]; the mean squared error of the unit vectors times the width."""
    return (F.normalize(x, dim=-1) - F.normalize(y, dim=-1)).square().sum(-1)


def cross_attention(
    queries: Float[Tensor, "batch rows inner"],
    keys: Float[Tensor, "batch tokens inner"],
    values: Float[Tensor, "batch tokens width"],
    mask: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, "batch rows width"]:
    """softmax(Q K' / sqrt(inner)) V, one text's rows over the tokens of the same text in the other model; padding gets no weight."""
    scores = (queries @ keys.mT) * queries.shape[-1] ** -0.5
    return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ values
