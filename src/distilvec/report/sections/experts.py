"""A student's mixture of experts: gates over training, by task and by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distilvec.evaluation.diagnostics import ExpertsReport, GateShares
from distilvec.report.figures import DotPoint, LinePoint, dots_figure, lines_figure
from distilvec.report.section import Figure, PageSection, make_section
from distilvec.report.sections.training import metric_values
from distilvec.report.tables import make_table
from distilvec.report.values import MetricsLine, Report

GATE, FACET = "train/gate_", "train/facet_"


def section(report: Report) -> PageSection | None:
    """Return the figures of a student with experts."""
    names = expert_names(report)
    training = lines_figure("experts_training", "Gates over training", routing_points(report.history, names))
    if report.experts is None:
        return make_section("Experts", training)
    return make_section("Experts", training, gates_figure(report.experts, names))


def expert_names(report: Report) -> list[str]:
    """Return the experts' names: their facets where the method logs a loss for each of them, else "expert 1", ..."""
    if report.experts is not None:
        count = report.experts.count
    else:
        logged = {name.removeprefix(GATE) for line in report.history for name in line if name.startswith(GATE)}
        count = len([name for name in logged if name.isdigit()])
    facets = next((_facets(line) for line in report.history if _facets(line)), {})
    if len(facets) != count:
        return [f"expert {number}" for number in range(1, count + 1)]
    split = []
    for facet in facets:  # such as "pairwise_1", with the number of its teacher; without one for a single teacher
        name, _, teacher = facet.rpartition("_")
        split.append((name, teacher) if name and teacher.isdecimal() else (facet, ""))
    teachers = list(dict.fromkeys(teacher for _, teacher in split if teacher))  # in the recipe's order
    names = []
    for number, (name, teacher) in enumerate(split, 1):
        origin = f" (teacher {teachers.index(teacher) + 1})" if teacher else ""
        names.append(f"{number} {name}{origin}")
    return names


def routing_points(history: Sequence[MetricsLine], names: Sequence[str]) -> list[LinePoint]:
    """Return points over the steps: each expert's mean gate, the gates' entropy, and the losses of the facets."""
    metrics = [("mean gate", name, f"{GATE}{number}") for number, name in enumerate(names, 1)]
    metrics.append(("gate entropy", "gate entropy", f"{GATE}entropy"))
    facets = next((list(_facets(line)) for line in history if _facets(line)), [])
    if len(facets) == len(names):
        for name, facet in zip(names, facets, strict=True):
            metrics.append(("loss of each facet", name, f"{FACET}{facet}"))
    points = []
    for panel, name, metric in metrics:
        points += [LinePoint(panel, name, step, value) for step, value in metric_values(history, metric)]
    return points


def gates_figure(experts: ExpertsReport, names: Sequence[str]) -> Figure | None:
    """Return the mean gates by task and by length in tokens."""
    if not experts.groups:
        return None
    lengths = [row.shares for row in experts.lengths]
    points = []
    for panel, rows in (("by task", experts.groups), ("by length", lengths)):
        for row in rows:
            for name, gate in zip(names, row.gates, strict=True):
                points.append(DotPoint(panel, f"{row.name} ({row.rows:,})", name, gate))
    every_text = GateShares("all", experts.rows, experts.gates, experts.entropy, experts.decided, experts.spread)
    columns: dict[str, Any] = {"Texts": "name", "count": ("rows", 0)}
    columns |= {name: (f"gates.{number}", 3) for number, name in enumerate(names)}
    columns |= {"entropy, of 1": ("entropy", 3), "above 0.9, %": ("decided", 0, 100), "± over texts": ("spread", 3)}
    data = make_table("gate-table", "Mean gates", [*experts.groups, *lengths, every_text], columns, foot=1)
    return dots_figure("experts_gates", "Mean gates by task and length", points, "mean gate", data)


def _facets(line: MetricsLine) -> dict[str, Any]:
    """The losses of the facets in a line of metrics.jsonl."""
    return {name.removeprefix(FACET): value for name, value in line.items() if name.startswith(FACET)}
