"""The picture of docs/sizes.md: what students keep of overlap@10 with their teacher, by megabytes and by milliseconds.

    python -m experiments.size_figure RUN [RUN ...] --json results/sizes.json

RUN is a finished run folder, such as those of experiments.design_rule. A second call adds its runs to the file. Speed
is measured in this call, one query at a time and from its text to its vector, the students and their teachers in turn,
on an idle machine. `python -m experiments.readme` draws the picture.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import distilvec
from benchmarks.results import earlier_results
from distilvec.core.files import write_json
from experiments.alternatives import latencies
from experiments.figures import BLUE, ORANGE, svg, text

GREEN = "#3f9b5f"
COLOURS = {"minilm": BLUE, "mpnet": ORANGE, "e5": GREEN}
# Parts of run names, and what the picture says at the smallest student of such a line
KINDS = {
    "mpnet-minilm-english": "layers of MiniLM",
    "mpnet-english": "own layers",
    "minilm-english": "",
    "e5-turkish": "Turkish",
    "e5-ten-languages": "ten languages",
}
NAMES = {"minilm": "all-MiniLM-L6-v2", "mpnet": "all-mpnet-base-v2", "e5": "multilingual-e5-small"}
WIDTH, HEIGHT = 760, 350
TOP, BOTTOM = 30, 250  # of both planes, in pixels
PANELS = {"megabytes": (55, 365, (8.0, 600.0)), "milliseconds": (425, 735, (2.0, 110.0))}  # left, right, first and last
TICKS = {"megabytes": (10, 20, 50, 100, 200, 500), "milliseconds": (2, 5, 10, 20, 50, 100)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    students = {folder.name: student_row(folder) for folder in arguments.runs}
    teachers = {row["teacher"]: row["teacher_model"] for row in students.values()}
    paths = {folder.name: str(folder / "student") for folder in arguments.runs}
    timed = latencies({**paths, **teachers})
    rows = [{**row, "milliseconds": timed["models"][name]["median_ms"]} for name, row in students.items()]
    for name, model in teachers.items():
        size = parameters(model)
        milliseconds = timed["models"][name]["median_ms"]
        rows.append({"teacher": name, "name": name, "parameters": size, "overlap": 1.0, "milliseconds": milliseconds})

    earlier = earlier_results(arguments.json, {"rows": []})
    names = {row["name"] for row in rows}
    rows += [row for row in earlier["rows"] if row["name"] not in names]
    for row in rows:
        row.pop("teacher_model", None)
    write_json(arguments.json, {"machine": timed["machine"], "rows": sorted(rows, key=lambda row: row["name"])})


def student_row(folder: Path) -> dict[str, Any]:
    """Return what a finished run says of its student."""
    run = distilvec.result(folder)
    student, overlap = run.record.student, run.record.overlap
    assert student is not None and overlap is not None
    assert overlap.student is not None and overlap.student.among is not None
    teacher = str(run.recipe.teacher.model)
    return {
        "teacher": Path(teacher).name,
        "teacher_model": teacher,
        "name": folder.name,
        "parameters": student.parameters,
        "overlap": overlap.student.among.mean,
    }


def parameters(model: str) -> int:
    """Return the number of a model's parameters."""
    return sum(weight.numel() for weight in distilvec.load(model, device="cpu").parameters())


def draw_sizes(found: dict[str, Any]) -> str:
    """Return the picture: overlap@10 against both costs, a line for each teacher, kind of texts and layers."""
    parts: list[str] = []
    for axis, (left, right, (first, last)) in PANELS.items():
        parts += plane(axis)
        for group, rows in lines_of(found["rows"]).items():
            colour = COLOURS[group[0]]
            points = [(across(cost(row, axis), left, right, first, last), up(row["overlap"])) for row in rows]
            line = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="1.5" opacity=".55"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>' for x, y in points]
            for number, (row, (x, y)) in enumerate(zip(rows[:-1], points[:-1], strict=True)):
                words = f"{row['parameters'] / 1e6:.0f}M"
                if number == 0 and KINDS[group[1]]:
                    words += f" {KINDS[group[1]]}"
                if number > 0 and group[1] == "mpnet-minilm-english":  # another line begins on its right
                    parts.append(text(x - 9, y + 3, words, "end", font_size="11"))
                else:
                    parts.append(text(x + 8, y + 14, words, "start", font_size="11"))
    for number, (name, colour) in enumerate(COLOURS.items()):
        x = 60 + 225 * number
        parts.append(f'<circle cx="{x}" cy="{BOTTOM + 76}" r="4.5" fill="{colour}"/>')
        teacher = next((row for row in found["rows"] if row["name"] == name), None)
        size = f", {teacher['parameters'] / 1e6:.0f}M" if teacher else ""
        parts.append(text(x + 12, BOTTOM + 80, NAMES[name] + size, "start"))
    return svg(WIDTH, HEIGHT, *parts)


def lines_of(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the students of each teacher and kind of texts by size, their teacher last."""
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    teachers = {row["teacher"]: row for row in rows if row["name"] == row["teacher"]}
    for row in sorted(rows, key=lambda row: row["parameters"]):
        if row["name"] != row["teacher"]:
            kind = next(kind for kind in KINDS if row["name"].startswith(kind))
            lines.setdefault((row["teacher"], kind), []).append(row)
    return {group: [*students, teachers[group[0]]] for group, students in lines.items()}


def plane(axis: str) -> list[str]:
    """Return the lines and words around the points of a panel."""
    left, right, (first, last) = PANELS[axis]
    parts = [f'<path d="M{left} {TOP} V{BOTTOM} H{right}" fill="none" stroke="currentColor"/>']
    words = {"megabytes": "megabytes of fp32 weights", "milliseconds": "milliseconds a query, one CPU thread"}
    parts.append(text((left + right) / 2, BOTTOM + 40, words[axis]))
    parts += [text(across(tick, left, right, first, last), BOTTOM + 18, f"{tick}") for tick in TICKS[axis]]
    for share in (0.4, 0.6, 0.8, 1.0):
        parts.append(text(left - 8, up(share) + 4, f"{share:.1f}", "end"))
        parts.append(f'<path d="M{left} {up(share):.1f} H{right}" stroke="currentColor" opacity=".12"/>')
    if axis == "megabytes":
        parts.append(text(10, 14, "overlap@10: share of the teacher's ten nearest that the student finds", "start"))
    return parts


def cost(row: dict[str, Any], axis: str) -> float:
    """Return a model's megabytes, 10^6 bytes of fp32 weights, or milliseconds."""
    return 4 * row["parameters"] / 1e6 if axis == "megabytes" else float(row["milliseconds"])


def across(value: float, left: float, right: float, first: float, last: float) -> float:
    """Return the x of a cost, on a scale of logarithms."""
    return left + (right - left) * math.log(value / first) / math.log(last / first)


def up(share: float) -> float:
    """Return the y of a overlap@10, from 0.3 to 1.05."""
    return BOTTOM - (BOTTOM - TOP) * (share - 0.3) / 0.75


if __name__ == "__main__":
    main()
