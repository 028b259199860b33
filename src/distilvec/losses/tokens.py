"""States of single tokens: positions that two models share, aligned pairs, means, attention across models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from distilvec.core.device import full_precision

Mask = Bool[Tensor, "batch tokens"]
# A logit without weight, or the logarithm of 0. Finite: -inf minus -inf would be NaN.
NO_WEIGHT = -1e9


def shared_mask(student: Mask, teacher: Bool[Tensor, "batch others"]) -> Bool[Tensor, "batch shared"]:
    """Return a mask of the positions, counted from a text's first token, that both models have.

    The numbers of tokens differ only if one of the two models truncates earlier.
    """
    counts = torch.minimum(student.sum(1), teacher.sum(1))
    shared = min(student.shape[1], teacher.shape[1])
    return torch.arange(shared, device=student.device) < counts[:, None]


def from_first_token(
    values: Float[Tensor, "batch *between tokens dim"], mask: Mask, shared: int
) -> Float[Tensor, "batch *between shared dim"]:
    """Return each text's first `shared` tokens from position 0 on, in fp32 at least; 0 at padding."""
    texts, columns = mask.shape
    order = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :shared]  # tokens first, then padding
    is_token = mask.gather(1, order)
    rows = (order + columns * torch.arange(texts, device=mask.device)[:, None]).flatten()

    # index_select copies whole tokens; gather, with one index for each number, is much slower
    by_token = values.transpose(1, -2)
    tokens = by_token.flatten(0, 1).index_select(0, rows).view(texts, shared, *by_token.shape[2:]).transpose(1, -2)

    between = [1] * (values.ndim - 3)  # such as heads
    return full_precision(tokens).where(is_token.view(texts, *between, shared, 1), 0.0)


def token_mean(values: Float[Tensor, "batch tokens"], mask: Mask) -> Float[Tensor, " batch"]:
    """Return the mean over a text's tokens; 0 for a text without any. `values` must be finite at padding."""
    return (values * mask).sum(1) / mask.sum(1).clamp_min(1)


def mean_state(states: Float[Tensor, "batch tokens dim"], mask: Mask) -> Float[Tensor, "batch dim"]:
    """Return the mean state of a text's tokens."""
    return states.where(mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)


def pair_states(
    student: Float[Tensor, "batch tokens dim"],
    teacher: Float[Tensor, "batch others other_dim"],
    pairs: Int[Tensor, "batch pairs 2"],
) -> tuple[Float[Tensor, "batch pairs dim"], Float[Tensor, "batch pairs other_dim"], Bool[Tensor, "batch pairs"]]:
    """Return the states at the pairs' positions, and a mask of the pairs (-1 fills up)."""
    student_positions, teacher_positions = pairs.clamp_min(0).unbind(-1)
    return _states_at(student, student_positions), _states_at(teacher, teacher_positions), pairs[..., 0] >= 0


def _states_at(states: Float[Tensor, "batch tokens dim"], positions: Int[Tensor, "batch pairs"]) -> Tensor:
    return states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))


def unit_squares(x: Float[Tensor, "*batch dim"], y: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
    """Return ||x/|x| - y/|y|||^2 = 2 - 2 cos(x, y), in [0, 4]."""
    return (F.normalize(x, dim=-1) - F.normalize(y, dim=-1)).square().sum(-1)


def cross_attention(
    queries: Float[Tensor, "batch rows inner"],
    keys: Float[Tensor, "batch tokens inner"],
    values: Float[Tensor, "batch tokens dim"],
    mask: Mask,
) -> Float[Tensor, "batch rows dim"]:
    """Return softmax(Q K' / sqrt(inner)) V, one model's rows over the other model's tokens; padding gets no weight."""
    scores = (queries @ keys.mT) * queries.shape[-1] ** -0.5
    return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ values
