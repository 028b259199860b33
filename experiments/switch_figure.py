"""The picture of README and docs/switch.md: ways to answer queries on an index that is there, by what they keep.

`python -m experiments.readme` draws it from results/switch.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures import BLUE, ORANGE, svg, text
from experiments.switch import best_first

WIDTH, LINE = 520, 40  # narrow, so that the words can be read on a phone
LEFT, RIGHT, TOP = 8, 500, 62  # of the plane, in pixels


def draw_switch(results: Mapping[str, Any]) -> str:
    """Return the picture for the index of the larger maker: a line a way, overlap@10 and the share of nDCG@10."""
    ways = best_first(results["mpnet"]["rows"])
    whole = next(way.ndcg for way in ways if way.name == "maker")
    bottom = TOP + LINE * len(ways)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = _across(share)
        parts.append(f'<path d="M{x:.1f} {TOP - 14} V{bottom - 8}" stroke="currentColor" opacity=".15"/>')
        parts.append(text(x, bottom + 10, f"{share:g}", "start" if share == 0 else "middle"))
    for number, way in enumerate(ways):
        y = TOP + LINE * number
        parts.append(text(LEFT, y + 4, way.title.replace("`", ""), "start", font_size="13"))
        parts.append(_dot(way.overlap, y + 17, BLUE))
        parts.append(_dot(way.ndcg / whole, y + 17, ORANGE))
    for y, colour, words in (
        (14, BLUE, "overlap@10 with the index's own model"),
        (34, ORANGE, "nDCG@10, share of the own model's"),
    ):
        parts.append(f'<circle cx="{LEFT + 6}" cy="{y}" r="5" fill="{colour}"/>')
        parts.append(text(LEFT + 18, y + 4, words, "start"))
    return svg(WIDTH, bottom + 20, *parts)


def _dot(share: float, y: float, colour: str) -> str:
    return f'<circle cx="{_across(share):.1f}" cy="{y}" r="5" fill="{colour}"/>'


def _across(share: float) -> float:
    """The place of a share from 0 to 1.1 on the page."""
    return LEFT + (RIGHT - LEFT) * share / 1.1
