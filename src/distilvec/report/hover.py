"""Texts of a figure's points: page/figures.js shows them under the pointer and reads them out by arrow keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distilvec.report.tables import json_attribute, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

POINTS = 72  # an inch of an SVG


def add_spots(axes: Any, points: Any, texts: Sequence[str]) -> None:
    """Give the points of a panel, rows of x and y, their texts."""
    axes.spots = [*getattr(axes, "spots", ()), *zip(points, texts, strict=True)]


def spot_text(
    names: Sequence[str], value: float, x: str = "", at: float | None = None, error: float | None = None,
    low: float | None = None, high: float | None = None,
) -> str:  # fmt: skip
    """Return "panel, line: value ± error, at x", each name once."""
    distinct = dict.fromkeys(name for name in names if name)
    text = f"{', '.join(distinct)}: {short(value)}"
    if error:
        text += f" ± {short(error)}"
    if low is not None and high is not None:
        text += f" [{short(low)}, {short(high)}]"
    return text if at is None else f"{text}, {x} {short(at)}"


def short(value: float) -> str:
    """Return a number with four significant digits, whole numbers in full."""
    if value == round(value) or abs(value) >= 1000:
        return number(value, 0)
    return number(float(f"{value:.4g}"), None)


def spot_attribute(drawing: Drawing) -> str:
    """Return ` data-spots='[[x, y, text], ...]'` for the `<svg>` of a drawn figure, in its units; "" without any."""
    height, scale = POINTS * drawing.get_figheight(), POINTS / drawing.dpi
    spots = []
    for axes in drawing.axes:
        for point, text in getattr(axes, "spots", ()):
            x, y = scale * axes.transData.transform(point)
            spots.append([round(float(x), 1), round(height - float(y), 1), text])
    if not spots:
        return ""
    return f" data-spots={json_attribute(spots)}"
