"""Regressions that linear layers begin with: ridge for layers into the teacher's space, logistic for a task's head."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor

Array = np.ndarray[Any, Any]
# The inverse of the penalty, for vectors of length 1. The library's own 1 is made for features of unit variance: on
# vectors of length 1 its probabilities are nearly the same for all classes.
INVERSE_PENALTY = 10.0
MOST_STEPS = 300
NEVER = -10.0  # the logit of a class that no example has: a probability of 5e-5
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


def logistic(vectors: Array, labels: Array, classes: int) -> tuple[Array, Array]:
    """Fit classes to vectors [examples, width]; return weight [classes, width] and bias [classes], float32.

    `labels` are int64 class numbers [examples] for one softmax over the classes, or zeros and ones [examples, classes]
    for one sigmoid per class. Classes without an example get a logit of NEVER, or lower ones.
    """
    length = float(np.linalg.norm(vectors, axis=1).mean()) or 1.0
    scaled = np.asarray(vectors, dtype=np.float64) / length
    weight = np.zeros((classes, vectors.shape[1]))
    bias = np.full(classes, NEVER)
    if labels.ndim == 2:
        for number in range(classes):
            column = labels[:, number] > 0
            if column.all():
                bias[number] = -NEVER
            elif column.any():
                weight[number], bias[number] = _binary(scaled, column)
    else:
        present = np.unique(labels)
        if len(present) == 2:
            # The library fits one logit for two classes; half of it for each gives the same softmax.
            row, offset = _binary(scaled, labels == present[1])
            weight[present], bias[present] = np.stack([-row / 2, row / 2]), np.array([-offset / 2, offset / 2])
        elif len(present) > 2:
            model = _fit(scaled, labels)
            weight[present], bias[present] = model.coef_, model.intercept_
        else:
            bias[present] = 0.0
    return (weight / length).astype(np.float32), bias.astype(np.float32)


def _binary(vectors: Array, labels: Array) -> tuple[Array, float]:
    model = _fit(vectors, labels)
    return model.coef_[0], float(model.intercept_[0])


def _fit(vectors: Array, labels: Array) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a start: training goes on from wherever it is
        return LogisticRegression(C=INVERSE_PENALTY, max_iter=MOST_STEPS).fit(vectors, labels)
