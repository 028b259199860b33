"""The table and the picture of `python -m benchmarks.time_to_quality`: what each way reaches, after which minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from benchmarks.markdown import markdown_table
from experiments.figures import BLUE, ORANGE, svg, text
from experiments.untouched import SIZE, TITLE, Untouched, beside

JOBS = {
    "minilm": "mpnet → all of MiniLM",
    "5M": "mpnet → 5M of its own layers",
    "5M-minilm": "mpnet → 5M of MiniLM's layers",
    "static": "mpnet → static vectors",
}
COLOURS = {"minilm": BLUE, "5M": ORANGE, "5M-minilm": "#3f9b5f", "static": "#9467bd"}
MEASURES = {"overlap": ("overlap@10", 2), "cranfield": ("Cranfield", 1), "xquad-en": ("XQuAD", 1)}

WAYS = {
    "sentence-transformers": "sentence-transformers, its example script",
    "fitted": "the same trainer, behind our fitted layer",
}
TITLES = {
    "overlap": "overlap@10",
    "cranfield": "Cranfield, nDCG@10",
    "xquad-en": "XQuAD, nDCG@10",
}
WIDTH, HEIGHT = 860, 345
LEGEND = 300
TOP, BOTTOM = 45, 235  # of every panel, in pixels
PANEL, FIRST_LEFT, APART = 225, 45, 280
TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)  # minutes


def quality_table(found: Mapping[str, Any], untouched: Untouched) -> str:
    """Return the last student of each side, their rival, and when distilvec reaches the best of the others."""
    head = ["job", "way", "parameters", "minutes", *(title for title, _ in MEASURES.values())]
    rows = []
    students = []
    sentences = []
    for name, job in found.items():
        title = JOBS[name]
        for side, result in job["sides"].items():
            if not result["points"]:
                continue
            last = result["points"][-1]
            size = f"{result['parameters'] / 1e6:.1f} M"
            rows.append([title, WAYS.get(side, side), size, f"{last['minutes']:.1f}", *_values(last)])
            title = ""
            students.append(last)
        sentences += _reached(name, job["sides"])
    first = next(iter(found.values()))
    tasks = ("cranfield", "xquad-en")
    scores = [beside(untouched.scores[task], [student[task] for student in students]) for task in tasks]
    rows.append([TITLE, "", SIZE, "", "", *scores])
    rows.append(["teacher", "", "", "", *_values(first["teacher"])])
    setting = (
        f"Every side has the same {first['texts']:,} texts, {first['epochs']} passes and one CPU thread. The clock "
        "starts with the first command, so it includes the teacher's pass. overlap@10: the share of the teacher's ten "
        "nearest texts that the student finds with its own vectors. Cranfield and XQuAD: nDCG@10, times 100."
    )
    parts = [markdown_table(head, rows, columns="llrrrrr"), setting]
    if sentences:
        parts.append("\n".join(f"- {sentence}" for sentence in sentences))
    return "\n\n".join(parts)


def _values(point: Mapping[str, float]) -> list[str]:
    return [f"{point[key]:.{digits}f}" for key, (_, digits) in MEASURES.items()]


def _reached(name: str, sides: Mapping[str, Any]) -> list[str]:
    """Say for each other side when distilvec reaches the best value that it has."""
    own = sides.get("distilvec", {}).get("points", [])
    sentences = []
    for side, result in sides.items():
        if side == "distilvec" or not own or not result["points"]:
            continue
        parts = []
        for key, (title, digits) in MEASURES.items():
            best = max(result["points"], key=lambda point: point[key])
            reached = next((point["minutes"] for point in own if point[key] >= best[key]), None)
            ours = "not reached" if reached is None else f"reached after {reached:.1f} minutes"
            parts.append(f"{title} {best[key]:.{digits}f} after {best['minutes']:.1f} minutes, {ours}")
        way = WAYS.get(side, side)
        sentences.append(f"{JOBS[name]}: the best of {way} and when distilvec reaches it: {'; '.join(parts)}.")
    return sentences


def first_better(job: Mapping[str, Any], side: str) -> tuple[float, float] | None:
    """Return after how many minutes distilvec's student is better in each measure than the last one of another side,
    and the minutes of that one; None if it never is.
    """
    last = job["sides"][side]["points"][-1]
    for point in job["sides"]["distilvec"]["points"]:
        if all(point[measure] > last[measure] for measure in MEASURES):
            return point["minutes"], last["minutes"]
    return None


def draw_quality(found: Mapping[str, Any]) -> str:
    """Return a panel for each measure: a line for each job and side, by minutes; the teacher's score dashed.

    The color says the job, a hollow point another side than distilvec.
    """
    parts: list[str] = []
    for number, measure in enumerate(MEASURES):
        parts += _panel(found, measure, FIRST_LEFT + number * APART)
    for number, (job, colour) in enumerate(COLOURS.items()):
        x = FIRST_LEFT + 207 * number
        parts.append(_dot(x, LEGEND, colour, is_filled=True))
        parts.append(text(x + 12, LEGEND + 4, JOBS[job], "start", font_size="12"))
    others = "hollow: sentence-transformers' trainer (blue) and model2vec (violet)"
    if any("fitted" in job["sides"] for job in found.values()):
        others += "; dashed: behind our fitted layer"
    parts.append(text(FIRST_LEFT - 5, LEGEND + 26, f"filled: distilvec; {others}", "start", font_size="12"))
    return svg(WIDTH, HEIGHT, *parts)


def _panel(found: Mapping[str, Any], measure: str, left: int) -> list[str]:
    """Return one measure's plane, lines and points."""
    teacher = next(iter(found.values()))["teacher"][measure]
    parts = [
        f'<path d="M{left} {TOP} V{BOTTOM} H{left + PANEL}" fill="none" stroke="currentColor"/>',
        text(left, TOP - 22, TITLES[measure], "start"),
        text(left + PANEL / 2, BOTTOM + 38, "minutes since the first command"),
        text(left + PANEL, _up(1) - 5, "teacher", "end", font_size="11"),
        f'<path d="M{left} {_up(1):.1f} H{left + PANEL}" stroke="currentColor" stroke-dasharray="4 3" opacity=".6"/>',
    ]
    parts += [text(_across(tick, left), BOTTOM + 18, f"{tick:g}") for tick in TICKS]
    for share in (0.25, 0.5, 0.75, 1.0):
        value = f"{share:.2f}" if measure == "overlap" else f"{share * teacher:.0f}"
        parts.append(text(left - 6, _up(share) + 4, value, "end", font_size="11"))
        parts.append(f'<path d="M{left} {_up(share):.1f} H{left + PANEL}" stroke="currentColor" opacity=".12"/>')
    for job, row in found.items():
        for side, result in row["sides"].items():
            points = [(_across(point["minutes"], left), _up(point[measure] / teacher)) for point in result["points"]]
            if points:
                line = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
                dashes = ' stroke-dasharray="5 3"' if side == "fitted" else ""
                parts.append(f'<path d="M{line}" fill="none" stroke="{COLOURS[job]}" stroke-width="1.5"{dashes}/>')
            parts += [_dot(x, y, COLOURS[job], is_filled=side == "distilvec") for x, y in points]
    return parts


def _dot(x: float, y: float, colour: str, is_filled: bool) -> str:
    """Return the point of a student."""
    if is_filled:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _across(minutes: float, left: int) -> float:
    """Return the x of a time, on a scale of logarithms."""
    return left + PANEL * math.log(minutes / TICKS[0]) / math.log(TICKS[-1] / TICKS[0])


def _up(share: float) -> float:
    """Return the y of a share of the teacher's score, with room for names above it."""
    return BOTTOM - (BOTTOM - TOP) * share / 1.15
