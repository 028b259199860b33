"""A student's mixture of experts: gates over training, by task and length, and the experts' outputs in the plane."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from distilvec.report.figures import dots_figure, lines_figure
from distilvec.report.section import Figure, Section, get, make_section
from distilvec.report.sections.projections import plane_figure
from distilvec.report.tables import Part, make_table

GATE, FACET = "train/gate_", "train/facet_"
LIKENESS = (
    "Likeness is the correlation with the teacher's geometry: unit vectors on their {axes} largest axes "
    "({variance:.0%} of the teacher's variance), aligned by orthogonal Procrustes."
)


def section(report: Part) -> Section | None:
    """Return the figures of a student with experts."""
    experts, plane, names = get(report, "experts"), get(report, "experts.plane"), expert_names(report)
    training = lines_figure("experts_training", "Gates over training", routing_points(get(report, "history"), names))
    outputs, raw, text = None, None, ""
    if plane.get("teacher"):
        sets = {**dict(zip(names, plane["experts"], strict=True)), "mixture": plane["mixture"]}
        notes = {name: f"likeness {value:.2f}" for name, value in zip(sets, plane["likeness"], strict=True)}
        outputs = plane_figure("experts", "Texts by each expert", {"teacher": plane["teacher"], **sets}, notes, plane)
        text = LIKENESS.format(**plane)
        own = {"teacher": plane["teacher"], **dict(zip(sets, plane["raw"], strict=True))}
        raw = plane_figure("experts_raw", "Texts by each expert, own axes", own, {}, plane, raw=True)
    return make_section("Experts", training, gates_figure(experts, names), outputs, text, raw)


def expert_names(report: Part) -> list[str]:
    """Return the experts' names: their facets where the method logs a loss for each of them, else "expert 1", ..."""
    lines = get(report, "history")
    logged = {name.removeprefix(GATE) for line in lines for name in line if name.startswith(GATE)}
    count = get(report, "experts.count") or sum(name.isdigit() for name in logged)
    facets = next((found for line in lines if (found := _facets(line))), {})
    if len(facets) != count:
        return [f"expert {number}" for number in range(1, count + 1)]
    split = [re.fullmatch(r"(.+?)(?:_([0-9]+))?", facet) for facet in facets]
    pairs = [(match[1], match[2] or "") for match in split if match is not None]
    teachers = list(dict.fromkeys(teacher for _, teacher in pairs))  # in the recipe's order
    origins = [f" (teacher {teachers.index(teacher) + 1})" if teacher else "" for _, teacher in pairs]
    return [f"{number} {name}{of}" for number, ((name, _), of) in enumerate(zip(pairs, origins, strict=True), 1)]


def routing_points(history: Sequence[Part], names: Sequence[str]) -> list[tuple[str, str, float, float]]:
    """Return points over the steps: each expert's mean gate, the gates' entropy, and the losses of the facets."""
    points = []
    for line in history:
        gates = [("mean gate", name, line.get(f"{GATE}{number}")) for number, name in enumerate(names, 1)]
        losses = _facets(line).values() if len(_facets(line)) == len(names) else ()
        found = [
            *gates,
            ("gate entropy", "gate entropy", line.get(f"{GATE}entropy")),
            *(("loss of each facet", *pair) for pair in zip(names, losses, strict=False)),
        ]
        points += [(panel, name, line["step"], value) for panel, name, value in found if value is not None]
    return points


def gates_figure(experts: Part, names: Sequence[str]) -> Figure | None:
    """Return the mean gates by task and by length in tokens."""
    if not experts.get("groups"):
        return None
    lengths = [{**row, "name": f"{row['from']:,} to {row['to']:,} tokens"} for row in experts["lengths"]]
    points = [
        (title, f"{row['name']} ({row['rows']:,})", name, gate)
        for title, rows in (("by task", experts["groups"]), ("by length", lengths)) for row in rows
        for name, gate in zip(names, row["gates"], strict=True)
    ]  # fmt: skip
    gates: dict[str, Any] = {name: (f"gates.{number}", 3) for number, name in enumerate(names)}
    shares: dict[str, Any] = {
        "entropy, of 1": ("entropy", 3),
        "above 0.9, %": ("decided", 0, 100),
        "± over texts": ("spread", 3),
    }
    rows, columns = (
        [*experts["groups"], *lengths, {**experts, "name": "all"}],
        {"Texts": "name", "count": ("rows", 0), **gates, **shares},
    )
    data = make_table("gate-table", "Mean gates", rows, columns, foot=1)
    return dots_figure("experts_gates", "Mean gates by task and length", points, "mean gate", data)


def _facets(line: Part) -> dict[str, Any]:
    """The losses of the facets in a line of metrics.jsonl."""
    return {name.removeprefix(FACET): value for name, value in line.items() if name.startswith(FACET)}
