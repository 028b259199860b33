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
    "crossing": ("crossing", 3),
    "from": ("crossing_low", 3),
    "to (margin)": ("margin", 3),
}
ENOUGH_CHECKPOINTS = 8


def section(report: Part) -> Section | None:
    """Return the margin of the mean score, its figure, and the fits by task."""
    fits, points = get(report, "margin.fits"), get(report, "margin.points")
    fit = fits.get(AVERAGE) or {}
    text = " ".join(_sentences(fit, len(points), get(report, "margin.left_out"))) if fit else ""
    rows = [{"name": name, **found} for name, found in fits.items()]
    table = make_table("margin-table", "Score against distance to the teacher; the slope is in points", rows, FITS)
    return make_section("Robustness margin", text, _figure(points, fit), table)


def _sentences(fit: Part, count: int, left_out: Part) -> list[str]:
    """Say the margin, the line's crossing with its interval, and what weakens the fit."""
    if fit.get("margin") is None:
        sentences = ["Robustness margin: not reached."]
    else:
        sentences = [
            f"Robustness margin: a distance of {number(fit['margin'], 3)}. "
            "Below it, the teacher's mean score is within the confidence band of the fit."
        ]
    if fit.get("crossing") is not None and fit.get("margin") is not None:
        ends = f"[{number(fit['crossing_low'], 3)}, {number(fit['margin'], 3)}]"
        sentences.append(f"The line itself meets the teacher's score at {number(fit['crossing'], 3)} {ends}.")
    if count < ENOUGH_CHECKPOINTS:
        sentences.append(
            f"Fitted to {count} checkpoints, which widens the margin: save {ENOUGH_CHECKPOINTS} or more "
            "(train.keep_students)."
        )
    if left_out:
        steps = ", ".join(f"{step:,}" for step in left_out)
        sentences.append(f"Left out as first epochs of the learning rate's cycles: steps {steps}.")
    return sentences


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
