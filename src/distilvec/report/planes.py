"""Planes: points of texts and tokens in two dimensions, with labels that keep out of each other's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.report.figures import INK, Points, add_legend, make_grid, series_style, shortened
from distilvec.report.hover import add_spots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


LONGEST_TITLE = 52  # characters of the figure's width


@dataclass(frozen=True)
class Plane:
    """Points in a plane, in groups; hollow points of a `reference` are joined with the points if they are as many."""

    title: str
    points: Points
    groups: Sequence[str] = ()
    reference: Points = ()
    note: str = ""
    labels: Sequence[str] = ()  # of the reference, else of the points
    texts: Sequence[str] = ()  # of the points, shown under the pointer


def draw_planes(planes: Sequence[Plane], across: int, aligned: bool = True) -> Drawing:
    """Draw planes in a grid; `aligned` planes share their axes. Filled points have a colour and a marker per group."""
    kinds, handles = list(dict.fromkeys(group for plane in planes for group in plane.groups)) or [""], dict[str, Any]()
    drawing, grid = make_grid(
        len(planes), across, {1: 2.4, 2: 2.6}.get(across, 2.1), len(kinds), sharex=aligned, sharey=aligned
    )
    for axes, plane in zip(grid, planes, strict=False):
        points, reference = np.asarray(plane.points), np.asarray(plane.reference)
        if len(points) == len(reference):
            axes.plot(*np.stack([reference, points], axis=1).transpose(2, 1, 0), color=INK, alpha=0.3, linewidth=0.7)
        for number, kind in enumerate(kinds):
            rows, style = (
                np.array([group == kind for group in plane.groups or [""] * len(points)]),
                series_style(number, False),
            )
            if len(reference):
                hollow = reference[rows] if len(rows) == len(reference) else reference
                (handles["teacher, hollow"],) = axes.plot(*hollow.T, fillstyle="none", **style)
            (handles[kind or "student"],) = axes.plot(*points[rows].T, markeredgewidth=0, **style)
        if plane.texts or plane.labels:
            texts = plane.texts or (plane.labels if len(plane.labels) == len(points) else ())
            add_spots(axes, points[: len(texts)], texts)
        axes.set_title(" " if plane.labels else shortened(plane.title, 30), loc="left", in_layout=False)
        axes.set_xlabel(plane.note, fontsize=8.5)
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal" if aligned else "auto")
        axes.margins(0.05 if aligned else 0.16)
        axes.spines[:].set(visible=True, alpha=0.3)
    add_legend(drawing, handles if len(handles) > 1 else {})
    if any(plane.labels for plane in planes):
        drawing.draw_without_rendering()
        drawing.set_layout_engine(None)  # a title over several panels would push them apart
    for axes, plane in zip(grid, planes, strict=False):
        axes.set_title(shortened(plane.title, LONGEST_TITLE if plane.labels else 30), loc="left")
        _add_labels(axes, plane.reference if len(plane.reference) else plane.points, plane.labels, plane.points)
    return drawing


def _add_labels(axes: Axes, points: Points, labels: Sequence[str], others: Points) -> None:
    """Write a label next to each point, on the side that covers least of all points and of the earlier labels.

    The figure has its layout already: it takes longer than all labels of a plane.
    """
    if not labels:
        return
    centers, scale = axes.transData.transform([*points, *others]), axes.figure.dpi / 72  # pixels, pixels a point
    taken, whole = np.stack([centers - 3, centers + 3], 1), axes.get_window_extent().get_points()[None]
    sides = np.array([(right, up) for right in (5, -5, 0) for up in (0, 5, -5) if right or up])  # points of type
    for point, center, label in zip(points, centers[: len(points)], labels, strict=True):
        at = (point[0], point[1])
        text: Any = axes.annotate(shortened(label, 12), at, (0, 0), textcoords="offset points", fontsize=8)
        size = text.get_window_extent().size
        corners = center + scale * sides - size * (1 - np.sign(sides)) / 2
        boxes = np.stack([corners, corners + size], 1)
        covered = [_shared(box, taken) - 3 * _shared(box, whole) for box in boxes]
        best = np.argmin(np.round(covered, 3))  # of equal sides the first
        across, up = np.sign(sides[best])
        text.set(position=sides[best], ha=("center", "left", "right")[across], va=("center", "bottom", "top")[up])
        taken = np.concatenate([taken, boxes[best][None]])


def _shared(box: Any, others: Any) -> float:
    """The area that a box [lowest or highest corner, xy] has in common with others, summed over them."""
    common = np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0])
    return float(np.maximum(common, 0).prod(1).sum())
