"""Logistic regression on the vectors of texts: the head that a labelled task begins with."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

Array = np.ndarray[Any, Any]
# The inverse of the penalty, for vectors of length 1. The library's own 1 is made for features of unit variance: on
# vectors of length 1 its probabilities are nearly the same for all classes.
INVERSE_PENALTY = 10.0
MOST_STEPS = 300
NEVER = -10.0  # the logit of a class that no example has: a probability of 5e-5


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
