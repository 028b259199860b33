"""MiniLM: attention between the tokens of a text, as distributions by head; one value per text."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.outputs import Projections
from distilvec.losses.tokens import from_first_token, token_mean

Heads = Float[Tensor, "batch heads tokens dim"]
Scores = Float[Tensor, "batch heads tokens tokens"]
Mask = Bool[Tensor, "batch tokens"]
PARTS = {"attention": ("query", "key"), "query": ("query", "query"), "key": ("key", "key"), "value": ("value", "value")}


def left_align(projections: Projections, mask: Mask, shared: int) -> Projections:
    """Move each text's first token to position 0; keep `shared` positions, 0 at padding.

    Keys and values that several heads share (grouped queries) are repeated to the query's heads.
    """
    query = from_first_token(projections.query, mask, shared)
    key = from_first_token(projections.key, mask, shared)
    value = from_first_token(projections.value, mask, shared)
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key = key.repeat_interleave(repeats, 1)
        value = value.repeat_interleave(repeats, 1)
    return Projections(query, key, value)


def relation_heads(x: Heads, heads: int) -> Float[Tensor, "batch relations tokens piece"]:
    """Return the heads' vectors, joined and split into `heads` relation heads (MiniLM v2, section 3.1)."""
    return x.transpose(1, 2).reshape(len(x), x.shape[2], heads, -1).transpose(1, 2)


def relation_scores(first: Heads, second: Heads) -> Scores:
    """Return first second' / sqrt(dim), by head: row i holds the scores of token i."""
    return (first / first.shape[-1] ** 0.5) @ second.mT


def relation_divergence(
    student: Scores, teacher: Float[Tensor, "batch heads tokens tokens"], mask: Mask
) -> Float[Tensor, " batch"]:
    """Return KL(softmax(teacher) || softmax(student)), averaged over heads and tokens (REDACT, eq. 5 and 7)."""
    log_student = _log_softmax(student, mask)
    log_teacher = _log_softmax(teacher, mask)
    divergence = (log_teacher.exp() * (log_teacher - log_student)).sum(-1)
    return token_mean(divergence.mean(1), mask)


def relation_term(
    name: str, student: Projections, teacher: Projections, mask: Mask, heads: int | None = None
) -> Float[Tensor, " batch"]:
    """Return the divergence of one relation of PARTS, by the models' own heads or by `heads` relation heads.

    Note: REDACT's eq. 6 has softmax(K Q'), with keys as rows; an attention map is softmax(Q K'), as here.
    """

    def scores(projections: Projections) -> Tensor:
        first, second = (getattr(projections, part) for part in PARTS[name])
        if heads is not None:
            first = relation_heads(first, heads)
            second = relation_heads(second, heads)
        return relation_scores(first, second)

    return relation_divergence(scores(student), scores(teacher), mask)


def _log_softmax(scores: Scores, mask: Mask) -> Tensor:
    """Return log softmax over the tokens; the lowest number at padding, so that no product and no gradient is NaN."""
    padding = torch.zeros((), dtype=scores.dtype, device=mask.device).where(mask, torch.finfo(scores.dtype).min)
    return (scores + padding[:, None, None]).log_softmax(-1)
