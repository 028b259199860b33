"""Distances between a student's vector and its teacher's, one value per example.

As in REDACT, y is the student's vector and y_hat the teacher's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from distilvec.core.device import full_precision

Rows = Float[Tensor, "batch dim"]
PerRow = Float[Tensor, " batch"]
DistanceName = Literal["l2", "mse", "cosine"]
Distance = Callable[[Tensor, Tensor], Tensor]


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


def mean_over_dims(distance: Distance, y: Rows, y_hat: Rows, dims: Sequence[int], unit: bool) -> PerRow:
    """Return the mean of `distance` over the first `dims` dimensions of both vectors (Matryoshka).

    `unit`: a cut has length 1 again, as vectors that are cut and compared have. The whole vectors stay as they are.
    Kusupati et al., 2022, "Matryoshka Representation Learning", eq. 1, with the weight 1 / len(dims) for each.
    """
    values = []
    for dim in dims:
        y_cut = full_precision(y)[:, :dim]
        y_hat_cut = full_precision(y_hat)[:, :dim]
        if unit and dim < y.shape[1]:
            y_cut = F.normalize(y_cut, dim=-1)
            y_hat_cut = F.normalize(y_hat_cut, dim=-1)
        values.append(distance(y_cut, y_hat_cut))
    return torch.stack(values).mean(0)


def distances(y: Rows, y_hat: Rows) -> dict[str, PerRow]:
    """Return the metrics of validation: the distance (REDACT, section 4.3) and the cosine."""
    with torch.no_grad():
        return {"distance": l2_distance(y, y_hat), "cosine": 1 - cosine_distance(y, y_hat)}
