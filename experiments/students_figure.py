"""The picture of README.md: what students keep of their teacher, by size, next to what a user would take instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL
from experiments.alternatives import kept_by_static
from experiments.figures import BLUE, ORANGE, svg, text
from experiments.score_table import retained

AVERAGES = {AVERAGE: "average of eight tasks", RETRIEVAL: "retrieval (Cranfield)"}
WIDTH, HEIGHT = 480, 330
LEFT, RIGHT, TOP, BOTTOM = 58, 470, 40, 250  # of the plane, in pixels
SIZES = (3.5, 150.0)  # megabytes, from left to right
SHARES = (71.0, 102.0)  # % of the teacher, from bottom to top


@dataclass(frozen=True)
class Point:
    """A model: size in 10^6 bytes, % of the teacher's averages by name; `name` is written below it."""

    kind: str
    name: str
    megabytes: float
    kept: Mapping[str, float]


def student_points(
    students: Mapping[str, Any], static: Mapping[str, Any], int8: Mapping[str, Any], exports: Mapping[str, Any]
) -> list[Point]:
    """The models of the picture, from the students' records and the files of results/ of these names."""
    teacher = next(iter(students.values()))["teacher"]
    points = [Point("teacher", _millions(teacher), _megabytes(teacher), dict.fromkeys(AVERAGES, 100.0))]
    for title, record in students.items():
        if title.endswith(" layers"):
            continue  # a plain cut; the page has the ones by layers, tokens and rank
        name = title.split(":")[0]
        size = _megabytes(record["student"])
        points.append(Point("student", _millions(record["student"]), size, retained(record)["student"]))
        if name in int8 and name in exports.get("models", {}):
            averages = int8[name]["averages"]
            shares = {
                key: 100 * averages["student"][part] / averages["teacher"][part]
                for key, part in ((AVERAGE, "all"), (RETRIEVAL, "retrieval"))
            }
            points.append(
                Point(
                    "int8",
                    f"{_millions(record['student'])} int8",
                    exports["models"][name]["onnx-int8"]["megabytes"],
                    shares,
                )
            )
    for model in static.values():
        points.append(Point("static", "model2vec", _megabytes(model), kept_by_static(model)))
    return points


def draw_students(path: Path, points: list[Point]) -> None:
    """Draw the shares against the size, in the colour of the page; each model has a point for either average."""
    parts = _axes()
    for point in sorted(points, key=lambda point: point.kind == "teacher"):
        x = _across(point.megabytes)
        color = {"student": BLUE, "int8": ORANGE}.get(point.kind, "currentColor")
        high, low = (_up(point.kept[key]) for key in AVERAGES)
        parts.append(f'<path d="M{x:.1f} {high:.1f} V{low:.1f}" stroke="{color}" opacity=".4"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{high:.1f}" r="5" fill="{color}"/>')
        if low != high:
            parts.append(f'<circle cx="{x:.1f}" cy="{low:.1f}" r="4.5" fill="none" stroke="{color}" stroke-width="2"/>')
        is_teacher = point.kind == "teacher"
        parts.append(text(x, high - 12 if is_teacher else low + 19, "teacher" if is_teacher else point.name))
    path.write_text(svg(WIDTH, HEIGHT, *parts), encoding="utf-8")


def _axes() -> list[str]:
    """Return the lines and words around the points."""
    parts = [f'<path d="M{LEFT} {TOP} V{BOTTOM} H{RIGHT}" fill="none" stroke="currentColor"/>']
    for size in (5, 10, 20, 50, 100):
        parts.append(text(_across(size), BOTTOM + 18, f"{size}"))
    for share in (75, 80, 85, 90, 95, 100):
        y = _up(share)
        parts.append(text(LEFT - 8, y + 4, f"{share}", "end"))
        parts.append(f'<path d="M{LEFT} {y:.1f} H{RIGHT}" stroke="currentColor" opacity=".12"/>')
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 38, "megabytes"))
    parts.append(text(LEFT - 40, 20, "% of all-MiniLM-L6-v2", "start"))
    for x, (key, words) in zip((100, 280), AVERAGES.items(), strict=True):
        look = 'fill="currentColor"' if key == AVERAGE else 'fill="none" stroke="currentColor" stroke-width="2"'
        parts.append(f'<circle cx="{x}" cy="{BOTTOM + 60}" r="4.5" {look}/>')
        parts.append(text(x + 12, BOTTOM + 64, words, "start"))
    return parts


def _across(megabytes: float) -> float:
    """Return the x of a size, on a scale of logarithms."""
    first, last = (math.log(size) for size in SIZES)
    return LEFT + (RIGHT - LEFT) * (math.log(megabytes) - first) / (last - first)


def _up(share: float) -> float:
    """Return the y of a share of the teacher's score, in %."""
    return BOTTOM - (BOTTOM - TOP) * (share - SHARES[0]) / (SHARES[1] - SHARES[0])


def _millions(model: Mapping[str, Any]) -> str:
    """Return a model's parameters, such as 4.8M."""
    return f"{model['parameters'] / 1e6:.1f}M"


def _megabytes(model: Mapping[str, Any]) -> float:
    """The size of a model's fp32 weights."""
    return 4 * float(model["parameters"]) / 1e6
