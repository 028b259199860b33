"""Distances between a student's vector and its teacher's, one value per example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Rows = Float[Tensor, "batch width"]
PerRow = Float[Tensor, " batch"]


def l2_distance(student: Rows, teacher: Rows) -> PerRow:
    """The un-squared Euclidean distance ||y - y_hat|| (REDACT, eq. 3), in [0, 2] for unit vectors.

    The gradient has unit length until the vectors are equal and is zero there: the root is taken of a value that is
    kept above 1e-12 (a distance of 1e-6), so neither the value nor the gradient is ever NaN.
    """
    squared = (student.float() - teacher.float()).square().sum(-1)
    return squared.clamp_min(1e-12).sqrt()


def mean_squared_error(student: Rows, teacher: Rows) -> PerRow:
    """Mean over the dimensions of the squared difference; a `width`-th of the squared distance."""
    return (student.float() - teacher.float()).square().mean(-1)


def cosine_distance(student: Rows, teacher: Rows) -> PerRow:
    """1 - cos(y, y_hat): 0 for equal directions, 1 for orthogonal ones, 2 for opposite ones (largest)."""
    return 1 - F.cosine_similarity(student.float(), teacher.float(), dim=-1, eps=1e-8)


def distances(student: Rows, teacher: Rows) -> dict[str, PerRow]:
    """Both numbers that the loop watches: the distance of REDACT's section 4.3 and the cosine."""
    with torch.no_grad():
        return {"distance": l2_distance(student, teacher), "cosine": 1 - cosine_distance(student, teacher)}
