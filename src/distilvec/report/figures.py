"""The figures: one look, two plots (lines, dots), SVG that follows the page's colours, PNG for papers.

Text, axes and grid are drawn in INK, a colour nothing else uses. Inside a page INK is `currentColor`, so that a figure
follows the page from light to dark; files have a white background and dark ink.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.core.errors import explained
from distilvec.core.extras import require_extra
from distilvec.core.files import write_file
from distilvec.report.hover import add_spots, spot_attribute, spot_text
from distilvec.report.section import Figure
from distilvec.report.tables import Table, number_cell, pivot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

SIZE = 4.6  # inches across; 442 CSS pixels, so that text keeps 10 pixels on a phone 400 pixels wide
INK = "#010203"  # becomes currentColor
# Okabe and Ito's palette (Color universal design, 2008) without the yellow and with black as INK. The first four keep a
# contrast of 3 : 1 on white and on #111, the last two only 2.2 : 1 on white; every use adds a marker or a dash.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
MANY = 20  # points of a line that is drawn without markers
Points = Sequence[Sequence[float]]


# -- look and files --------------------------------------------------------------------------------------------------


@contextmanager
def figure_style(**settings: Any) -> Iterator[None]:
    """Apply matplotlib's settings for one figure. DistilvecError if matplotlib is not installed."""
    require_extra("report", "figures")
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            matplotlib.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), False, False)
        )
        matplotlib.rcParams.update(dict.fromkeys(INKED, INK) | settings)
        yield


def write_figure(figure: Figure, folder: Path, key: str = "figures") -> str:
    """Draw a figure, write folder/name.svg and folder/name.png, and return the `<svg>` element for a page.

    The same figure gives the same bytes. In the element text stays text, INK is `currentColor`, and ids are derived
    from the figure's name, so that several figures fit into one page. `key` is for messages about the files.
    """
    svg, png = io.StringIO(), io.BytesIO()
    with figure_style(**{"svg.hashsalt": figure.name}):
        drawing = figure.draw()
        drawing.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        spots = spot_attribute(drawing)
        drawing.set_layout_engine(None)  # the PNG has the SVG's layout, which takes longer than to draw it
        drawing.savefig(png, format="png", facecolor="white", metadata={"Software": None, "Description": figure.text})
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg.getvalue(), flags=re.S)
    body = re.sub(r' id="[\w.]+_\d+"', "", body[body.index("<svg ") :]).strip()
    body = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), body)  # hundredths of a point
    opening, rest = body.replace("<svg ", f'<svg role="img" aria-label="{escape(figure.text)}" ', 1).split(">", 1)
    with explained(key, folder):
        folder.mkdir(parents=True, exist_ok=True)
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    write_file(folder / f"{figure.name}.svg", f"{opening}>{ground}{rest}\n", key)
    write_file(folder / f"{figure.name}.png", png.getvalue(), key)
    return re.sub(INK, "currentColor", f"{opening}{spots}>{rest}", flags=re.I)


def shortened(text: str, length: int) -> str:
    """Return at most `length` characters, with an ellipsis where text was cut."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def plain(value: float, _: object = None) -> str:
    """Return a number for an axis: three significant digits, all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- the plots -------------------------------------------------------------------------------------------------------


def lines_figure(
    name: str, title: str, points: Sequence[Any], x: Any = "step", table: Table | None = None, **look: Any
) -> Figure:
    """Return a figure of points (panel, line, x, y[, error of y]); see `draw_lines` for the look.

    `x` names the x axis, or the axis of each panel. The table has one row per x unless it is given.
    """
    several = len({point[0] for point in points}) > 1
    entries = (
        ((at,), f"{panel}: {line}" if several else line, number_cell(y, 4))
        for panel, line, at, y, *_ in sorted(points, key=itemgetter(2))
    )
    data = table or pivot(f"data-{name}", f"{title}, data", [x if isinstance(x, str) else "x"], entries)
    return Figure(name, title, partial(draw_lines, points, x, **look), data)


def draw_lines(
    points: Sequence[Any], x: Any, y: str = "", log: str = "", dots: Sequence[str] = (), level: Any = None,
    top: Any = None, guide: Any = None,
) -> Drawing:  # fmt: skip
    """Draw panels with one legend; with `y` all panels share a y axis of that name, else each y axis starts at 0.

    Args:
        log: The logarithmic axes, "x" or "xy".
        dots: Lines that are points alone.
        level: Name and height of a horizontal line in each panel.
        guide: Name and points of a line behind the others in each panel.
        top: Name of a second axis at the top, and its points (x, value), both rising.
    """
    panels, names = (list(dict.fromkeys(point[place] for point in points)) for place in (0, 1))
    across, handles = 2 if len(panels) > (1 if y else 3) else 1, dict[str, Any]()
    drawing, grid = make_grid(len(panels), across, 1.9 if across == 2 or y else 1.5, len(names), sharey=bool(y))
    for axes, panel in zip(grid, panels, strict=False):
        x_title = x if isinstance(x, str) else x[panel]
        for place, name in enumerate(names):
            line = [(*point[2:], None)[:3] for point in points if point[:2] == (panel, name)]
            if line:
                at, values, errors = np.array(line, dtype=float).T
                low = np.minimum(errors, 0.9 * values) if "y" in log else errors
                bars = None if np.isnan(errors).all() else [low, errors]
                style = series_style(place, name not in dots, len(line) <= MANY)
                handles[name] = axes.errorbar(at, values, yerr=bars, **style)
                add_spots(axes, line, [spot_text((panel, name), b, x_title, a, error) for a, b, error in line])
        if level is not None:
            handles[level[0]] = axes.axhline(level[1], color=INK, linewidth=1.0, dashes=(3, 2))
        axes.set(title=panel, xlabel=x_title, **{f"{axis}scale": "log" for axis in log})
        for axis, letter in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            _set_ticks(axis, letter in log)
        if guide is not None and len(guide[1]) > 1:
            (handles[guide[0]],) = axes.plot(*np.transpose(guide[1]), color=INK, linewidth=1.0, alpha=0.5, zorder=1)
        if top is not None:
            _add_top_axis(axes, *top)
        if not y:
            axes.set_ylim(1.05 * min(0.0, axes.get_ylim()[0]), 1.05 * max(0.0, axes.get_ylim()[1]))
        axes.tick_params(labelleft=True)
    add_legend(drawing, {name: handle for name, handle in handles.items() if name not in panels or name == "loss"})
    drawing.supylabel(y)
    return drawing


def dots_figure(
    name: str, title: str, points: Sequence[Any], x: str, table: Table | None = None, level: float | None = None
) -> Figure:
    """Return a figure of points (panel, row, name, value[, low, high]); `level`: a vertical line in each panel.

    The table has one row per panel and row unless it is given.
    """
    entries = ((point[:2], point[2], number_cell(point[3], 3)) for point in points)
    data = table or pivot(f"data-{name}", f"{title}, data", ["", "Row"], entries)
    return Figure(name, title, partial(_draw_dots, points, x, level), data)


def _draw_dots(points: Sequence[Any], x: str, level: float | None) -> Drawing:
    names, handles = list(dict.fromkeys(point[2] for point in points)), dict[str, Any]()
    panels = {panel: list(dict.fromkeys(point[1] for point in points if point[0] == panel)) for panel, *_ in points}
    sizes = [len(rows) + 0.6 for rows in panels.values()]
    height = (0.17 + 0.1 * len(names)) * sum(sizes) / len(panels) + 0.3
    drawing, grid = make_grid(len(panels), 1, height, len(names), sharex=True, height_ratios=sizes)
    axes_of = dict(zip(panels, grid, strict=True))
    for panel, row, name, value, *bounds in points:
        place, (low, high) = names.index(name), bounds or (None, None)
        # a mean of equal values may lie outside its own interval by the last digit
        bars = None if low is None or high is None else [[max(0.0, value - low)], [max(0.0, high - value)]]
        y = panels[panel].index(row) + 0.6 / len(names) * (place - (len(names) - 1) / 2)
        handles[name] = axes_of[panel].errorbar(value, y, xerr=bars, **series_style(place, line=False))
        add_spots(axes_of[panel], [(value, y)], [spot_text((panel, row, name), value, low=low, high=high)])
    for (panel, rows), axes in zip(panels.items(), grid, strict=True):
        if level is not None:
            axes.axvline(level, color=INK, linewidth=1.2, dashes=(3, 2))
        axes.set_yticks(range(len(rows)), [shortened(row, 30) for row in rows])
        axes.set(ylim=(len(rows) - 0.45, -0.55), title=panel)
        axes.tick_params(axis="y", length=0)
    grid[len(panels) - 1].set_xlabel(x)
    add_legend(drawing, handles)
    return drawing


def make_grid(count: int, across: int, height: float, names: int, **options: Any) -> tuple[Drawing, Any]:
    """A figure with a grid of panels, `height` inches each, and room for a legend of that many names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    down = max(1, -(-count // across))  # a figure without points is one empty panel
    drawing = Drawing(figsize=(SIZE, 0.5 + height * down + 0.1 * names), layout="compressed")
    FigureCanvasAgg(drawing)  # has one renderer for the sizes of all texts
    grid = drawing.subplots(down, across, squeeze=False, **options).ravel()
    for axes in grid[count:]:
        axes.set_axis_off()
    return drawing, grid


def series_style(number: int, line: bool = True, marker: bool = True) -> dict[str, Any]:
    """Colour, marker and dash of the series with that number."""
    look = {"color": SERIES[number % 6], "linestyle": DASHES[number % 6] if line else "none"}
    return look | {"marker": MARKERS[number % 8] if marker else ""}


def add_legend(drawing: Drawing, handles: Mapping[str, Any]) -> None:
    """Write a legend below the panels, in as many columns as its labels have room for; none for a single series."""
    if len(handles) > 1:
        labels = [shortened(label, 30) for label in handles]
        longest = max(map(len, labels))
        columns = 4 if longest <= 10 else 3 if longest <= 18 else 2
        drawing.legend(list(handles.values()), labels, loc="outside lower center", ncols=min(columns, len(labels)))


def _add_top_axis(axes: Axes, title: str, points: Points) -> None:
    """Add an axis at the top that is piecewise linear in x."""
    pairs = ((points[0], points[-1]), (points[-1], points[0]))
    ends = [[2 * a - b for a, b in zip(*pair, strict=True)] for pair in pairs]  # at the mean rate beyond both ends
    at, values = np.array([ends[0], *points, ends[1]], dtype=float).T
    ways = (partial(np.interp, xp=at, fp=values), partial(np.interp, xp=values, fp=at))
    found = axes.secondary_xaxis("top", functions=ways)
    found.set_xlabel(title)
    _set_ticks(found.xaxis, False)


def _set_ticks(axis: Any, log: bool) -> None:
    """Write the ticks as plain numbers, on a logarithmic axis at 1, 2, 5, 10, ... of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_formatter(FuncFormatter(plain))
    if log:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
        axis.set_minor_locator(NullLocator())
