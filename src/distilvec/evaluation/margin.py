"""Robustness margin: the distance from its teacher up to which a student scores as the teacher does.

REDACT, section 4.3, figures 6 and 10. Each saved checkpoint is a point (validation distance to the teacher, score).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import linregress
from scipy.stats import t as student_t

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.aggregate import average
from distilvec.evaluation.tasks import OF_AN_INDEX

LEAST_POINTS = 3


@dataclass(frozen=True)
class MarginPoint:
    """A saved checkpoint: its validation distance and its scores by task, with their average."""

    step: int
    distance: float
    scores: dict[str, float]


@dataclass(frozen=True)
class FitPoint:
    """A point of a fitted line with its 95% band."""

    distance: float
    score: float
    low: float
    high: float


@dataclass(frozen=True)
class MarginFit:
    """Score against distance: a line, where it crosses the teacher's score, and the margin."""

    teacher: float
    slope: float
    intercept: float
    r2: float
    p: float
    crossing: float | None = None
    crossing_low: float | None = None
    margin: float | None = None
    line: list[FitPoint] = field(default_factory=list)


@dataclass(frozen=True)
class Margin:
    """The robustness margin. `left_out`: steps of checkpoints in a first epoch of the learning rate's cycles."""

    points: list[MarginPoint]
    fits: dict[str, MarginFit]
    left_out: list[int] = field(default_factory=list)


def fit_margin(
    distances: Sequence[float], scores: Sequence[float], teacher: float, level: float = 0.95, line_points: int = 50
) -> MarginFit:
    """Fit score to distance by least squares; `p` is that of a slope of 0.

    `line` has the fit and the confidence band of its mean at distance x of n checkpoints,
    fit(x) +- t * s * sqrt(1/n + (x - mean)^2 / sum (x_i - mean)^2), with t the two-sided quantile of Student's t and
    s^2 the residual sum of squares over n - 2 degrees of freedom (Draper and Smith, Applied Regression Analysis,
    section 3.1).
    `crossing` is the distance where the line itself meets the teacher's score. `crossing_low` and `margin` are the ends
    of its interval: the distances where the lower and the upper band meet that score (Fieller's interval). So fewer or
    noisier checkpoints widen the margin. Crossings below 0: the line does not reach the teacher's score.
    All three are None if the slope is not negative with p < 1 - level; `margin` also if the band is below the teacher's
    score at distance 0.
    Note: the paper shades its margin as a hypothesis; the rule is ours.
    """
    x, y = (np.asarray(values, dtype=np.float64) for values in (distances, scores))
    _check_points(x, y, teacher)
    fit, freedom = linregress(x, y), len(x) - 2
    residual = np.sqrt(np.sum((y - fit.intercept - fit.slope * x) ** 2) / freedom)
    scale = residual * student_t.ppf((1 + level) / 2, freedom)

    def half_band(distance: Any) -> Any:
        return scale * np.sqrt(1 / len(x) + (distance - x.mean()) ** 2 / np.sum((x - x.mean()) ** 2))

    def meeting(side: int) -> float:
        """Return the distance where a band, 1 for the upper and -1 for the lower, meets the teacher's score."""

        def above(distance: float) -> float:
            return float(fit.intercept + fit.slope * distance + side * half_band(distance) - teacher)

        # Both bands fall strictly, since the slope differs from 0 at this level.
        low, high = float(x.min()), float(x.max())
        while above(low) < 0:
            low -= high - low
        while above(high) > 0:
            high += high - low
        return float(brentq(above, low, high, xtol=1e-12))

    crossing, crossing_low, margin = None, None, None
    if fit.slope < 0 and fit.pvalue < 1 - level:
        crossing = float((teacher - fit.intercept) / fit.slope)
        crossing_low = meeting(-1)
        crossing_high = meeting(1)
        margin = crossing_high if crossing_high >= 0 else None
    is_flat = np.ptp(y) == 0  # of equal scores the library has NaN
    ends = x if margin is None else [*x, margin]
    grid = np.linspace(min(ends), max(ends), line_points)
    line, half = fit.intercept + fit.slope * grid, half_band(grid)
    points = []
    for row in zip(*(values.tolist() for values in (grid, line, line - half, line + half)), strict=True):
        points.append(FitPoint(*row))
    return MarginFit(
        teacher=float(teacher),
        slope=float(fit.slope),
        intercept=float(fit.intercept),
        r2=0.0 if is_flat else float(fit.rvalue**2),
        p=1.0 if is_flat else float(fit.pvalue),
        crossing=crossing,
        crossing_low=crossing_low,
        margin=margin,
        line=points,
    )


def in_first_epoch(epoch: float, cycles: Sequence[range]) -> bool:
    """Whether a checkpoint after `epoch` epochs (1.0: the end of the first) is of the first of a cycle's epochs."""
    return any(math.ceil(epoch) - 1 == cycle.start and len(cycle) > 1 for cycle in cycles)


def margin_report(points: Sequence[MarginPoint], teacher: Mapping[str, float], left_out: Sequence[int] = ()) -> Margin:
    """Make the part "margin" of a report: the points, and a fit for every task of the teacher and their average.

    A task is fitted to the points that have it; "average", if not given, to those that have all tasks. Tasks that are
    made of an index itself do not count in it. `left_out` are the steps of checkpoints that are not among the points.
    """
    tasks = [task for task in teacher if task != "average"]
    if not tasks:
        raise DistilvecError("the teacher has no score on any task.", "Evaluate the teacher first.", key="margin")
    averaged = [replace(point, scores=_with_average(point.scores, tasks)) for point in points]
    references, fits = _with_average(teacher, tasks), {}
    names = [*tasks, "average"] if "average" in references else tasks
    for task in names:
        pairs = [(point.distance, point.scores[task]) for point in averaged if task in point.scores]
        fits[task] = fit_margin([x for x, _ in pairs], [y for _, y in pairs], references[task])
    return Margin(averaged, fits, list(left_out))


def _check_points(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], teacher: float) -> None:
    if len(x) != len(y) or len(x) < LEAST_POINTS:
        problem = f"{len(x)} distances and {len(y)} scores; a line needs {LEAST_POINTS} checkpoints. Save more"
    elif not (np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(teacher)):
        problem = "a distance or a score is NaN or infinite. Evaluate again"
    elif x.min() < 0 or np.ptp(x) == 0:
        problem = f"distances from {x.min():g} to {x.max():g}; a line needs different ones of 0 or more. Save others"
    else:
        return
    raise DistilvecError(f"found {problem}.", key="margin")


def _with_average(scores: Mapping[str, float], tasks: Sequence[str]) -> dict[str, float]:
    """Scores with their mean under "average", unless it is there, a task is missing, or none counts in it."""
    counted = [task for task in tasks if task not in OF_AN_INDEX]
    if not counted or "average" in scores or any(task not in scores for task in tasks):
        return dict(scores)
    return {**scores, "average": average({task: scores[task] for task in counted})}
