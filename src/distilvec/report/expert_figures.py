"""A student's mixture of experts in pictures, in words and as a table: gates over training, by task and length, and the experts' places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.report.figure_style import (
    DASHES,
    INK,
    MARKERS,
    SERIES,
    figure_style,
    new_figure,
    shortened,
)
from distilvec.report.page_cells import Table, figure, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]
Lines = dict[str, list[tuple[int, float]]]
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++")
_GATE, _FACET = "train/gate_", "train/facet_"
METHOD = (
    "Each set's unit vectors are centred, brought to one size, cut to their {axes} widest axes ({variance:.0f} % of the teacher's "
    "variance) and turned onto the teacher's (orthogonal Procrustes, each text by what the others say): experts are trained through "
    "projections of their own, so their axes are not the teacher's."
)


def expert_names(report: Part) -> list[str]:
    """What to call the experts: their facets, where the method logs a loss for each of them, else "expert 1", ..."""
    logged = {name for line in report.get("history") or () for name in line}
    count = (report.get("experts") or {}).get("count") or sum(
        name.removeprefix(_GATE).isdigit() for name in logged if name.startswith(_GATE)
    )
    line: Part = next(
        (line for line in report.get("history") or () if any(name.startswith(_FACET) for name in line)), {}
    )
    facets = [
        re.sub(r"_(\d+)$", r" (teacher \1)", name.removeprefix(_FACET)) for name in line if name.startswith(_FACET)
    ]
    plain = [f"expert {number}" for number in range(1, count + 1)]
    return [f"{number} {facet}" for number, facet in enumerate(facets, 1)] if len(facets) == count else plain


def routing_lines(history: Rows, names: Sequence[str]) -> dict[str, Lines]:
    """panel[line] = [(step, value), ...]: each expert's mean gate, the gates' entropy, and the losses that the gates weigh."""
    panels: dict[str, Lines] = {
        "mean gate": {},
        "entropy of the gates, relative to equal ones": {},
        "loss of each expert's facet": {},
    }
    for line in history:
        facets = [value for name, value in line.items() if name.startswith(_FACET)]
        for number, name in enumerate(names, 1):
            if (value := line.get(f"{_GATE}{number}")) is not None:
                panels["mean gate"].setdefault(name, []).append((line["step"], value))
            if len(facets) == len(names):
                panels["loss of each expert's facet"].setdefault(name, []).append((line["step"], facets[number - 1]))
        if (value := line.get(f"{_GATE}entropy")) is not None:
            panels["entropy of the gates, relative to equal ones"].setdefault("entropy", []).append(
                (line["step"], value)
            )
    return {title: lines for title, lines in panels.items() if lines}


@figure_style()
def routing_figure(history: Rows, names: Sequence[str]) -> Figure:
    """Gates, their entropy and the facets' losses over the steps."""
    panels = routing_lines(history, names)
    heights = [1.0 if "entropy" in title else 1.5 for title in panels]
    picture = new_figure(0.7 + 1.15 * sum(heights) + 0.2 * _legend_rows(names))
    grid = picture.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights).ravel()
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for name, points in lines.items():
            number = names.index(name) if name in names else 0
            colour = SERIES[number % 6] if name in names else INK
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=DASHES[number % 6], label=name)
        axes.set_title(title, loc="left")
        axes.set_ylim(bottom=0)
        if title != "loss of each expert's facet":
            axes.set_ylim(top=1.03)
    grid[-1].set_xlabel("step")
    picture.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=_across(names))
    return picture


def describe_routing(history: Rows, names: Sequence[str]) -> str:
    """First and last mean gate of every expert, and the last losses."""
    panels = routing_lines(history, names)
    parts = [f"{name} from {line[0][1]:.2f} to {line[-1][1]:.2f}" for name, line in panels["mean gate"].items()]
    text = f"Mean gates over {panels['mean gate'][names[0]][-1][0]:,} steps: {'; '.join(parts)}."
    if entropy := panels.get("entropy of the gates, relative to equal ones"):
        (line,) = entropy.values()
        text += f" Entropy relative to equal gates from {line[0][1]:.2f} to {line[-1][1]:.2f} (1: equal, 0: one expert a text)."
    if losses := panels.get("loss of each expert's facet"):
        text += f" Losses of the facets at the end: {', '.join(f'{name} {line[-1][1]:.3g}' for name, line in losses.items())}."
    return text


@figure_style()
def gates_figure(experts: Part, names: Sequence[str]) -> Figure:
    """What share of the mixture each expert has: one bar a task (or class), one bar a range of lengths."""
    panels = [
        ("by task", [(row["name"], row) for row in experts["groups"]]),
        ("by length, in tokens", _lengths(experts)),
    ]
    sizes = [len(bars) for _, bars in panels]
    picture = new_figure(0.95 + 0.235 * sum(sizes) + 0.2 * _legend_rows(names))
    grid = picture.subplots(2, 1, sharex=True, height_ratios=[size + 0.6 for size in sizes])
    for axes, (title, bars) in zip(grid, panels, strict=True):
        _bars(axes, [row["gates"] for _, row in bars], names)
        axes.set_yticks(range(len(bars)), [f"{shortened(name, 30)} ({row['rows']:,})" for name, row in bars])
        axes.set_title(title, loc="left")
    grid[-1].set_xlabel("mean gate")
    picture.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=_across(names))
    return picture


def describe_gates(experts: Part, names: Sequence[str]) -> str:
    """Overall gates, and for each expert the task and the length at which its gate is greatest and least."""
    overall = ", ".join(f"{name} {value:.2f}" for name, value in zip(names, experts["gates"], strict=True))
    text = f"Mean gates over {experts['rows']:,} texts: {overall}; entropy {experts['entropy']:.2f} of 1, "
    text += f"{100 * experts['decided']:.0f} % of the texts have a gate above 0.9, standard deviation over texts {experts['spread']:.3f}."
    for kind, bars in (
        ("by task", [(row["name"], row) for row in experts["groups"]]),
        ("by length in tokens", _lengths(experts)),
    ):
        if len(bars) < 2:
            continue
        ranges = []
        for number, name in enumerate(names):
            (low, least), *_, (high, most) = sorted(
                ((bar, row["gates"][number]) for bar, row in bars), key=lambda item: item[1]
            )
            ranges.append(f"{name} {least:.2f} ({low}) to {most:.2f} ({high})")
        text += f" {kind.capitalize()}: {'; '.join(ranges)}."
    return text


@figure_style()
def experts_figure(plane: Part, names: Sequence[str]) -> Figure:
    """One panel an expert and one for the mixture: the same texts as the teacher (hollow) and the expert (filled) place them."""
    sets = [*zip(names, plane["experts"], strict=True), ("mixture", plane["mixture"])]
    teacher, kinds = np.asarray(plane["teacher"]), list(dict.fromkeys(plane["groups"]))
    across = 2 if len(sets) <= 6 else 3
    down = -(-len(sets) // across)
    picture = new_figure(0.4 + (2.65 if across == 2 else 2.1) * down + 0.17 * -(-len(kinds) // 2))
    picture.set_layout_engine("constrained", h_pad=0.07)
    panels = picture.subplots(down, across, squeeze=False).ravel()
    places = np.concatenate([teacher, *(np.asarray(found) for _, found in sets)])
    centre, half = (places.min(axis=0) + places.max(axis=0)) / 2, 0.53 * np.ptp(places, axis=0).max()
    for axes, (name, found), likeness in zip(panels, sets, plane["likeness"], strict=False):
        own = np.asarray(found)
        axes.plot(*np.stack([teacher, own], axis=1).transpose(2, 1, 0), color=INK, alpha=0.18, linewidth=0.6)
        for number, kind in enumerate(kinds):
            rows = np.array([group == kind for group in plane["groups"]])
            style = {"color": SERIES[number % 6], "marker": MARKERS[number % 8], "linestyle": "none", "markersize": 4}
            axes.plot(*teacher[rows].T, fillstyle="none", markeredgewidth=0.7, alpha=0.7, **style)
            axes.plot(*own[rows].T, label=kind, alpha=0.9, markeredgewidth=0, **style)
        axes.set_title(name if across == 2 else name.replace(" (", "\n("))
        axes.set(
            xticks=[],
            yticks=[],
            aspect="equal",
            xlim=(centre[0] - half, centre[0] + half),
            ylim=(centre[1] - half, centre[1] + half),
        )
        axes.set_xlabel(f"likeness {likeness:.2f}", fontsize=8.5)
        axes.spines[:].set(visible=True, alpha=0.3)
    for axes in panels[len(sets) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    picture.legend(
        handles, [shortened(label, 28) for label in labels], loc="outside lower center", ncols=2,
        title="hollow: teacher; filled: the same texts by the expert", title_fontsize=8.5,
    )  # fmt: skip
    return picture


def describe_experts(plane: Part, names: Sequence[str]) -> str:
    """How like the teacher's geometry each expert's is, and how that is measured."""
    values = ", ".join(
        f"{name} {value:.2f}" for name, value in zip([*names, "mixture"], plane["likeness"], strict=True)
    )
    text = f"{len(plane['teacher'])} texts in the plane of the teacher's two widest axes. Likeness to the teacher's geometry (1: the same, "
    return (
        f"{text}0: nothing in common): {values}. {METHOD.format(axes=plane['axes'], variance=100 * plane['variance'])}"
    )


def describe_kept_tokens(history: Rows) -> str:
    """How many of the teacher's tokens stand for one of the student's, over the last fifth; "" where the method does not say."""
    values = [
        (line["step"], line["train/kept_tokens"]) for line in history if line.get("train/kept_tokens") is not None
    ]
    if not values:
        return ""
    last = values[-max(1, len(values) // 5) :]
    mean = sum(value for _, value in last) / len(last)
    first = f", after {values[0][1]:.1f} at step {values[0][0]:,}" if len(values) > 1 else ""
    return f"DynamicCKA: a token of the student takes {mean:.1f} tokens of the teacher on average (last fifth of the training{first})."


def gates_table(experts: Part, names: Sequence[str]) -> Table:
    """One row a group of texts or a range of lengths."""
    bars = [
        *((row["name"], row) for row in experts["groups"]),
        *((f"{name} tokens", row) for name, row in _lengths(experts)),
    ]
    rows = [
        [
            *words(name), figure(row["rows"], 0), *(figure(gate, 3) for gate in row["gates"]),
            figure(row["entropy"], 3), figure(100 * row["decided"], 0), figure(row["spread"], 3),
        ]
        for name, row in [*bars, ("all", experts)]
    ]  # fmt: skip
    header = ["Texts", "count", *names, "entropy, of 1", "above 0.9, %", "± over texts"]
    return Table("gate-table", "Mean gates", header, rows[:-1], rows[-1:])


def _across(names: Sequence[str]) -> int:
    """Columns of a legend of experts."""
    return 3 if max(map(len, names)) <= 16 else 2


def _legend_rows(names: Sequence[str]) -> int:
    return -(-len(names) // _across(names))


def _lengths(experts: Part) -> list[tuple[str, Part]]:
    return [
        (f"{row['from']:,} to {row['to']:,}" if row["to"] > row["from"] else f"{row['to']:,}", row)
        for row in experts["lengths"]
    ]


def _bars(axes: Axes, gates: Sequence[Sequence[float]], names: Sequence[str]) -> None:
    """Horizontal bars from 0 to 1, one piece an expert, the first row on top."""
    from matplotlib.colors import to_rgba

    values = np.asarray(gates)
    left = np.zeros(len(values))
    for number, name in enumerate(names):
        axes.barh(
            range(len(values)), values[:, number], left=left, height=0.72, label=name, color=SERIES[number % 6], linewidth=0,
            hatch=HATCHES[number % 6], edgecolor=to_rgba(INK, 0.45),
        )  # fmt: skip
        left += values[:, number]
    axes.set(xlim=(0, 1), ylim=(len(values) - 0.45, -0.55))
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
