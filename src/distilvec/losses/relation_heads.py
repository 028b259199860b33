"""MiniLM: how the tokens of a text attend to each other, as distributions by head; one value per text."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.outputs import Projections
from distilvec.losses.padding import from_first_token, token_mean

Heads = Float[Tensor, "batch heads tokens width"]
PARTS = {"attention": ("query", "key"), "query": ("query", "query"), "key": ("key", "key"), "value": ("value", "value")}


def laid_out(projections: Projections, mask: Bool[Tensor, "batch tokens"], shared: int) -> Projections:
    """Queries, keys and values from each text's first token on, 0 at padding; keys and values repeated to the query's heads."""
    repeats = projections.query.shape[1] // projections.key.shape[1]
    query, key, value = (
        from_first_token(x, mask, shared) for x in (projections.query, projections.key, projections.value)
    )
    if repeats > 1:
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    return Projections(query, key, value)


def split_anew(
    x: Float[Tensor, "batch heads tokens width"], heads: int
) -> Float[Tensor, "batch relations tokens piece"]:
    """The heads' vectors joined and cut into `heads` relation heads (MiniLM v2, section 3.1); their joint width is a multiple of it."""
    return x.transpose(1, 2).reshape(len(x), x.shape[2], heads, -1).transpose(1, 2)


def relation_scores(first: Heads, second: Heads) -> Float[Tensor, "batch heads tokens tokens"]:
    """first second' / sqrt(width), by head: row i holds the scores of token i."""
    return (first / first.shape[-1] ** 0.5) @ second.mT


def relation_divergence(
    student: Float[Tensor, "batch heads tokens tokens"],
    teacher: Float[Tensor, "batch heads tokens tokens"],
    mask: Bool[Tensor, "batch tokens"],
) -> Float[Tensor, " batch"]:
    """KL(softmax(teacher) || softmax(student)) of scores by row, averaged over heads and tokens (REDACT, eq. 5 and 7).

    Padded columns have no part in the softmax and padded rows count for nothing.
    """
    ours, theirs = _log_softmax(student, mask), _log_softmax(teacher, mask)
    return token_mean((theirs.exp() * (theirs - ours)).sum(-1).mean(1), mask)


def relation_term(
    name: str, student: Projections, teacher: Projections, mask: Bool[Tensor, "batch tokens"], heads: int | None = None
) -> Float[Tensor, " batch"]:
    """The divergence of one relation of PARTS, over the models' own heads or over `heads` relation heads; both laid out alike.

    Note: REDACT's eq. 6 writes softmax(K Q'), whose rows would be keys; an attention map is softmax(Q K'), as here.
    """

    def scores(projections: Projections) -> Tensor:
        first, second = (getattr(projections, part) for part in PARTS[name])
        return (
            relation_scores(first, second)
            if heads is None
            else relation_scores(split_anew(first, heads), split_anew(second, heads))
        )

    return relation_divergence(scores(student), scores(teacher), mask)


def _log_softmax(scores: Float[Tensor, "batch heads tokens tokens"], mask: Bool[Tensor, "batch tokens"]) -> Tensor:
    """log softmax over the tokens; finite at padding (the lowest number), so that 0 times it is 0 and no gradient is NaN."""
    padding = torch.zeros((), dtype=scores.dtype, device=mask.device).where(mask, torch.finfo(scores.dtype).min)
    return (scores + padding[:, None, None]).log_softmax(-1)
