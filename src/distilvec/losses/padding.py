"""Token by token: signals of a student and a teacher with one tokenizer, brought to the same positions."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def shared_mask(
    student: Bool[Tensor, "batch tokens"], teacher: Bool[Tensor, "batch others"]
) -> Bool[Tensor, "batch shared"]:
    """True at the positions, counted from a text's first token, that both have; shared is the smaller number of columns.

    They differ in number only where one of the two truncates earlier: its tokens are then the ones that count.
    """
    counts = torch.minimum(student.sum(1), teacher.sum(1))
    shared = min(student.shape[1], teacher.shape[1])
    return torch.arange(shared, device=student.device) < counts[:, None]


def from_first_token(
    values: Float[Tensor, "batch *between tokens width"], mask: Bool[Tensor, "batch tokens"], shared: int
) -> Float[Tensor, "batch *between shared width"]:
    """Each text's tokens from position 0 on, on whatever side they were padded, the first `shared` of them; 0 at padding.

    In float32, or float64 where they are.
    """
    order = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :shared]
    found = mask.gather(1, order)
    texts, columns = mask.shape
    rows = (order + columns * torch.arange(texts, device=mask.device)[:, None]).flatten()
    by_token = values.transpose(1, -2)  # whole tokens are copied; one index for each number would be ten times slower
    tokens = by_token.flatten(0, 1).index_select(0, rows).view(texts, shared, *by_token.shape[2:]).transpose(1, -2)
    tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    return tokens.where(found.view(texts, *(1 for _ in values.shape[1:-2]), shared, 1), 0.0)


def token_mean(values: Float[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, " batch"]:
    """The mean over a text's tokens; 0 for a text without any. `values` must be finite at padding."""
    return (values * mask).sum(1) / mask.sum(1).clamp_min(1)
