"""The line, its band and the margin against worked values, against predictions by matrices, and by coverage."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.stats import linregress
from scipy.stats import t as student_t

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.margin import Margin, MarginPoint, fit_margin, in_first_epoch, margin_report
from distilvec.report.json_values import from_json, to_json


def checkpoints(count=10, slope=-10.0, intercept=80.0, noise=0.3, seed=0):
    generator = np.random.default_rng(seed)
    distances = np.linspace(0.35, 0.8, count)
    return distances, intercept + slope * distances + generator.normal(size=count) * noise


def upper_band(distances, scores, places, level=0.95):
    """fit + t s sqrt(x' (X'X)^-1 x), with the design matrix."""
    design = np.stack([np.ones(len(distances)), distances], axis=1)
    weights, residual, _, _ = np.linalg.lstsq(design, scores, rcond=None)
    freedom = len(distances) - 2
    rows = np.stack([np.ones(len(places)), places], axis=1)
    half = np.sqrt(np.einsum("ri,ij,rj->r", rows, np.linalg.inv(design.T @ design), rows) * residual[0] / freedom)
    return rows @ weights, student_t.ppf((1 + level) / 2, freedom) * half


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_line_and_band_are_those_of_the_design_matrix(level):
    distances, scores = checkpoints()
    fit = fit_margin(distances, scores, 79.0, level=level, line_points=7)
    expected = linregress(distances, scores)
    assert (fit.slope, fit.intercept, fit.p) == pytest.approx((expected.slope, expected.intercept, expected.pvalue))
    assert fit.r2 == pytest.approx(np.corrcoef(distances, scores)[0, 1] ** 2) and fit.teacher == 79.0
    places = np.array([point.distance for point in fit.line])
    line, half = upper_band(distances, scores, places, level)
    assert len(places) == 7 and np.ptp(np.diff(places)) < 1e-12
    np.testing.assert_allclose([point.score for point in fit.line], line)
    np.testing.assert_allclose([point.low for point in fit.line], line - half)
    np.testing.assert_allclose([point.high for point in fit.line], line + half)


def test_worked_example():
    """x = 1..4, y = 8, 7, 5, 4: slope -1.4, intercept 9.5, residual sum 0.2; t(0.975, 2) = 4.3027."""
    fit = fit_margin([1, 2, 3, 4], [8, 7, 5, 4], 9.0, line_points=4)
    assert (fit.slope, fit.intercept, fit.r2) == pytest.approx((-1.4, 9.5, 0.98))
    first = fit.line[0] if fit.margin > 1 else min(fit.line, key=lambda point: abs(point.distance - 1))
    half = 4.302653 * math.sqrt(0.1) * math.sqrt(1 / 4 + (first.distance - 2.5) ** 2 / 5)
    assert first.high == pytest.approx(9.5 - 1.4 * first.distance + half, rel=1e-6)
    assert 9.5 - 1.4 * fit.margin + 4.302653 * math.sqrt(0.1) * math.sqrt(
        1 / 4 + (fit.margin - 2.5) ** 2 / 5
    ) == pytest.approx(9, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 20), st.floats(70, 85), st.floats(-30, 5))
def test_margin_is_the_last_place_of_a_fine_grid_where_the_band_reaches_the_teacher(seed, count, teacher, slope):
    distances, scores = checkpoints(count, slope=slope, seed=seed)
    fit = fit_margin(distances, scores, teacher)
    grid = np.linspace(0, max(2.0, 2 * (fit.margin or 0)), 20_001)
    line, half = upper_band(distances, scores, grid)
    reached = np.flatnonzero(line + half >= teacher)
    if fit.slope >= 0 or fit.p >= 0.05 or not len(reached):
        assert fit.margin is None
    else:
        assert fit.margin == pytest.approx(grid[reached[-1]], abs=1.1 * grid[1])
        assert len(reached) == reached[-1] + 1  # one stretch from 0 on


def test_line_without_noise_has_its_crossing_as_margin():
    fit = fit_margin([0.4, 0.5, 0.6], [76.0, 75.0, 74.0], 78.0)
    assert fit.crossing_low == pytest.approx(fit.crossing) == pytest.approx(0.2)
    assert fit.margin == pytest.approx(0.2) and fit.r2 == pytest.approx(1)
    assert (fit.line[0].distance, fit.line[-1].distance) == pytest.approx((0.2, 0.6))
    assert max(point.high - point.low for point in fit.line) < 1e-6


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(4, 20), st.floats(60, 90))
def test_crossing_and_its_interval_are_fiellers(seed, count, teacher):
    """(teacher - intercept) / slope, and the roots of (line - teacher)^2 = (t s)^2 (1/n + (x - mean)^2 / spread)."""
    distances, scores = checkpoints(count, slope=-12.0, seed=seed)
    fit = fit_margin(distances, scores, teacher)
    if fit.p >= 0.05:
        assert fit.crossing is fit.crossing_low is fit.margin is None
        return
    assert fit.intercept + fit.slope * fit.crossing == pytest.approx(teacher)
    residuals = scores - fit.intercept - fit.slope * distances
    scale = student_t.ppf(0.975, count - 2) ** 2 * np.sum(residuals**2) / (count - 2)
    mean, spread = distances.mean(), np.sum((distances - distances.mean()) ** 2)
    gap = fit.intercept + fit.slope * mean - teacher
    roots = np.roots([fit.slope**2 - scale / spread, 2 * gap * fit.slope, gap**2 - scale / count]) + mean
    low, high = sorted(roots.real)
    assert np.abs(roots.imag).max() == 0
    assert fit.crossing_low == pytest.approx(low, abs=1e-6)
    assert fit.margin == (pytest.approx(high, abs=1e-6) if high >= 0 else None)


def test_interval_of_the_crossing_covers_the_true_one_and_few_checkpoints_widen_it():
    """True line 80 - 10 x, teacher 77: the crossing is 0.3."""
    widths = {}
    for count in (4, 12):
        covered, margins = [], []
        for seed in range(400):
            distances, scores = checkpoints(count, seed=seed)
            fit = fit_margin(distances, scores, 77.0)
            if fit.margin is not None:
                covered.append(fit.crossing_low <= 0.3 <= fit.margin)
                margins.append(fit.margin)
        assert np.mean(covered) > 0.92
        widths[count] = np.median(margins) - 0.3
    assert widths[4] > 1.5 * widths[12] > 0


@pytest.mark.parametrize(
    ("scores", "teacher"),
    [
        ([74.0, 75.0, 76.1, 77.0], 80.0),  # further is better
        ([75.0, 74.0, 75.2, 74.1], 74.8),  # no trend to speak of
        ([75.0, 75.0, 75.0, 75.0], 75.0),  # no trend at all
        ([76.0, 75.0, 74.1, 73.0], 95.0),  # not even at distance 0
    ],
)
def test_no_margin(scores, teacher):
    fit = fit_margin([0.4, 0.5, 0.6, 0.7], scores, teacher)
    assert fit.margin is None and (fit.line[0].distance, fit.line[-1].distance) == (0.4, 0.7)


def test_band_covers_the_true_line_as_often_as_it_says():
    hits = []
    for seed in range(400):
        distances, scores = checkpoints(8, seed=seed)
        point = fit_margin(distances, scores, 60.0, line_points=3).line[0]
        hits.append(point.low <= 80 - 10 * point.distance <= point.high)
    assert 0.92 < np.mean(hits) < 0.98


@pytest.mark.parametrize(
    ("distances", "scores", "teacher", "message"),
    [
        ([0.1, 0.2], [1.0, 2.0], 3.0, "found 2 distances and 2 scores; a line needs 3"),
        ([0.1, 0.2, 0.3], [1.0, 2.0], 3.0, "found 3 distances and 2 scores"),
        ([0.5, 0.5, 0.5], [1.0, 2.0, 3.0], 3.0, "distances from 0.5 to 0.5"),
        ([-0.1, 0.5, 0.6], [1.0, 2.0, 3.0], 3.0, "distances from -0.1 to 0.6"),
        ([0.1, math.nan, 0.3], [1.0, 2.0, 3.0], 3.0, "NaN or infinite"),
        ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], math.inf, "NaN or infinite"),
    ],
)
def test_points_that_make_no_line(distances, scores, teacher, message):
    with pytest.raises(DistilvecError, match=message):
        fit_margin(distances, scores, teacher)


def report_points(steps):
    points = []
    for step in steps:
        scores = {"a": 70 + step / 500, "b": 60 + step / 400 + step % 200 / 1000}
        points.append(MarginPoint(step, 0.9 - step / 10_000, scores))
    return points


def test_report_has_every_task_and_the_average():
    points = report_points(range(300, 3000, 300))
    report = margin_report(points, {"a": 78.0, "b": 70.0})
    assert list(report.fits) == ["a", "b", "average"]
    first = report.points[0]
    assert first.step == 300 and first.distance == pytest.approx(0.87)
    assert first.scores == pytest.approx({"a": 70.6, "b": 60.85, "average": (70.6 + 60.85) / 2})
    for task, teacher in (("a", 78.0), ("b", 70.0), ("average", 74.0)):
        distances, scores = [p.distance for p in report.points], [p.scores[task] for p in report.points]
        fit = fit_margin(distances, scores, teacher)
        found = report.fits[task]
        assert (
            found.slope == fit.slope
            and found.margin == fit.margin
            and found.teacher == teacher
            and len(found.line) == 50
        )
    assert from_json(Margin, to_json(report, defaults=True)) == report
    assert "average" not in points[0].scores  # what was given stays as it was


def test_tasks_made_of_an_index_count_in_no_average():
    points = report_points(range(300, 3000, 300))
    expected = margin_report(points, {"a": 78.0, "b": 70.0})
    for point in points:
        point.scores["index-known-item"] = 99.0 - point.distance
    report = margin_report(points, {"a": 78.0, "b": 70.0, "index-known-item": 100.0})
    assert report.fits["average"] == expected.fits["average"] and report.fits["index-known-item"].teacher == 100.0
    alone = [replace(point, scores={"index-known-item": 99.0 - point.distance}) for point in points]
    assert list(margin_report(alone, {"index-known-item": 100.0}).fits) == ["index-known-item"]


def test_first_epochs_of_cycles():
    """REDACT, footnote 5. Three epochs a cycle: epochs 1, 4 and 7, whether the checkpoint is of their middle or end."""
    cycles = [range(start, start + 3) for start in (0, 3, 6)]
    ends = [epoch for epoch in range(1, 10) if in_first_epoch(epoch, cycles)]
    middles = [epoch for epoch in range(1, 10) if in_first_epoch(epoch - 0.5, cycles)]
    assert ends == middles == [1, 4, 7]
    of_ten = [range(start, start + 10) for start in (0, 10, 20)]
    of_the_paper = [epoch for epoch in range(1, 31) if not in_first_epoch(epoch, of_ten)]
    assert len(of_the_paper) == 27 and not {1, 11, 21} & set(of_the_paper)


def test_a_task_some_checkpoints_lack_is_fitted_to_the_others():
    points = report_points(range(300, 3000, 300))
    del points[2].scores["b"]
    report = margin_report(points, {"a": 78.0, "b": 70.0})
    assert "average" not in report.points[2].scores
    others = [point for point in report.points if point.step != 900]
    assert (
        report.fits["b"].slope == fit_margin([p.distance for p in others], [p.scores["b"] for p in others], 70.0).slope
    )
    with pytest.raises(DistilvecError, match=r"^\[margin\] found 0"):
        margin_report(points, {"a": 78.0, "c": 70.0})
    with refused("margin"):
        margin_report(points, {})


def test_equal_scores_have_a_flat_line_and_no_nan():
    """JSON has no NaN: a report with one could not be read again."""
    fit = fit_margin([1.0, 2.0, 3.0], [5.0, 5.0, 5.0], 4.0)
    assert (fit.slope, fit.r2, fit.p, fit.margin) == (0, 0, 1, None)
