"""Planes: points of texts and tokens in two dimensions, with labels that keep out of each other's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.core.escape import shortened
from distilvec.report.figures import INK, Points, add_legend, make_grid, series_style
from distilvec.report.hover import add_spots
from distilvec.report.labels import name_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


LONGEST_TITLE, NARROW_TITLE = 52, 30  # characters: over the figure's width, over one panel


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
    groups = list(dict.fromkeys(group for plane in planes for group in plane.groups)) or [""]
    height = {1: 2.4, 2: 2.6}.get(across, 2.1)
    drawing, grid = make_grid(len(planes), across, height, len(groups), sharex=aligned, sharey=aligned)
    handles: dict[str, Any] = {}
    for axes, plane in zip(grid, planes, strict=False):
        handles |= _draw_points(axes, plane, groups)
        texts = plane.texts
        if not texts and len(plane.labels) == len(plane.points):
            texts = plane.labels
        if texts:
            add_spots(axes, plane.points, texts)
        title = " " if plane.labels else shortened(plane.title, NARROW_TITLE)
        axes.set_title(title, loc="left", in_layout=False)
        axes.set_xlabel(plane.note, fontsize=8.5)
        axes.set(xticks=[], yticks=[])
        axes.set_aspect("equal" if aligned else "auto")
        axes.margins(0.05 if aligned else 0.16)
        axes.spines[:].set(visible=True, alpha=0.3)
    add_legend(drawing, handles)

    # Labels are placed in the finished layout. It is made once: it takes longer than all labels of a plane, and a title
    # over several panels would push these apart.
    if any(plane.labels for plane in planes):
        drawing.draw_without_rendering()
        drawing.set_layout_engine(None)
    for axes, plane in zip(grid, planes, strict=False):
        axes.set_title(shortened(plane.title, LONGEST_TITLE if plane.labels else NARROW_TITLE), loc="left")
        if plane.labels:
            labelled = plane.reference if len(plane.reference) else plane.points
            name_points(axes, labelled, plane.labels, plane.points, longest=12)
    return drawing


def _draw_points(axes: Axes, plane: Plane, groups: Sequence[str]) -> dict[str, Any]:
    """Draw the points of a plane group by group, and return their handles for the legend."""
    points, reference = np.asarray(plane.points), np.asarray(plane.reference)
    if len(points) == len(reference):
        gaps = np.full_like(points, np.nan, dtype=float)  # one path for all of them: a path each is half of a page
        joins = np.stack([reference, points, gaps], axis=1).reshape(-1, 2)
        axes.plot(*joins.T, color=INK, alpha=0.3, linewidth=0.7)
    group_of = np.array(plane.groups or [""] * len(points))
    handles = {}
    for number, group in enumerate(groups):
        rows, style = group_of == group, series_style(number, line=False)
        if len(reference):
            hollow = reference[rows] if len(reference) == len(points) else reference
            (handles["teacher, hollow"],) = axes.plot(*hollow.T, fillstyle="none", **style)
        (handles[group or "student"],) = axes.plot(*points[rows].T, markeredgewidth=0, **style)
    return handles
