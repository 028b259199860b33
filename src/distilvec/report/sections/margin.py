"""Score against distance to the teacher over the saved checkpoints, with the robustness margin (REDACT, figure 6)."""

from __future__ import annotations

from functools import partial

from distilvec.report.figures import Panel, draw_lines
from distilvec.report.section import Figure, Section, get, make_section
from distilvec.report.tables import Part, make_table, number, number_cell, pivot

AVERAGE = "average"
FITS = {
    "Score": "name",
    "teacher": ("teacher", 2),
    "slope, per 0.1": ("slope", 2, 0.1),
    "R²": ("r2", 2),
    "p": ("p", 3),
    "margin": ("margin", 3),
}


def section(report: Part) -> Section | None:
    """Return the margin of the mean score, its figure, and the fits by task."""
    fits, points = get(report, "margin.fits"), get(report, "margin.points")
    fit = fits.get(AVERAGE) or {}
    limit = "not reached" if fit.get("margin") is None else f"a distance of {number(fit['margin'], 3)}"
    text = (
        f"Robustness margin: {limit}. Below it, the teacher's mean score is within the confidence band of the fit."
        if fit
        else ""
    )
    rows = [{"name": name, **found} for name, found in fits.items()]
    table = make_table("margin-table", "Score against distance to the teacher; the slope is in points", rows, FITS)
    return make_section("Robustness margin", text, _figure(points, fit), table)


def _figure(points: list[Part], fit: Part) -> Figure | None:
    """Checkpoints by distance and score, with the linear fit, its 95 % band and the margin."""
    checkpoints = [(point["distance"], point["scores"][AVERAGE]) for point in points if AVERAGE in point["scores"]]
    if len(checkpoints) < 2:
        return None
    lines = {"checkpoints": checkpoints}
    for name, key in (("linear fit", "score"), ("95 % band, low", "low"), ("95 % band, high", "high")):
        lines |= {name: [(row["distance"], row[key]) for row in fit["line"]]} if fit.get("line") else {}
    if fit.get("margin") is not None:
        lines["robustness margin"] = [(fit["margin"], limit(score for _, score in checkpoints)) for limit in (min, max)]
    panel = Panel("", "distance to the teacher on validation texts", lines, dots=("checkpoints",))
    teacher = None if fit.get("teacher") is None else ("teacher", fit["teacher"])
    data = pivot("data-margin", "The checkpoints", ["Step", "distance"], (
        ((point["step"], point["distance"]), name, number_cell(value)) for point in points for name, value in point["scores"].items()
    ))  # fmt: skip
    return Figure("margin", "Robustness margin", partial(draw_lines, [panel], "mean score (x 100)", teacher), data)
