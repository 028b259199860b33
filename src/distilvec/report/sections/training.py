"""Losses, learning rate and validation over the steps; stages and settings of the training."""

from __future__ import annotations

from collections.abc import Sequence

from distilvec.report.figures import LineLook, LinePoint, TopAxis, lines_figure
from distilvec.report.record import RunRecord, TrainingRecord
from distilvec.report.section import PageSection, folded, make_section, notes, pairs
from distilvec.report.tables import Table, make_table
from distilvec.report.values import MetricsLine, Report
from distilvec.train.metrics import watched_metric

GRADIENT, LOSS_TERM, VALIDATION = "train/gradient_", "train/loss_", "eval/"
STAGES = {
    "Stage": "name", "Method": "method", "Trained": "trained", "learning rate": ("learning_rate", None),
    "steps": ("steps", 0), "texts": ("texts", 0), "minutes": ("minutes", 1),
}  # fmt: skip
TOKENS = "DynamicCKA: {:.1f} teacher tokens per student token (mean of the last fifth)."


def section(report: Report) -> PageSection | None:
    """Return the curves, the stages, the settings and every evaluation."""
    record = report.record or RunRecord()
    training = record.training or TrainingRecord()
    kept_tokens = [value for _, value in metric_values(report.history, "train/kept_tokens")]
    last = kept_tokens[-max(1, len(kept_tokens) // 5) :]
    return make_section(
        "Training",
        lines_figure(
            "training",
            "Training by step and time",
            training_points(report.history),
            look=LineLook(top=time_axis(report.history, training)),
        ),
        lines_figure("gradients", "Share of each term in the gradient", gradient_points(report.history)),
        notes(
            TOKENS.format(sum(last) / len(last)) if last else "",
            make_table("stage-table", "Stages of training, in order", training.stages, STAGES),
            pairs({**training.settings(), **record.metrics}),
            folded("Every evaluation", evaluation_table(report.history)),
        ),
    )


def evaluation_table(history: Sequence[MetricsLine]) -> Table:
    """Return one row per validation, one column per number."""
    evaluations = [line for line in history if watched_metric(line)]
    columns = {"Step": ("step", 0), "epoch": ("epoch", 2)}
    for line in evaluations:
        for name in line:
            if name.startswith(VALIDATION):
                columns[name.removeprefix(VALIDATION).replace("_", " ")] = (name, 4)
    return make_table("history-table", "Every evaluation", evaluations, columns)


def metric_values(history: Sequence[MetricsLine], name: str) -> list[tuple[int, float]]:
    """Return (step, value) of every line that has a metric."""
    values = []
    for line in history:
        value = line.get(name)
        if isinstance(value, (int, float)):
            values.append((int(line["step"] or 0), float(value)))
    return values


def time_axis(history: Sequence[MetricsLine], training: TrainingRecord) -> TopAxis | None:
    """Return points (step, minutes) of training, from the rates of the logged lines and the minutes of the record."""
    points = [(0.0, 0.0)]
    for step, rate in metric_values(history, "train/texts_per_second"):
        last_step, spent = points[-1]
        if rate and step > last_step:
            points.append((step, spent + (step - last_step) / rate))
    if len(points) < 3 or not training.minutes or training.stages:
        return None
    factor = training.minutes / points[-1][1]
    return TopAxis("minutes", [(step, factor * spent) for step, spent in points])


def gradient_points(history: Sequence[MetricsLine]) -> list[LinePoint]:
    """Return points of each term's gradient norm in the student over the sum of all terms' norms."""
    names = [name for line in history for name in line if name.startswith(GRADIENT)]
    norms = {name.removeprefix(GRADIENT): dict(metric_values(history, name)) for name in dict.fromkeys(names)}
    steps = sorted({step for values in norms.values() for step in values})
    points = []
    for step in steps:
        total = sum(values.get(step, 0.0) for values in norms.values())
        if total:
            for name, values in norms.items():
                if step in values:
                    points.append(LinePoint("share of norms", name, step, values[step] / total))
    return points


def training_points(history: Sequence[MetricsLine]) -> list[LinePoint]:
    """Return points of the loss and its terms (not of a single one), rates and validation metric.

    What was logged once, as in a run of few steps, is no curve.
    """
    terms = list(dict.fromkeys(name for line in history for name in line if name.startswith(LOSS_TERM)))
    panels = {"train/loss": ("loss", "loss")}
    if len(terms) > 1:
        panels |= {name: ("loss", name.removeprefix(LOSS_TERM)) for name in terms}
    panels["train/learning_rate"] = ("learning rate", "learning rate")
    panels["train/texts_per_second"] = ("texts per second", "texts per second")
    for line in history:
        metric = watched_metric(line)
        if metric is not None:
            title = f"validation {metric.title}"
            panels[f"{VALIDATION}{metric.name}"] = (title, title)
    points = []
    for name, (panel, label) in panels.items():
        values = metric_values(history, name)
        if len(values) > 1:
            points += [LinePoint(panel, label, step, value) for step, value in values]
    return points
