"""The figures of a run's report: each function draws one part of report.json and gives a matplotlib Figure.

figure_text.py says the same in words, figure_style.py holds colours, sizes and the writing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.report import expert_figures, figure_text, vocabulary_report
from distilvec.report.figure_data import (
    PRECISION_NAMES,
    batch_series,
    comparable,
    compression_curves,
    history_series,
    length_series,
    retained,
    task_order,
)
from distilvec.report.figure_style import (
    BLUE,
    COLUMN_COLOURS,
    COLUMN_MARKERS,
    DASHES,
    INK,
    MARKERS,
    SERIES,
    VERMILLION,
    figure_style,
    new_figure,
    place_labels,
    plain_log_axis,
    round_ticks,
    shortened,
    spread_ticks,
    write_figure,
)
from distilvec.report.plane_figures import describe_token_planes, sentences_figure, token_planes_figure, tokens_figure
from distilvec.report.sharpness_report import describe_sharpness, sharpness_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
_FADED = 0.28  # opacity of bands
THRESHOLD_MS = 100.0
LABELLED = 6  # runs that fit next to their points; more get a legend


@figure_style()
def scores_figure(scores: Mapping[str, Rows], intervals: Part | None = None) -> Figure:
    """Each task's score as a share of the teacher's, columns side by side, with the paired bootstrap's intervals.

    The axis spans what is near the teacher; a column far below (the untrained one) is written at the left edge.
    Without a teacher, the scores themselves.
    """
    rows = retained(scores, intervals or {})
    tasks, columns = task_order(rows), list(dict.fromkeys(row["column"] for row in rows))
    low, high = _near_range(rows)
    figure = new_figure(1.1 + (0.17 + 0.15 * min(len(columns), 3)) * len(tasks))
    axes = figure.subplots()
    offsets = np.linspace(-0.24, 0.24, len(columns)) if len(columns) > 1 else [0.0]
    for column, offset in zip(columns, offsets, strict=True):
        colour, marker = COLUMN_COLOURS.get(column, INK), COLUMN_MARKERS.get(column, "o")
        axes.plot([], [], marker, color=colour, label=column)
        for row in (row for row in rows if row["column"] == column):
            y = tasks.index(row["task"]) + offset
            if row["value"] < low:
                axes.annotate(
                    f"◂{row['value']:.0f}",
                    (low, y),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    color=colour,
                    fontsize=8,
                )
                continue
            axes.plot(row["value"], y, marker, color=colour)
            if row["low"] is not None:
                axes.hlines(y, max(row["low"], low), row["high"], color=colour, linewidth=1.4)
    if "teacher" in scores:
        axes.axvline(100, color=INK, linewidth=1.2, dashes=(3, 2))
    axes.set_yticks(range(len(tasks)), tasks)
    if "average" in tasks:
        axes.axhline(len(tasks) - 1.5, color=INK, linewidth=0.8, alpha=0.5)
        axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.set(
        xlim=(low, high),
        ylim=(len(tasks) - 0.45, -0.55),
        xlabel="% of the teacher's score" if "teacher" in scores else "score (x 100)",
    )
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper center", ncols=len(columns))
    return figure


@figure_style()
def compression_figure(compression: Part, task: str = "average") -> Figure:
    """Score against the number of dimensions kept: one panel a column, one line a precision (REDACT section 4.2)."""
    curves = compression_curves(compression, task)
    columns, precisions = list(curves), list(dict.fromkeys(name for found in curves.values() for name in found))
    across = min(len(columns), 2)
    down = -(-len(columns) // across)
    figure = new_figure(0.6 + 1.95 * down)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    widths = sorted({width for found in curves.values() for line in found.values() for width in line})
    for axes, column in zip(panels, columns, strict=False):
        for number, precision in enumerate(precisions):
            line = curves[column].get(precision, {})
            style = {"color": SERIES[number % 6], "marker": MARKERS[number % 8], "linestyle": DASHES[number % 6]}
            axes.plot(
                list(line),
                list(line.values()),
                label=PRECISION_NAMES.get(precision, precision),
                markersize=4,
                linewidth=1.4,
                **style,
            )
        axes.set_xscale("log", base=2)
        axes.set_title(column)
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("dimensions kept")
        plain_log_axis(axes.xaxis, spread_ticks(widths))
    for axes in panels[len(columns) :]:
        axes.set_axis_off()
    handles, names = panels[0].get_legend_handles_labels()
    if len(columns) < len(panels):
        panels[-1].legend(handles, names, loc="center", title="precision")
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    figure.supylabel(f"{'mean score' if task == 'average' else task} (x 100)", fontsize=9.5)
    return figure


@figure_style()
def margin_figure(margin: Part, name: str = "average") -> Figure:
    """Checkpoints by distance to the teacher and score, with the linear fit, its band and the robustness margin (REDACT figure 6)."""
    fit = (margin.get("fits") or {}).get(name) or {}
    points = [point for point in margin["points"] if name in point["scores"]]
    figure = new_figure(2.9)
    axes = figure.subplots()
    if line := fit.get("line"):
        at = [row["distance"] for row in line]
        axes.fill_between(
            at,
            [row["low"] for row in line],
            [row["high"] for row in line],
            color=BLUE,
            alpha=_FADED,
            linewidth=0,
            label="95 % band",
        )
        axes.plot(at, [row["score"] for row in line], color=BLUE, label="linear fit")
    axes.plot(
        [point["distance"] for point in points],
        [point["scores"][name] for point in points],
        "o",
        color=VERMILLION,
        label="checkpoints",
    )
    if fit.get("teacher") is not None:
        axes.axhline(fit["teacher"], color=INK, dashes=(3, 2), linewidth=1.2, label="teacher")
    if fit.get("margin") is not None:
        left = axes.get_xlim()[0]
        axes.axvspan(
            min(left, fit["margin"]),
            fit["margin"],
            color="#009E73",
            alpha=_FADED,
            linewidth=0,
            label="robustness margin",
        )
        axes.set_xlim(left=min(left, fit["margin"]))
    axes.set(
        xlabel="distance to the teacher on held-out texts",
        ylabel=f"{'mean score' if name == 'average' else name} (x 100)",
    )
    figure.legend(loc="outside upper center", ncols=3)
    return figure


@figure_style()
def speed_figure(speed: Part) -> Figure:
    """Milliseconds a batch against its size, by role, and against the texts' length (REDACT figure 11); bars: one standard deviation."""
    panels: list[tuple[str, str, str, list[Part]]] = [
        (f"{role}, {tokens} tokens", "texts in the batch", "batch_size", rows)
        for role, tokens, rows in batch_series(speed)
    ]
    if found := length_series(speed):
        size, rows = found
        panels.append(
            (f"by length, {size} {'text' if size == 1 else 'texts'} a batch", "tokens a text", "tokens", rows)
        )
    figure = new_figure(0.75 + 2.0 * -(-len(panels) // 2))
    grid = figure.subplots(-(-len(panels) // 2), 2, sharey=True, squeeze=False).ravel()
    models = list(dict.fromkeys((row["model"], row["backend"]) for *_, rows in panels for row in rows))
    times = [row["mean_ms"] for *_, rows in panels for row in rows]
    ticks = round_ticks(min([*times, THRESHOLD_MS]) / 1.5, max([*times, THRESHOLD_MS]) * 1.5)
    for axes, (title, label, key, rows) in zip(grid, panels, strict=False):
        for model, backend in models:
            _latency_line(
                axes, [row for row in rows if (row["model"], row["backend"]) == (model, backend)], key, model, backend
            )
        axes.axhline(THRESHOLD_MS, color=INK, linewidth=1.0, dashes=(3, 2), label="100 ms")
        axes.set(xscale="log", yscale="log", title=title, xlabel=label)
        plain_log_axis(axes.xaxis, spread_ticks([row[key] for row in rows]))
        axes.tick_params(labelleft=True)
        plain_log_axis(axes.yaxis, ticks)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    handles, names = grid[0].get_legend_handles_labels()
    if len(panels) < len(grid):
        grid[-1].legend(handles, names, loc="center")
    else:
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    figure.supylabel("milliseconds a batch", fontsize=9.5)
    return figure


@figure_style()
def training_figure(history: Rows) -> Figure:
    """Loss terms, learning rate and the distance to the teacher on held-out texts, over the steps."""
    series = history_series(history)
    panels = [(label, lines) for label, lines in series.items() if lines]
    figure = new_figure(0.5 + 1.45 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False).ravel()
    for axes, (label, lines) in zip(grid, panels, strict=True):
        for number, (name, points) in enumerate(lines.items()):
            marker = "o" if label.startswith("held-out") else None
            axes.plot(
                *zip(*points, strict=True),
                label=name,
                color=SERIES[number % 6],
                linestyle=DASHES[number % 6],
                marker=marker,
            )
        axes.set_title(label, loc="left")
        axes.set_ylim(0, axes.get_ylim()[1] * (1 + 0.2 * (-(-len(lines) // 3) - 1)))  # room for the legend
        if len(lines) > 1:
            axes.legend(loc="upper right", ncols=min(len(lines), 3))
        if label == "learning rate":
            axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=False)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    grid[-1].set_xlabel("step")
    return figure


@figure_style()
def leaderboard_figure(runs: Rows, against: str = "parameters") -> Figure:
    """What each run keeps of its teacher against its size or speed (REDACT figure 1).

    A row holds `name`, `retention` (percent), the number named by `against` and, if known, `low` and `high` of the
    retention (an interval or one standard deviation each way). Rows without one of the numbers are left out.
    """
    rows = comparable(runs, against)
    labelled = len(rows) <= LABELLED
    figure = new_figure(3.2 if labelled else 3.2 + 0.18 * -(-len(rows) // 2))
    axes = figure.subplots()
    places = _side_by_side([row[against] for row in rows])
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        colour = SERIES[number % 6]
        if row.get("low") is not None and row.get("high") is not None:
            axes.vlines(place, row["low"], row["high"], color=colour, linewidth=1.2)
        axes.plot(
            place,
            row["retention"],
            MARKERS[number % 8],
            color=colour,
            markersize=6,
            linestyle="none",
            label=shortened(row["name"], 30),
        )
    axes.axhline(100, color=INK, linewidth=1.2, dashes=(3, 2))
    axes.set_xscale("log")
    axes.margins(0.18, 0.12)
    scale = 1e6 if against == "parameters" else 1
    axes.set(xlabel="parameters, millions" if scale > 1 else against.replace("_", " "), ylabel="% of the teacher kept")
    plain_log_axis(axes.xaxis, spread_ticks([row[against] for row in rows]), scale)
    if labelled:
        place_labels(
            axes,
            [(place, row["retention"]) for row, place in zip(rows, places, strict=True)],
            [shortened(row["name"], 26) for row in rows],
        )
    else:
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def all_figures(report: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Draw and write every figure the report has data for (as `write_figure` gives them), the most telling first."""
    found, names = [], expert_figures.expert_names(report)
    for name, title, path, draw, describe in _FIGURES:
        part: Any = report
        for key in path:
            part = (part or {}).get(key)
        if not part or not figure_text.drawable(name, part):
            continue
        extra = [report.get("intervals")] if name == "scores" else [names] if name.startswith("experts") else []
        found.append(write_figure(draw(part, *extra), folder, name, describe(part, *extra), title))
    return found


_FIGURES: tuple[tuple[str, str, tuple[str, ...], Any, Any], ...] = (
    ("scores", "What is kept, task by task", ("scores",), scores_figure, figure_text.describe_scores),
    (
        "compression",
        "Fewer dimensions, fewer bits",
        ("compression",),
        compression_figure,
        figure_text.describe_compression,
    ),
    ("margin", "Robustness margin", ("margin",), margin_figure, figure_text.describe_margin),
    ("speed", "Latency", ("speed",), speed_figure, figure_text.describe_speed),
    (
        "vocabulary",
        "Tokens by language",
        ("vocabulary",),
        vocabulary_report.vocabulary_figure,
        vocabulary_report.describe_vocabulary,
    ),
    ("training", "Training", ("history",), training_figure, figure_text.describe_training),
    ("sharpness", "Sharpness", ("sharpness",), sharpness_figure, describe_sharpness),
    (
        "experts_training",
        "Gates over training",
        ("history",),
        expert_figures.routing_figure,
        expert_figures.describe_routing,
    ),
    (
        "experts_gates",
        "Which expert is asked",
        ("experts",),
        expert_figures.gates_figure,
        expert_figures.describe_gates,
    ),
    (
        "experts",
        "Where the experts place the texts",
        ("experts", "plane"),
        expert_figures.experts_figure,
        expert_figures.describe_experts,
    ),
    (
        "sentences",
        "Where the texts lie",
        ("projections", "sentences"),
        sentences_figure,
        figure_text.describe_sentences,
    ),
    ("tokens", "Where the tokens lie", ("projections", "tokens"), tokens_figure, figure_text.describe_tokens),
    ("token_planes", "Tokens, model by model", ("tokens",), token_planes_figure, describe_token_planes),
)


def _latency_line(axes: Axes, rows: Rows, key: str, model: str, backend: str) -> None:
    """Mean milliseconds with one standard deviation each way, in order of `key`."""
    ordered = sorted(rows, key=lambda row: row[key])
    mean = np.array([row["mean_ms"] for row in ordered])
    spread = np.array([row.get("std_ms") or 0.0 for row in ordered])
    axes.errorbar(
        [row[key] for row in ordered], mean, yerr=[np.minimum(spread, 0.9 * mean), spread], label=f"{model}, {backend}",
        color=COLUMN_COLOURS.get(model, VERMILLION), marker=COLUMN_MARKERS.get(model, "o"), linewidth=1.4, markersize=4,
        linestyle="-" if backend == "pytorch" else "--", fillstyle="full" if backend == "pytorch" else "none",
    )  # fmt: skip


def _near_range(rows: Rows) -> tuple[float, float]:
    """The axis of the retention: all columns but the untrained one, and those of its points that are no further off."""
    near = [
        number
        for row in rows
        if row["column"] != "untrained"
        for number in (row["value"], row["low"], row["high"])
        if number is not None
    ]
    low, high = min(near or [row["value"] for row in rows]), max(near or [row["value"] for row in rows])
    room = max(0.08 * (high - low), 0.5)
    return low - 2 * room, high + room


def _side_by_side(values: Sequence[float]) -> list[float]:
    """Places on a logarithmic axis, equal values 2 % of the axis apart, so that their intervals do not cover each other."""
    step = max((max(values) / min(values)) ** 0.02, 1.005) if values else 1.0
    return [
        value * step ** (values[:number].count(value) - (values.count(value) - 1) / 2)
        for number, value in enumerate(values)
    ]
