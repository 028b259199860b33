"""The pictures of the explanations, as SVG in the color of the text around them; values are those of results/.

`python -m experiments.readme` writes them into docs/figures/.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
BLUE, ORANGE = "#4a86c8", "#d07a2d"
_DARK = "<style>@media (prefers-color-scheme: dark) { svg { color: #ddd } }</style>"  # where a picture is a file


def figures() -> dict[str, str]:
    """Return every picture by name."""
    return {"asymmetric": asymmetric(), "margin": margin(), "tables": tables(), "alignment": alignment()}


def svg(width: int, height: int, *parts: str) -> str:
    """Return a picture of these parts."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="13" fill="currentColor"'
    return f"{head} {font}>{_DARK}{''.join(parts)}</svg>\n"


def text(x: float, y: float, words: str, anchor: str = "middle", **style: str) -> str:
    """Return words at a point; `style` gives further attributes."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, color: str, *lines: str) -> str:
    """Return a box with centred lines of words."""
    shape = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{color}" fill-opacity=".18" stroke="{color}"/>'  # noqa: E501
    first = y + height / 2 + 4.5 - 8.5 * (len(lines) - 1)
    return shape + "".join(text(x + width / 2, first + 17 * number, line) for number, line in enumerate(lines))


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return an arrow along an axis."""
    across = abs(to_x - x) > abs(to_y - y)
    sign = 1 if (to_x > x if across else to_y > y) else -1
    tip = (
        [(to_x, to_y), (to_x - 7 * sign, to_y - 4), (to_x - 7 * sign, to_y + 4)]
        if across
        else [(to_x, to_y), (to_x - 4, to_y - 7 * sign), (to_x + 4, to_y - 7 * sign)]
    )
    points = " ".join(f"{a:g},{b:g}" for a, b in tip)
    return f'<path d="M{x:g} {y:g} L{to_x:g} {to_y:g}" stroke="currentColor" fill="none"/><polygon points="{points}"/>'


def asymmetric() -> str:
    """Documents by the teacher, queries by the student, one space."""
    return svg(
        560, 190,
        box(10, 15, 110, 50, ORANGE, "documents"), arrow(120, 40, 160, 40),
        box(160, 15, 130, 50, ORANGE, "teacher", "once, any machine"), arrow(290, 40, 345, 40),
        box(10, 125, 110, 50, BLUE, "a query"), arrow(120, 150, 160, 150),
        box(160, 125, 130, 50, BLUE, "student", "each time, here"), arrow(290, 150, 345, 150),
        box(345, 10, 205, 170, "currentColor"), text(447, 30, "the teacher's space"),
        *(f'<circle cx="{x}" cy="{y}" r="5" fill="{ORANGE}"/>' for x, y in ((385, 60), (410, 105), (520, 70), (500, 125), (455, 82), (475, 150), (390, 155))),  # noqa: E501
        f'<circle cx="440" cy="96" r="6" fill="{BLUE}"/>',
        f'<circle cx="440" cy="96" r="34" fill="none" stroke="{BLUE}" stroke-dasharray="4 3"/>',
        text(440, 146, "nearest", font_size="12"),
    )  # fmt: skip


def alignment() -> str:
    """A text in two tokenizers; pairs have the same characters."""
    teacher = (("▁un", 2), ("believ", 6), ("able", 4), ("▁news", 5))
    student = (("unbe", 4), ("##liev", 4), ("##able", 4), ("news", 5))
    unit, left, parts = 24.0, 90.0, []
    for y, color, name, tokens in ((20, ORANGE, "teacher", teacher), (120, BLUE, "student", student)):
        x = left
        parts.append(text(left - 12, y + 21, name, "end"))
        for token, count in tokens:
            parts.append(box(x + 2, y, unit * count - 4, 34, color, token))
            x += unit * count
    for middle in (left + unit * 10, left + unit * 14.5):
        parts.append(f'<path d="M{middle:g} 54 V120" stroke="currentColor" stroke-width="2"/>')
    for x, to in ((left + unit, left + unit * 2), (left + unit * 5, left + unit * 6)):
        parts.append(f'<path d="M{x:g} 54 L{to:g} 120" stroke="currentColor" stroke-dasharray="3 4" opacity=".55"/>')
    parts.append(text(left + unit * 10 - 8, 92, "pair", "end"))
    parts.append(text(left + unit * 2, 92, "no pair", "start", opacity=".75"))
    return svg(510, 175, *parts)


def margin() -> str:
    """The average of saved checkpoints against their distance, the fitted line and the margin."""
    report = json.loads((ROOT / "results" / "english-three-layers-report.json").read_text(encoding="utf-8"))
    points = [(point["distance"], point["scores"]["average"]) for point in report["margin"]["points"]]
    fit = report["margin"]["fits"]["average"]
    teacher = fit["teacher"]
    distances = [distance for distance, _ in points]
    averages = [average for _, average in points]
    left = min(distances) - 0.02
    right = max(distances) + 0.02
    low = min(averages) - 0.3
    high = max(teacher, *averages) + 0.3

    def column(distance: float) -> float:
        return 60 + 430 * (distance - left) / (right - left)

    def row(average: float) -> float:
        return 20 + 190 * (high - average) / (high - low)

    level = row(teacher)
    edge = column(fit["margin"])
    line = [f"{column(end):.1f} {row(fit['intercept'] + fit['slope'] * end):.1f}" for end in (left, right)]
    parts = [
        '<path d="M60 20 V210 H490" fill="none" stroke="currentColor"/>',
        f'<path d="M60 {level:.1f} H490" stroke="{ORANGE}" stroke-dasharray="6 4"/>',
        text(486, level - 6, f"teacher {teacher:.1f}", "end"),
        f'<path d="M{edge:.1f} 20 V210" stroke="currentColor" stroke-dasharray="2 4"/>',
        text(edge + 8, 200, f"margin {fit['margin']:.2f}", "start"),
        f'<path d="M{line[0]} L{line[1]}" stroke="{BLUE}" stroke-width="2"/>',
    ]
    for distance, average in points:
        parts.append(f'<circle cx="{column(distance):.1f}" cy="{row(average):.1f}" r="4.5" fill="{BLUE}"/>')
    for share in (0.1, 0.5, 0.9):
        tick = round(left + (right - left) * share, 2)
        parts.append(text(column(tick), 228, f"{tick:.2f}"))
    for tick in (low + 0.3, teacher):
        parts.append(text(52, row(tick) + 4, f"{tick:.1f}", "end"))
    parts.append(text(275, 250, "validation distance to the teacher"))
    parts.append(text(18, 115, "average", transform="rotate(-90 18 115)"))
    return svg(510, 265, *parts)


def tables() -> str:
    """The tables of two students of one size: few tokens with full rows, many tokens with short ones."""
    rows = json.loads((ROOT / "results" / "levers.json").read_text(encoding="utf-8"))["rows"]
    students = [row for row in rows if row["column"] == "student"]
    full, short = (
        statistics.mean(row["scores"]["cranfield"] for row in students if row["run"] == run)
        for run in ("trimmed", "rank-56")
    )
    return svg(
        560, 250,
        text(120, 20, "full rows", font_weight="600"), box(40, 95, 160, 24, ORANGE, "2,300 tokens x 384"),
        text(120, 148, f"Cranfield {full:.1f}"),
        text(400, 20, "factorized", font_weight="600"), box(330, 35, 34, 180, BLUE),
        box(380, 95, 160, 34, BLUE, "56 x 384, one layer"), text(372, 117, "x"),
        text(318, 125, "21,000 tokens x 56", transform="rotate(-90 318 125)"),
        text(440, 158, f"Cranfield {short:.1f}"),
        text(280, 240, "students of 4.8 M parameters, nDCG@10"),
    )  # fmt: skip
