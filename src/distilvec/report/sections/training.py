"""Losses, learning rate and validation over the steps; stages and settings of the training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from distilvec.report.figures import Panel, draw_lines
from distilvec.report.section import Figure, Section, folded, get, make_section, pairs
from distilvec.report.tables import Part, Table, make_table, number_cell, pivot
from distilvec.train.metrics import validation_metric

STAGES = {
    "Stage": "name", "Method": "method", "Trained": "trained", "learning rate": ("learning_rate", None), "steps": ("steps", 0),
    "texts": ("texts", 0), "minutes": ("minutes", 1),
}  # fmt: skip
MEASURES = ("distance", "cosine", "similarity_gap", "accuracy", "spearman", "task_loss")
EVALUATIONS = {
    "Step": ("step", 0),
    "epoch": ("epoch", 2),
    **{name.replace("_", " "): (f"eval/{name}", 4) for name in MEASURES},
}


def section(report: Part) -> Section | None:
    """Return the curves, the stages, the settings and every evaluation."""
    history, training = get(report, "history"), dict(get(report, "record.training"))
    panels, stages = training_panels(history), training.pop("stages", ())
    kept = [line["train/kept_tokens"] for line in history if line.get("train/kept_tokens") is not None]
    last = kept[-max(1, len(kept) // 5) :]
    return make_section(
        "Training",
        Figure("training", "Training", partial(draw_lines, panels), lines_table("data-training", panels))
        if panels
        else None,
        f"DynamicCKA: {sum(last) / len(last):.1f} teacher tokens per student token (mean of the last fifth)."
        if last
        else "",
        make_table("stage-table", "Stages of training, in order", stages, STAGES),
        pairs({**training, **get(report, "record.metrics")}),
        folded(
            "Every evaluation",
            make_table("history-table", "Every evaluation", filter(validation_metric, history), EVALUATIONS),
        ),
    )


def training_panels(history: Sequence[Part]) -> list[Panel]:
    """Return panels of the loss and its terms, the learning rate, and the validation metric; a single term is left out."""
    metric = next((name for line in history if (name := validation_metric(line))), None)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {"loss": {}, "learning rate": {}}
    for line in history:
        for key, value in line.items():
            kind, _, name = key.partition("/")
            title = (
                "loss"
                if name.startswith("loss") and kind == "train"
                else "learning rate"
                if name == "learning_rate"
                else ""
            )
            title = f"validation {name.replace('_', ' ')}" if key == f"eval/{metric}" else title
            if title and value is not None:
                label = name.removeprefix("loss_") if title == "loss" else title
                panels.setdefault(title, {}).setdefault(label, []).append((line["step"], value))
    if len(panels["loss"]) == 2 and "loss" in panels["loss"]:
        panels["loss"] = {"loss": panels["loss"]["loss"]}
    return [Panel(title, "step", lines, zero=True) for title, lines in panels.items() if lines]


def lines_table(name: str, panels: Sequence[Panel]) -> Table:
    """Return the points of panels over the steps: one row per step, one column per line."""
    points = ((panel, line, point) for panel in panels for line, found in panel.lines.items() for point in found)
    entries = [
        ((point[0],), line if line == panel.title else f"{panel.title}: {line}", number_cell(point[1], 4))
        for panel, line, point in points
    ]
    return pivot(name, "Values by step", ["Step"], sorted(entries, key=lambda entry: entry[0]))
