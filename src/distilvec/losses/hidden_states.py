"""Layers of a student and of its teacher, token by token: TinyBERT's and DistilBERT's terms. One value per text."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.losses.tokens import token_mean

States = Float[Tensor, "batch tokens dim"]
Scores = Float[Tensor, "batch heads tokens tokens"]
Mask = Bool[Tensor, "batch tokens"]
PerRow = Float[Tensor, " batch"]


def uniform_map(student_layers: int, teacher_layers: int) -> dict[int, int]:
    """Return g(l) = floor(L / L') l for the student's layers 0 to L' (TinyBERT, section 3.1; REDACT, B.2)."""
    step = teacher_layers // student_layers
    return {layer: step * layer for layer in range(student_layers + 1)}


def hidden_gap(student: States, teacher: States, mask: Mask) -> PerRow:
    """Return the mean squared difference over tokens and dimensions (REDACT, eq. 9, one layer); finite at padding."""
    return token_mean((student - teacher).square().mean(-1), mask)


def score_gap(student: Scores, teacher: Scores, mask: Mask) -> PerRow:
    """Return the mean squared difference of attention scores over heads and token pairs (REDACT, eq. 10, one layer).

    Note: TinyBERT counts padding as 0 in the mean; here it does not count, so that it changes no value.
    """
    is_pair = mask[:, :, None] & mask[:, None, :]
    gaps = (student - teacher).square().mean(1)
    return (gaps * is_pair).sum((1, 2)) / is_pair.sum((1, 2)).clamp_min(1)


def token_cosine_distance(student: States, teacher: States, mask: Mask) -> PerRow:
    """Return the mean of 1 - cos over a text's tokens: DistilBERT's cosine loss (REDACT, eq. 12, without the "1 -").

    Value and gradient are finite for zero vectors, too (1 then). Values at padding have no effect, not even on second
    derivatives.
    """
    student = student.where(mask[..., None], 1.0)
    teacher = teacher.where(mask[..., None], 1.0)
    return token_mean(1 - F.cosine_similarity(student, teacher, dim=-1, eps=1e-8), mask)
