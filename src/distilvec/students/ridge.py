"""Ridge regression of a linear layer without bias, by one eigendecomposition for all strengths of the penalty."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the penalty, in mean squares of an input over the rows


class Ridge(NamedTuple):
    """The W that minimizes |X W' - Y|^2 + penalty |W - prior|^2.

    The prior is 0 or, if `keeps`, the layer that keeps the first dimensions: the identity, if it is square. With an
    infinite penalty W is the prior.

    `predicted` are the rows of X W' with the W of all other rows (leave-one-out); `distance` is the mean distance of
    their directions to those of Y.
    """

    weight: Float[Tensor, "out in"]
    penalty: float
    keeps: bool
    predicted: Float[Tensor, "n out"]
    distance: float


def ridge(inputs: Float[Tensor, "n in"], targets: Float[Tensor, "n out"]) -> Ridge:
    """Return the regression of `targets` on `inputs` with the prior and the penalty of least `distance`; float64.

    Penalties are STRENGTHS times the mean eigenvalue of X'X. A layer to more dimensions has the prior 0 alone.

    A student with its teacher's own layers has the right vectors in its first dimensions if those of the teacher are
    cut (truncate_dim). Only the infinite penalty finds that: cut vectors are brought back to length 1, which is not
    linear.
    """
    x, y = inputs.double(), targets.double()
    values, vectors = torch.linalg.eigh(x.T @ x)
    rotated = x @ vectors
    best: Ridge | None = None
    first_dims = torch.eye(y.shape[1], x.shape[1], dtype=x.dtype, device=x.device)
    is_wider = y.shape[1] > x.shape[1]
    for keeps in (False,) if is_wider else (False, True):
        residual = y - x @ first_dims.T if keeps else y  # what is left of Y behind the prior
        cross = rotated.T @ residual
        for strength in (*STRENGTHS, math.inf) if keeps else STRENGTHS:
            penalty = strength * float(values.mean().clamp_min(1e-12))
            shrunk = 1 / (values.clamp_min(0) + penalty)
            solution = shrunk[:, None] * cross
            # Leave-one-out in closed form: the residual of row i, divided by 1 - its leverage
            leverage = (rotated.square() * shrunk).sum(1, keepdim=True)
            predicted = y - (residual - rotated @ solution) / (1 - leverage).clamp_min(1e-9)
            distance = mean_distance(predicted, y)
            if best is None or distance < best.distance:
                weight = (vectors @ solution).T
                if keeps:
                    weight = weight + first_dims
                best = Ridge(weight, penalty, keeps, predicted, distance)
    assert best is not None
    return best


def mean_distance(x: Float[Tensor, "n dim"], y: Float[Tensor, "n dim"]) -> float:
    """Return the mean distance of the rows' directions."""
    return float((F.normalize(x, dim=-1) - F.normalize(y, dim=-1)).norm(dim=-1).mean())
