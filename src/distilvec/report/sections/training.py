"""Losses, learning rate and validation over the steps; stages and settings of the training."""

from __future__ import annotations

from collections.abc import Sequence

from distilvec.report.figures import lines_figure
from distilvec.report.section import Section, folded, get, make_section, notes, pairs
from distilvec.report.tables import Part, make_table
from distilvec.train.metrics import validation_metric

STAGES = {
    "Stage": "name", "Method": "method", "Trained": "trained", "learning rate": ("learning_rate", None),
    "steps": ("steps", 0), "texts": ("texts", 0), "minutes": ("minutes", 1),
}  # fmt: skip
MEASURES = ("distance", "cosine", "similarity_gap", "accuracy", "spearman", "task_loss")
EVALUATIONS = {"Step": ("step", 0), "epoch": ("epoch", 2)} | {
    name.replace("_", " "): (f"eval/{name}", 4) for name in MEASURES
}
TOKENS = "DynamicCKA: {:.1f} teacher tokens per student token (mean of the last fifth)."


def section(report: Part) -> Section | None:
    """Return the curves, the stages, the settings and every evaluation."""
    history, training = get(report, "history"), dict(get(report, "record.training"))
    shipped = str(training.pop("shipped", ""))
    time = time_axis(history, training)
    stages = make_table("stage-table", "Stages of training, in order", training.pop("stages", ()), STAGES)
    evaluations = make_table("history-table", "Every evaluation", filter(validation_metric, history), EVALUATIONS)
    kept = [line["train/kept_tokens"] for line in history if line.get("train/kept_tokens") is not None]
    last = kept[-max(1, len(kept) // 5) :]
    return make_section(
        "Training",
        lines_figure("training", "Training by step and time", training_points(history), top=time),
        lines_figure("gradients", "Share of each term in the gradient", gradient_points(history)),
        notes(
            shipped,
            TOKENS.format(sum(last) / len(last)) if last else "",
            stages,
            pairs({**training, **get(report, "record.metrics")}),
            folded("Every evaluation", evaluations),
        ),
    )


def time_axis(history: Sequence[Part], training: Part) -> tuple[str, list[tuple[float, float]]] | None:
    """Return points (step, minutes) of training, from the rates of the logged lines and the minutes of the record."""
    points, rate = [(0.0, 0.0)], "train/texts_per_second"
    for line in history:
        if line.get(rate):
            (step, spent), now = points[-1], line["step"]
            points += [(now, spent + (now - step) / line[rate])] if now > step else []
    minutes = training.get("minutes")
    if len(points) < 3 or not minutes or "stages" in training:
        return None
    factor = minutes / points[-1][1]
    return "minutes", [(step, factor * spent) for step, spent in points]


def gradient_points(history: Sequence[Part]) -> list[tuple[str, str, int, float]]:
    """Return points of each term's gradient norm in the student over the sum of all terms' norms."""
    points = []
    for line in history:
        norms = {key.removeprefix("train/gradient_"): line[key] for key in line if key.startswith("train/gradient_")}
        total = sum(norms.values())
        points += [("share of norms", name, line["step"], norm / total) for name, norm in norms.items() if total]
    return points


def training_points(history: Sequence[Part]) -> list[tuple[str, str, float, float]]:
    """Return points of the loss and its terms (not of a single one), rates and validation metric."""
    terms = {key: key.removeprefix("train/loss_") for line in history for key in line if key.startswith("train/loss_")}
    shown = {"train/loss": ("loss", "loss")} | {key: ("loss", name) for key, name in terms.items() if len(terms) > 1}
    shown["train/learning_rate"] = ("learning rate", "learning rate")
    shown["train/texts_per_second"] = ("texts per second", "texts per second")
    for metric in filter(None, map(validation_metric, history)):
        shown[f"eval/{metric}"] = (f"validation {metric.replace('_', ' ')}",) * 2
    return [(*shown[key], line["step"], line[key]) for key in shown for line in history if line.get(key) is not None]
