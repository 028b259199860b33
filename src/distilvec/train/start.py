"""What the start of a training decides: its learning rate, when to validate, and the way back.

A student may begin as a nearly perfect copy of its teacher (a trimmed vocabulary, a layer cut), or far from it (random
weights, another family). The rate that the second one needs destroys the first one within a few steps. So the rate
follows from the distance at the start, the start itself is a candidate for the student that ships, and a training
that falls behind its start goes back to it with a lower rate, at most RETURNS times. Where that does not help, the rate
is not to blame: an objective may lead away from the teacher's vectors before it raises overlap@10 (Jasper's, from
a small student). Training goes on from the start with the first rate then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distilvec.train.metrics import OVERLAP_BY_CHANCE, Metric

UNKNOWN_RATE = 1e-4  # of a student in a space of its own, whose start has no distance to the teacher
LOWEST_RATE, HIGHEST_RATE = 1e-5, 1e-3
# A model of another family behind a new linear layer starts far away, at 0.77 from mpnet (results/linear_layer.json).
BEHIND_LAYER_RATE = 3e-4
RATE_PER_DISTANCE = 2e-3
SHALLOW, NARROW = 6, 384  # layers and their width up to which this holds, on which it was measured: all-MiniLM-L6-v2's
CLOSEST_VALIDATIONS = 200  # steps between two; shorter trainings are validated after their epochs alone
VALIDATION_SHARE = 0.05  # of the training time that validations between epochs may take
BACKWARD = 3  # a training step costs about three forward passes, a validation one
TEXTS_AT_START = 256  # training texts on which the start is compared with the teacher
SAME_VECTORS = 0.005  # a model without the tokens that the texts do not use, with rounding
BEHIND = 0.05  # by this share worse than at the start is worse by more than chance; set for the distance
SLOWER = 0.25  # of the rate, after each return to the start
RETURNS = 2
# A validation soon after a return says nothing: an epoch may end a few steps later, and the way has only begun.
STEPS_OF_A_RETURN, SHARE_OF_A_RETURN = CLOSEST_VALIDATIONS // 4, 0.1  # of all steps, in a short training


def suitable_rate(
    cosine: float | None, highest: float = HIGHEST_RATE, layers: int = SHALLOW, width: int = NARROW
) -> float:
    """Return the learning rate for a student whose mean cosine to the teacher is `cosine` before training.

    None is a student without such a cosine. Rates are proportional to the distance that the cosine stands for, up to
    `highest`, and smaller where many or wide `layers` are trained (results/rates.json). The lowest one is LOWEST_RATE.
    """
    if cosine is None:
        return UNKNOWN_RATE
    distance = math.sqrt(max(0.0, 2 - 2 * cosine))
    share = min(1.0, SHALLOW / max(layers, 1)) ** 2 * min(1.0, NARROW / width)
    return max(LOWEST_RATE, share * min(highest, RATE_PER_DISTANCE * distance))


def validation_interval(validation_rows: int, rows_a_step: float) -> int:
    """Return the steps from one validation to the next with which validations take VALIDATION_SHARE of the time."""
    return max(CLOSEST_VALIDATIONS, math.ceil(validation_rows / rows_a_step / BACKWARD / VALIDATION_SHARE))


def validation_steps(total_steps: int, validation_rows: int, rows_a_step: float) -> frozenset[int]:
    """Return the steps after which to validate, in addition to the ends of epochs.

    Validations are so far apart that they take VALIDATION_SHARE of the time, but for two early ones, which notice a
    rate that is too high before much time is lost.
    """
    interval = validation_interval(validation_rows, rows_a_step)
    early = {interval // 4, interval // 2}
    regular = range(interval, total_steps, interval)
    return frozenset(step for step in {*early, *regular} if step < total_steps)


@dataclass(frozen=True)
class Standing:
    """What a validation says of a student: the metric that is watched, and its overlap@10.

    The share is 0 where it was not measured; the metric then decides alone.
    """

    metric: Metric
    overlap: float = 0.0

    def is_better_than(self, other: Standing | None) -> bool:
        """Whether this student has a higher overlap@10, or as high a one and a better metric.

        The distance alone does not tell: in its first steps a student can come nearer to its teacher on average and
        have a lower overlap@10. Every student is better than none, but not one whose metric is nan.
        """
        if other is None:
            return not math.isnan(self.metric.value)
        gain = self.overlap - other.overlap
        if abs(gain) > OVERLAP_BY_CHANCE:
            return gain > 0
        return self.metric.is_better_than(other.metric)


class StartWeights:
    """A copy of a module's trained parameters, to which training can return."""

    def __init__(self, module: nn.Module) -> None:
        self._weights: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in module.named_parameters() if parameter.requires_grad
        }

    @torch.no_grad()
    def restore(self, module: nn.Module) -> None:
        """Give the module's parameters the values that they had when the copy was made."""
        parameters = dict(module.named_parameters())
        for name, value in self._weights.items():
            parameters[name].copy_(value)
