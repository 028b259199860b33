"""Distances between a student's vector and its teacher's, one value per example.

As in REDACT, y is the student's vector and y_hat the teacher's.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "batch dim"]
PerRow = Float[Tensor, " batch"]
DistanceName = Literal["l2", "mse", "cosine"]


def full_precision(x: Tensor) -> Tensor:
    """Return `x` in fp32, or in float64 if given."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def l2_distance(y: Rows, y_hat: Rows) -> PerRow:
    """Return ||y - y_hat||, not squared (REDACT, eq. 3); at most 2 for unit vectors.

    The gradient has unit length, and is zero for equal vectors: the squared distance is clamped to 1e-12, so that
    nothing is NaN.
    """
    return (full_precision(y) - full_precision(y_hat)).square().sum(-1).clamp_min(1e-12).sqrt()


def mean_squared_error(y: Rows, y_hat: Rows) -> PerRow:
    """Return the mean over the dimensions of the squared difference."""
    return (full_precision(y) - full_precision(y_hat)).square().mean(-1)


def cosine_distance(y: Rows, y_hat: Rows) -> PerRow:
    """Return 1 - cos(y, y_hat): 0 for equal directions, 1 for orthogonal ones, 2 for opposite ones."""
    return 1 - F.cosine_similarity(full_precision(y), full_precision(y_hat), dim=-1, eps=1e-8)


DISTANCES = {"l2": l2_distance, "mse": mean_squared_error, "cosine": cosine_distance}


def distances(y: Rows, y_hat: Rows) -> dict[str, PerRow]:
    """Return the metrics of validation: the distance (REDACT, section 4.3) and the cosine."""
    with torch.no_grad():
        return {"distance": l2_distance(y, y_hat), "cosine": 1 - cosine_distance(y, y_hat)}
