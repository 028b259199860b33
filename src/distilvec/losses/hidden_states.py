"""Layers of a student beside layers of its teacher, token by token: TinyBERT's and DistilBERT's terms. One value per text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.losses.padding import token_mean

States = Float[Tensor, "batch tokens width"]
Scores = Float[Tensor, "batch heads tokens tokens"]
Mask = Bool[Tensor, "batch tokens"]
PerRow = Float[Tensor, " batch"]


def uniform_map(student_layers: int, teacher_layers: int) -> dict[int, int]:
    """g(l) = floor(L / L') l for the student's layers 0 to L' (TinyBERT, section 3.1; REDACT, B.2); g(L') is L if L' divides L."""
    step = teacher_layers // student_layers
    return {layer: step * layer for layer in range(student_layers + 1)}


def hidden_gap(student: States, teacher: States, mask: Mask) -> PerRow:
    """The mean over tokens and dimensions of the squared difference (REDACT, eq. 9, one layer); finite at padding."""
    return token_mean((student - teacher).square().mean(-1), mask)


def score_gap(student: Scores, teacher: Scores, mask: Mask) -> PerRow:
    """The mean over heads and pairs of tokens of the squared difference of attention scores (REDACT, eq. 10, one layer).

    Note: TinyBERT sets scores of padding to 0 and counts them in the mean; here only pairs of tokens count, so that padding
    does not change the value.
    """
    pairs = mask[:, :, None] & mask[:, None, :]
    gaps = (student - teacher).square().mean(1)
    return (gaps * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp_min(1)


def token_cosine_distance(student: States, teacher: States, mask: Mask) -> PerRow:
    """The mean over a text's tokens of 1 - cos: DistilBERT's cosine loss with target +1 (REDACT, eq. 12, which lacks the "1 -").

    Value and gradient are finite also where a vector is zero (1 then); what stands at padding takes no part, not even in the
    gradient's gradient.
    """
    student, teacher = (states.where(mask[..., None], 1.0) for states in (student, teacher))
    return token_mean(1 - F.cosine_similarity(student, teacher, dim=-1, eps=1e-8), mask)


def layer_mean(gaps: list[PerRow]) -> PerRow:
    """The mean over layers of values per text."""
    return torch.stack(gaps).mean(0)
