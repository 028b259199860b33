"""Robustness margin: how far from its teacher may a student be before its scores show it (REDACT, section 4.3, figures 6 and 10).

Each kept checkpoint is a point (held-out distance to the teacher, score); a line is fitted to them for every task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import linregress
from scipy.stats import t as student_t

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.tasks import TaskFailure

LEAST_POINTS = 3


@dataclass(frozen=True)
class LinePoint:
    """The fitted score at one distance and the confidence band of its mean."""

    distance: float
    score: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """A line through the checkpoints of one task. `p` is that of "the slope is 0"; `margin` is a distance, None if there is none."""

    teacher: float
    slope: float
    intercept: float
    r2: float
    p: float
    margin: float | None
    line: tuple[LinePoint, ...]


def fit_margin(
    distances: Sequence[float],
    scores: Sequence[float],
    teacher_score: float,
    level: float = 0.95,
    line_points: int = 50,
) -> Fit:
    """Least squares of score on distance, the band of its mean, and the margin below which the score passes for the teacher's.

    Band at distance x of n checkpoints: fit(x) +- t * s * sqrt(1/n + (x - mean)^2 / sum (x_i - mean)^2), with t the
    two-sided quantile of Student's t and s^2 the residual sum of squares, both at n - 2 degrees of freedom (Draper and
    Smith, Applied Regression Analysis, 3rd edition, section 3.1).

    Margin: the largest distance from 0 on whose upper band reaches the teacher's score. None if the slope is not
    negative with p < 1 - level, or if the upper band lies below the teacher's score even at distance 0. Where the slope
    is so, the upper band falls strictly, so the distance is unique. It may lie outside the measured distances; the
    line, `line_points` even steps over these, is then drawn up to it.
    Note: the paper shades its margin as a hypothesis; the rule is ours. The teacher's score is taken as known exactly.
    Errors: DistilvecError for fewer than 3 points, equal or negative distances, or numbers that are not finite.
    """
    x, y = (np.asarray(values, dtype=np.float64) for values in (distances, scores))
    _check_points(x, y, teacher_score)
    fit = linregress(x, y)
    slope, intercept, p = float(fit.slope), float(fit.intercept), float(fit.pvalue)
    centre, spread, freedom = float(x.mean()), float(np.sum((x - x.mean()) ** 2)), len(x) - 2
    residual = float(np.sqrt(np.sum((y - intercept - slope * x) ** 2) / freedom))
    quantile = float(student_t.ppf((1 + level) / 2, freedom))

    def point(distance: float) -> LinePoint:
        half = quantile * residual * np.sqrt(1 / len(x) + (distance - centre) ** 2 / spread)
        score = intercept + slope * distance
        return LinePoint(float(distance), float(score), float(score - half), float(score + half))

    margin = (
        _crossing(lambda distance: point(distance).high - teacher_score, float(x.max()))
        if slope < 0 and p < 1 - level
        else None
    )
    ends = [*x, margin] if margin is not None else x
    line = tuple(point(distance) for distance in np.linspace(min(ends), max(ends), line_points))
    return Fit(float(teacher_score), slope, intercept, float(fit.rvalue) ** 2, p, margin, line)


def margin_report(
    points: Sequence[Mapping[str, Any]],
    teacher: Mapping[str, float],
    level: float = 0.95,
    epoch_steps: float | None = None,
    epochs_in_cycle: int | None = None,
) -> dict[str, Any]:
    """The `margin` part of report.json: the points, and a fit for every task of the teacher and their average.

    A point is {"step", "distance", "scores": {task: score}}. A task is fitted to the points that have it; the average,
    the plain mean where "average" is not given, to those that have all. With `epoch_steps` and `epochs_in_cycle` (above
    1) the checkpoints of the first epoch of each cycle are left out of points and fits, as in the paper (footnote 5),
    because scores vary much at high learning rates. Errors: DistilvecError as `fit_margin`, with the task's name.
    """
    tasks = [task for task in teacher if task != "average"]
    if not tasks:
        raise DistilvecError(
            "[margin] the robustness margin needs the teacher's score on at least one task. Evaluate the teacher first."
        )
    if epoch_steps and epochs_in_cycle and epochs_in_cycle > 1:
        points = [point for point in points if int(np.ceil(point["step"] / epoch_steps) - 1) % epochs_in_cycle]
    kept = [{**point, "scores": _with_average(point["scores"], tasks)} for point in points]
    references, fits = _with_average(teacher, tasks), {}
    for task in [*tasks, "average"]:
        chosen = [point for point in kept if task in point["scores"]]
        try:
            fit = fit_margin(
                [p["distance"] for p in chosen], [p["scores"][task] for p in chosen], references[task], level
            )
        except DistilvecError as error:
            raise DistilvecError(
                f"[margin] robustness margin of {task}: {TaskFailure(task, str(error)).text}"
            ) from None
        fits[task] = {**asdict(fit), "line": [asdict(point) for point in fit.line]}
    return {"points": kept, "fits": fits}


def _check_points(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], teacher_score: float) -> None:
    if len(x) != len(y) or len(x) < LEAST_POINTS:
        raise DistilvecError(
            f"[margin] a line with a confidence band needs at least {LEAST_POINTS} checkpoints with a distance and a score; found {len(x)} "
            f"distances and {len(y)} scores. Keep more checkpoints of the run."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all() and np.isfinite(teacher_score)):
        raise DistilvecError(
            "[margin] a distance or a score of a checkpoint, or the teacher's score, is NaN or infinite. Evaluate again."
        )
    if x.min() < 0:
        raise DistilvecError(
            f"[margin] a checkpoint has the distance {x.min():g}; distances to the teacher are 0 or more. Evaluate again."
        )
    if np.ptp(x) == 0:
        raise DistilvecError(
            f"[margin] all {len(x)} checkpoints have the distance {x[0]:g}; a line needs two different ones. Keep other checkpoints."
        )


def _crossing(above: Callable[[float], float], reach: float) -> float | None:
    """The distance of at least 0 where a falling function reaches 0; None if it starts below."""
    if above(0.0) < 0:
        return None
    while above(reach) > 0:
        reach *= 2
    return float(brentq(above, 0.0, reach, xtol=1e-12))


def _with_average(scores: Mapping[str, float], tasks: Sequence[str]) -> dict[str, float]:
    """The scores with their mean under "average", unless it is there or a task is missing."""
    if "average" in scores or any(task not in scores for task in tasks):
        return dict(scores)
    return {**scores, "average": sum(scores[task] for task in tasks) / len(tasks)}
