"""Names inside of figures: of lines at their right ends, of points where they cover least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.core.escape import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = 0.145  # inches that a name takes of a panel's height
LONGEST_NAME = 28  # characters
# offsets of a label from its point, in points of type; of equally good ones the first is taken
SIDES = np.array([(5, 0), (5, 5), (5, -5), (-5, 0), (-5, 5), (-5, -5), (0, 5), (0, -5)])


def name_lines(axes: Axes, ends: Sequence[tuple[str, float, float]], height: float) -> None:
    """Write names to the right of a panel, `height` inches high, each as high as its line's end (x, y) if it can be."""
    if not ends:
        return
    at = [float(axes.transLimits.transform(axes.transScale.transform((x, y)))[1]) for _, x, y in ends]
    order = sorted(range(len(ends)), key=lambda number: at[number])
    step = LINE / height
    heights: list[float] = []
    for number in order:
        lowest = heights[-1] + step if heights else 0.0
        heights.append(max(at[number], lowest))
    excess = heights[-1] - max(1.0, max(at))
    highest = heights[-1] - max(0.0, excess)
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], highest)
        highest = heights[place] - step
    for number, fraction in zip(order, heights, strict=True):
        name = shortened(ends[number][0], LONGEST_NAME)
        axes.text(1.02, fraction, name, transform=axes.transAxes, va="center", fontsize=8.5)


def name_points(axes: Axes, points: Any, names: Sequence[str], others: Any, longest: int) -> None:
    """Write a name next to each point, on the side that covers least of all points, `others` and earlier names.

    The layout of the figure has to be finished.
    """
    centers = axes.transData.transform([*points, *others])  # pixels
    taken = np.stack([centers - 3, centers + 3], axis=1)  # boxes [box, lowest or highest corner, xy]
    panel = axes.get_window_extent().get_points()[None]
    pixels = axes.figure.dpi / 72  # of a point of type
    for point, center, name in zip(points, centers[: len(points)], names, strict=True):
        at = (point[0], point[1])
        text: Any = axes.annotate(shortened(name, longest), at, (0, 0), textcoords="offset points", fontsize=8)
        size = text.get_window_extent().size
        corners = center + pixels * SIDES - size * (1 - np.sign(SIDES)) / 2
        boxes = np.stack([corners, corners + size], axis=1)
        # what lies outside the panel counts three times
        covered = [_overlap(box, taken) - 3 * _overlap(box, panel) for box in boxes]
        best = int(np.argmin(np.round(covered, 3)))  # of equal sides the first
        across, up = np.sign(SIDES[best]).astype(int)
        text.set(
            position=SIDES[best],
            ha=("center", "left", "right")[across],
            va=("center", "bottom", "top")[up],
        )
        taken = np.concatenate([taken, boxes[best][None]])


def _overlap(box: Any, others: Any) -> float:
    """The area that a box [lowest or highest corner, xy] has in common with others, summed over them."""
    common = np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0])
    return float(np.maximum(common, 0).prod(1).sum())
