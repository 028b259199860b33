"""Distances between a student's vector and its teacher's, one value per example."""

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


def l2_distance(student: Rows, teacher: Rows) -> PerRow:
    """Return ||y - y_hat|| of the student's y and the teacher's y_hat, not squared (REDACT, eq. 3); at most 2 for unit
    vectors.

    The gradient has unit length, and is zero for equal vectors: the squared distance is clamped to 1e-12, so that
    nothing is NaN.
    """
    return (full_precision(student) - full_precision(teacher)).square().sum(-1).clamp_min(1e-12).sqrt()


def mean_squared_error(student: Rows, teacher: Rows) -> PerRow:
    """Return the mean over the dimensions of the squared difference."""
    return (full_precision(student) - full_precision(teacher)).square().mean(-1)


def cosine_distance(student: Rows, teacher: Rows) -> PerRow:
    """Return 1 - cos(y, y_hat): 0 for equal directions, 1 for orthogonal ones, 2 for opposite ones."""
    return 1 - F.cosine_similarity(full_precision(student), full_precision(teacher), dim=-1, eps=1e-8)


DISTANCES = {"l2": l2_distance, "mse": mean_squared_error, "cosine": cosine_distance}


def distances(student: Rows, teacher: Rows) -> dict[str, PerRow]:
    """Return the metrics of validation: the distance (REDACT, section 4.3) and the cosine."""
    with torch.no_grad():
        return {"distance": l2_distance(student, teacher), "cosine": 1 - cosine_distance(student, teacher)}
