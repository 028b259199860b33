"""Score against distance to the teacher over the saved checkpoints, with the robustness margin (REDACT, figure 6)."""

from __future__ import annotations

from collections.abc import Sequence

from distilvec.evaluation.margin import Margin, MarginFit, MarginPoint
from distilvec.evaluation.tasks import OF_AN_INDEX
from distilvec.report.figures import LevelLine, LineLook, LinePoint, lines_figure
from distilvec.report.scores import left_out_text
from distilvec.report.section import Figure, PageSection, make_section
from distilvec.report.tables import make_table, number, number_cell, pivot
from distilvec.report.values import Report

AVERAGE = "average"
FITS = {
    "Score": "name",
    "teacher": ("fit.teacher", 2),
    "slope, per 0.1": ("fit.slope", 2, 0.1),
    "R²": ("fit.r2", 2),
    "p": ("fit.p", 3),
    "crossing": ("fit.crossing", 3),
    "from": ("fit.crossing_low", 3),
    "to (margin)": ("fit.margin", 3),
}
ENOUGH_CHECKPOINTS = 8


def section(report: Report) -> PageSection | None:
    """Return the margin of the mean score, its figure, and the fits by task."""
    margin = report.margin
    if margin is None:
        return None
    fit = margin.fits.get(AVERAGE)
    averaged = [task for task in margin.fits if task != AVERAGE and task not in OF_AN_INDEX]
    sentences = [] if fit is None else [*_margin_sentences(fit, margin), left_out_text(averaged, report.scores)]
    text = " ".join(sentences).rstrip()
    rows = [{"name": name, "fit": of_task} for name, of_task in margin.fits.items()]
    table = make_table("margin-table", "Score against distance to the teacher; the slope is in points", rows, FITS)
    return make_section("Robustness margin", text, _figure(margin.points, fit), table)


def _margin_sentences(fit: MarginFit, margin: Margin) -> list[str]:
    """Say the margin, the line's crossing with its interval, and what weakens the fit."""
    sentences = []
    if fit.margin is None:
        sentences.append("Robustness margin: not reached.")
    else:
        sentences.append(
            f"Robustness margin: a distance of {number(fit.margin, 3)}. Below it, the teacher's mean score is within "
            "the confidence band of the fit."
        )
    if fit.crossing is not None and fit.margin is not None and fit.crossing_low is not None:
        ends = f"[{number(fit.crossing_low, 3)}, {number(fit.margin, 3)}]"
        sentences.append(f"The line itself meets the teacher's score at {number(fit.crossing, 3)} {ends}.")
    count = len(margin.points)
    if count < ENOUGH_CHECKPOINTS:
        sentences.append(
            f"Fitted to {count} checkpoints, which widens the margin: save {ENOUGH_CHECKPOINTS} or more "
            "(train.keep_students)."
        )
    if margin.left_out:
        steps = ", ".join(f"{step:,}" for step in margin.left_out)
        sentences.append(f"Left out as first epochs of the learning rate's cycles: steps {steps}.")
    return sentences


def _figure(checkpoints: Sequence[MarginPoint], fit: MarginFit | None) -> Figure | None:
    """Checkpoints by distance and score, with the linear fit, its 95% band and the margin."""
    means = [(point.distance, point.scores[AVERAGE]) for point in checkpoints if AVERAGE in point.scores]
    if len(means) < 2:
        return None
    points = [LinePoint("", "checkpoints", distance, score) for distance, score in means]
    level = None
    if fit is not None:
        level = LevelLine("teacher", fit.teacher)
        points += [LinePoint("", "linear fit", row.distance, row.score) for row in fit.line]
        points += [LinePoint("", "95% band, low", row.distance, row.low) for row in fit.line]
        points += [LinePoint("", "95% band, high", row.distance, row.high) for row in fit.line]
        if fit.margin is not None:
            scores = [score for _, score in means]
            points += [LinePoint("", "robustness margin", fit.margin, end) for end in (min(scores), max(scores))]
    entries = [
        ((point.step, point.distance), task, number_cell(score))
        for point in checkpoints
        for task, score in point.scores.items()
    ]
    data = pivot("data-margin", "The checkpoints", ["Step", "distance"], entries)
    look = LineLook(y="mean score (x 100)", dots=["checkpoints"], level=level)
    x = "distance to the teacher on validation texts"
    return lines_figure("margin", "Robustness margin", points, x, data, look)
