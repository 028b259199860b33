"""The picture of README.md: what students keep of their teacher, by size, next to what a user would take instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL
from experiments.alternatives import kept_by_static
from experiments.score_table import retained

AXES = {AVERAGE: "% of the teacher's average, eight tasks", RETRIEVAL: "% of the teacher's retrieval (Cranfield)"}
LOOKS = {  # kind: legend, marker, colour
    "student": ("students, fp32", "o", "#1f6fb2"),
    "int8": ("the same as int8 ONNX files", "s", "#d1701f"),
    "cut": ("layers cut, without training", "v", "#888888"),
    "static": ("static vectors by model2vec", "^", "#888888"),
    "teacher": ("all-MiniLM-L6-v2, the teacher", "*", "#222222"),
}


@dataclass(frozen=True)
class Point:
    """A model: size in 10^6 bytes, % of the teacher's averages by name; `name` is written next to it."""

    kind: str
    name: str
    megabytes: float
    kept: Mapping[str, float]


def student_points(
    students: Mapping[str, Any], static: Mapping[str, Any], int8: Mapping[str, Any], exports: Mapping[str, Any]
) -> list[Point]:
    """The models of the picture, from the students' records and the files of results/ of these names."""
    found = [Point("teacher", "", _megabytes(next(iter(students.values()))["teacher"]), dict.fromkeys(AXES, 100.0))]
    for title, record in students.items():
        size, kept, name = _megabytes(record["student"]), retained(record), title.split(":")[0]
        found.append(Point("student", name, size, kept["student"]))
        if title.endswith(" layers"):
            found.append(Point("cut", name, size, kept["untrained"]))
        if name in int8 and name in exports.get("models", {}):
            averages = int8[name]["averages"]
            shares = {
                key: 100 * averages["student"][part] / averages["teacher"][part]
                for key, part in ((AVERAGE, "all"), (RETRIEVAL, "retrieval"))
            }
            found.append(Point("int8", name, exports["models"][name]["onnx-int8"]["megabytes"], shares))
    return found + [Point("static", "", _megabytes(model), kept_by_static(model)) for model in static.values()]


def draw_students(path: Path, points: list[Point]) -> None:
    """Draw the shares against the size."""
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, len(AXES), figsize=(10, 4), layout="constrained")
    for axes, (key, label) in zip(grid, AXES.items(), strict=True):
        for kind, (legend, marker, colour) in LOOKS.items():
            own = [point for point in points if point.kind == kind]
            across, up = [point.megabytes for point in own], [point.kept[key] for point in own]
            axes.scatter(across, up, s=90 if marker == "*" else 45, marker=marker, color=colour, label=legend, zorder=2)
        for point in points:
            where: dict[str, Any] = {"xytext": (0, -14), "ha": "center"}
            if point.megabytes < 8:  # the axis is near
                where = {"xytext": (7, -4)}
            elif any(_is_just_below(other, point, key) for other in points):
                where = {"xytext": (-7, -3), "ha": "right"}
            at = (point.megabytes, point.kept[key])
            axes.annotate(point.name, at, textcoords="offset points", fontsize=8, **where)
        axes.set(xscale="log", xlabel="MB of weights", ylabel=label, xlim=(4, 200))
        axes.set_xticks([5, 10, 20, 50, 100], ["5", "10", "20", "50", "100"])
        axes.margins(y=0.12)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _is_just_below(other: Point, point: Point, key: str) -> bool:
    """Whether a point of the same kind and size is so near that a name below would hide it."""
    near = abs(other.megabytes / point.megabytes - 1) < 0.05 and other.kind == point.kind
    return near and 0 < point.kept[key] - other.kept[key] < 1


def _megabytes(model: Mapping[str, Any]) -> float:
    """The size of a model's fp32 weights."""
    return 4 * float(model["parameters"]) / 1e6
