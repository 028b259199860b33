"""Score against distance to the teacher over the saved checkpoints, with the robustness margin (REDACT, figure 6)."""

from __future__ import annotations

from distilvec.report.figures import lines_figure
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


def _figure(checkpoints: list[Part], fit: Part) -> Figure | None:
    """Checkpoints by distance and score, with the linear fit, its 95 % band and the margin."""
    points = [(point["distance"], point["scores"][AVERAGE]) for point in checkpoints if AVERAGE in point["scores"]]
    if len(points) < 2:
        return None
    lines = [("", "checkpoints", *point) for point in points]
    for name, key in (("linear fit", "score"), ("95 % band, low", "low"), ("95 % band, high", "high")):
        lines += [("", name, row["distance"], row[key]) for row in fit.get("line") or ()]
    if fit.get("margin") is not None:
        lines += [("", "robustness margin", fit["margin"], limit(score for _, score in points)) for limit in (min, max)]
    data = pivot("data-margin", "The checkpoints", ["Step", "distance"], (
        ((point["step"], point["distance"]), name, number_cell(value))
        for point in checkpoints for name, value in point["scores"].items()
    ))  # fmt: skip
    level = None if fit.get("teacher") is None else ("teacher", fit["teacher"])
    look = {"y": "mean score (x 100)", "dots": ["checkpoints"], "level": level}
    return lines_figure(
        "margin", "Robustness margin", lines, "distance to the teacher on validation texts", data, **look
    )
