"""The figures: one look, two plots (lines, dots), SVG that follows the page's colours, PNG for papers.

Text, axes and grid are drawn in INK, a colour nothing else uses. Inside a page INK is `currentColor`, so that a figure
follows the page from light to dark; files have a white background and dark ink.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distilvec.core.errors import DistilvecError, about
from distilvec.core.escape import shortened
from distilvec.core.extras import require_extra
from distilvec.core.files import write_file
from distilvec.core.log import log
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
SHORT_NAME = 12  # characters of a line's name that a panel of half the width has room for
MANY = 20  # points of a line that is drawn without markers
LINE = 0.145  # inches that a name takes of a panel's height
LONGEST_NAME = 28  # characters
# offsets of a label from its point, in points of type; of equally good ones the first is taken
SIDES = np.array([(5, 0), (5, 5), (5, -5), (-5, 0), (-5, 5), (-5, -5), (0, 5), (0, -5)])
FONT = "'DejaVu Sans', sans-serif"
# Families for characters that DejaVu lacks: of Linux, then of Windows, then of macOS. The first that has a character
# draws it; Latin letters stay DejaVu's.
OTHER_SCRIPTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans CJK TC", "Noto Sans SC", "Noto Sans JP",
    "Noto Sans KR", "Noto Sans TC", "Source Han Sans SC", "Source Han Sans", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
    "Droid Sans Fallback", "IPAGothic", "NanumGothic", "UnDotum",
    "Noto Sans Devanagari", "Lohit Devanagari", "Noto Sans Bengali", "Lohit Bengali", "Noto Sans Tamil", "Lohit Tamil",
    "Noto Sans Telugu", "Lohit Telugu", "Noto Sans Gujarati", "Noto Sans Gurmukhi", "Noto Sans Kannada",
    "Noto Sans Malayalam", "Noto Sans Oriya", "Noto Sans Sinhala", "Noto Sans Thai", "Noto Sans Lao", "Noto Sans Khmer",
    "Noto Sans Myanmar", "Noto Sans Ethiopic", "Noto Sans Tibetan", "Noto Sans Symbols", "Noto Sans Symbols 2",
    "Noto Emoji", "FreeSans", "Unifont",
    "Microsoft YaHei", "Microsoft JhengHei", "SimHei", "SimSun", "Yu Gothic", "Meiryo", "MS Gothic", "Malgun Gothic",
    "Nirmala UI", "Mangal", "Leelawadee UI", "Ebrima", "Segoe UI Symbol",
    "PingFang SC", "Hiragino Sans GB", "Hiragino Sans", "Heiti TC", "Apple SD Gothic Neo", "AppleGothic",
    "Kohinoor Devanagari", "Devanagari Sangam MN", "Kohinoor Bangla", "Tamil Sangam MN", "Kohinoor Telugu", "Thonburi",
    "Arial Unicode MS",
)  # fmt: skip
MISSING_GLYPH = re.compile(r"Glyph (\d+) ")  # the beginning of matplotlib's warning, one for every character
MARKERS_OF_A_LINE = re.compile(r'(<g clip-path="[^"]*")>((?:\s*<use [^>]*/>)+)')  # in an SVG of matplotlib
Points = Sequence[Sequence[float]]


# -- look and files --------------------------------------------------------------------------------------------------


def can_draw(page: str) -> bool:
    """Whether the packages of the extra "report" are there; logs if not."""
    try:
        require_extra("report", page)
    except DistilvecError as error:
        log(f"no {page}: {error}")
        return False
    return True


@contextmanager
def figure_style(**settings: Any) -> Iterator[None]:
    """Apply matplotlib's settings for one figure, and log once which characters no installed font has."""
    require_extra("report", "figures")
    import matplotlib
    from matplotlib.font_manager import fontManager

    with matplotlib.rc_context(), _missing_glyphs_logged():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            matplotlib.rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), False, False)
        )
        installed = {font.name for font in fontManager.ttflist}
        # For a family that is not installed matplotlib warns at every text
        other_scripts = [family for family in OTHER_SCRIPTS if family in installed]
        matplotlib.rcParams["font.family"] = ["sans-serif", *other_scripts]
        matplotlib.rcParams.update(dict.fromkeys(INKED, INK) | settings)
        yield


@contextmanager
def _missing_glyphs_logged() -> Iterator[None]:
    """Keep back matplotlib's warning for every character that no font has, and log one line a process instead."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", MISSING_GLYPH.pattern)
        yield
    characters: dict[str, None] = {}
    for warning in caught:
        glyph = MISSING_GLYPH.match(str(warning.message))
        if glyph is None:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        else:
            characters[chr(int(glyph[1]))] = None
    if characters:
        _log_missing_glyphs("".join(list(characters)[:5]))


_logged_glyphs: list[str] = []  # of this process; a report has many figures with the same labels


def _log_missing_glyphs(characters: str) -> None:
    if _logged_glyphs:
        return
    _logged_glyphs.append(characters)
    log(
        f"figures: no installed font has some characters of the labels, such as {characters}. PNG files show boxes in "
        "their place; pages and SVG files use the browser's fonts. Install a font such as Noto Sans CJK."
    )


def write_figure(figure: Figure, folder: Path | None) -> str:
    """Draw a figure, write folder/name.svg and folder/name.png, and return the `<svg>` element for a page.

    Without a folder nothing is written.

    The same figure gives the same bytes. In the element text stays text, INK is `currentColor`, and ids are derived
    from the figure's name, so that several figures fit into one page.
    """
    svg, png = io.StringIO(), io.BytesIO()
    with figure_style(**{"svg.hashsalt": figure.name}):
        drawing = figure.draw()
        drawing.savefig(svg, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        drawing.set_layout_engine(None)  # the PNG has the SVG's layout, which takes longer than to draw it
        drawing.savefig(png, format="png", facecolor="white", metadata={"Software": None, "Description": figure.text})

    attributes = f'<svg role="img" aria-label="{escape(figure.text)}" '
    opening, content = _page_svg(svg.getvalue()).replace("<svg ", attributes, 1).split(">", 1)
    page = f"{opening}>{content}".replace(INK, "currentColor")
    if folder is None:
        return page
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    with about("figures", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{figure.name}.svg", f"{opening}>{ground}{content}\n")
        write_file(folder / f"{figure.name}.png", png.getvalue())
    return page


def _page_svg(text: str) -> str:
    """Return the `<svg>` element of a file of matplotlib, fit for a page with other figures. It has no setting for it.

    - Its style element would hold for the whole page.
    - Ids with a number (`line2d_1`) are the same in every figure, and nothing refers to them.
    - A hundredth of a point is enough; numbers are a third shorter. Text between tags stays as it is.
    - Every text names all fonts and a rotation by 0, and every marker of a line repeats the line's style.
    """
    element = text[text.index("<svg ") :].strip()
    element = re.sub(r"<style[^>]*>.*?</style>", "", element, flags=re.DOTALL)
    element = re.sub(r' id="[\w.]+_\d+"', "", element)
    element = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), element)
    element = re.sub(r" font-family: 'DejaVu Sans', [^;\">]*;", "", element)
    element = element.replace("<svg ", f'<svg font-family="{FONT}" ', 1)
    element = re.sub(r' transform="rotate\(-0 [^"]*"', "", element)
    element = re.sub(r">\s+<", "><", element)
    return MARKERS_OF_A_LINE.sub(_share_style, element)


def _share_style(markers: re.Match[str]) -> str:
    """Return the markers of a line in a group that has their style, if it is the same."""
    opening, uses = markers.groups()
    styles = set(re.findall(r' style="[^"]*"', uses))
    if len(styles) != 1 or uses.count(" style=") != uses.count("<use"):
        return markers[0]
    (style,) = styles
    return f"{opening}{style}>{uses.replace(style, '')}"


def plain(value: float, _: object = None) -> str:
    """Return a number for an axis: three significant digits, all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# -- the plots -------------------------------------------------------------------------------------------------------


class LinePoint(NamedTuple):
    """A point of a line in a panel; `error`: half the length of its error bar."""

    panel: str
    line: str
    x: float
    y: float
    error: float | None = None


class DotPoint(NamedTuple):
    """A dot in a row of a panel, with the ends of its interval."""

    panel: str
    row: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class LevelLine:
    """A horizontal line in every panel."""

    name: str
    height: float


@dataclass(frozen=True)
class Guide:
    """A line behind the others in every panel."""

    name: str
    points: Points


@dataclass(frozen=True)
class TopAxis:
    """A second axis at the top; its points are (x, value), both rising."""

    title: str
    points: Points


@dataclass(frozen=True)
class LineLook:
    """The look of lines.

    y: name of a y axis that all panels share; without it each panel has its own, which starts at 0
    log: the logarithmic axes, "x" or "xy"
    dots: lines that are points alone
    """

    y: str = ""
    log: str = ""
    dots: Sequence[str] = ()
    level: LevelLine | None = None
    guide: Guide | None = None
    top: TopAxis | None = None


def lines_figure(
    name: str,
    title: str,
    points: Sequence[LinePoint],
    x: str | Mapping[str, str] = "step",
    table: Table | None = None,
    look: LineLook = LineLook(),
) -> Figure:
    """Return a figure of lines.

    `x` names the x axis, or the axis of each panel. The table has one row per x unless it is given.
    """
    if table is None:
        several = len({point.panel for point in points}) > 1
        entries = []
        for point in sorted(points, key=lambda point: point.x):
            column = f"{point.panel}: {point.line}" if several else point.line
            entries.append(((point.x,), column, number_cell(point.y, 4)))
        table = pivot(f"data-{name}", f"{title}, data", [x if isinstance(x, str) else "x"], entries)
    return Figure(name, title, partial(draw_lines, points, x, look), table)


def draw_lines(points: Sequence[LinePoint], x: str | Mapping[str, str], look: LineLook = LineLook()) -> Drawing:
    """Draw panels. Several lines of a panel have their names at their ends, single points theirs next to them."""
    panels = list(dict.fromkeys(point.panel for point in points))
    of_panel = {panel: list(dict.fromkeys(p.line for p in points if p.panel == panel)) for panel in panels}
    lines = list(dict.fromkeys(point.line for point in points))
    named = [name for names in of_panel.values() if len(names) > 1 for name in names]
    longest = max(map(len, named), default=0)
    most_below = 1 if look.y else 3  # more panels stand in two columns, if there is room for the names of their lines
    across = 2 if len(panels) > most_below and longest <= SHORT_NAME else 1
    height = 1.9 if across == 2 or len(panels) == 1 else 1.5
    same_x = isinstance(x, str) and across == 1  # named below the last panel alone
    drawing, grid = make_grid(len(panels), across, height, 0, sharex=same_x, sharey=bool(look.y))
    legend: dict[str, Any] = {}
    single_points: dict[Axes, list[LinePoint]] = {}
    ends_of: dict[Axes, list[tuple[str, float, float]]] = {}
    for place, (axes, panel) in enumerate(zip(grid, panels, strict=False)):
        x_title = x if isinstance(x, str) else x[panel]
        ends = []
        for line in of_panel[panel]:
            of_line = [point for point in points if point.panel == panel and point.line == line]
            number = lines.index(line) if len(of_panel[panel]) > 1 else 0
            handle = _draw_line(axes, of_line, number, look)
            if line not in look.dots:
                ends.append((line, of_line[-1].x, of_line[-1].y))
            elif len(of_line) == 1:
                single_points.setdefault(axes, []).append(of_line[0])
            else:
                legend[line] = handle
        if look.level is not None:
            axes.axhline(look.level.height, color=INK, linewidth=1.0, dashes=(3, 2))
            ends.append((look.level.name, of_line[-1].x, look.level.height))
        axes.set(title=panel, xlabel="" if same_x and panel != panels[-1] else x_title)
        axes.set(**{f"{letter}scale": "log" for letter in look.log})
        _set_ticks(axes.xaxis, "x" in look.log)
        _set_ticks(axes.yaxis, "y" in look.log)
        if look.guide is not None and len(look.guide.points) > 1:
            style = {"color": INK, "linewidth": 1.0, "alpha": 0.5, "zorder": 1}
            (legend[look.guide.name],) = axes.plot(*np.transpose(look.guide.points), **style)
        if look.top is not None and place < across:
            _add_top_axis(axes, look.top)
        if not look.y:
            low, high = axes.get_ylim()
            axes.set_ylim(1.05 * min(0.0, low), 1.05 * max(0.0, high))
        axes.tick_params(labelleft=True)
        if len(ends) > 1 or axes in single_points:
            ends_of[axes] = ends
    for axes, ends in ends_of.items():  # the last panel can have changed an axis that all share
        name_lines(axes, ends, 0.7 * height)
    add_legend(drawing, legend, least=1)
    drawing.supylabel(look.y)
    if single_points:  # their names are placed in the finished layout
        drawing.draw_without_rendering()
        drawing.set_layout_engine(None)
    for axes, named_points in single_points.items():
        places = [(point.x, point.y) for point in named_points]
        name_points(axes, places, [point.line for point in named_points])
    return drawing


def _draw_line(axes: Axes, points: Sequence[LinePoint], number: int, look: LineLook) -> Any:
    """Draw a line with its error bars, and return its handle for the legend."""
    x, y = np.array([(point.x, point.y) for point in points], dtype=float).T
    bars = None
    if any(point.error is not None for point in points):
        errors = np.array([np.nan if point.error is None else point.error for point in points])
        low = np.minimum(errors, 0.9 * y) if "y" in look.log else errors  # a logarithm ends above 0
        bars = [low, errors]
    style = series_style(number, points[0].line not in look.dots, len(points) <= MANY)
    return axes.errorbar(x, y, yerr=bars, **style)


def dots_figure(
    name: str, title: str, points: Sequence[DotPoint], x: str, table: Table | None = None, level: float | None = None
) -> Figure:
    """Return a figure of dots; `level`: a vertical line in each panel. By default the table has one row per row."""
    if table is None:
        entries = (((point.panel, point.row), point.name, number_cell(point.value, 3)) for point in points)
        table = pivot(f"data-{name}", f"{title}, data", ["", "Row"], entries)
    return Figure(name, title, partial(_draw_dots, points, x, level), table)


def _draw_dots(points: Sequence[DotPoint], x: str, level: float | None) -> Drawing:
    names = list(dict.fromkeys(point.name for point in points))
    rows_of: dict[str, list[str]] = {}
    for point in points:
        rows = rows_of.setdefault(point.panel, [])
        if point.row not in rows:
            rows.append(point.row)
    sizes = [len(rows) + 0.6 for rows in rows_of.values()]
    height = (0.17 + 0.1 * len(names)) * sum(sizes) / len(sizes) + 0.3
    drawing, grid = make_grid(len(rows_of), 1, height, len(names), sharex=True, height_ratios=sizes)
    axes_of = dict(zip(rows_of, grid, strict=True))

    handles: dict[str, Any] = {}
    for point in points:
        axes, number = axes_of[point.panel], names.index(point.name)
        y = rows_of[point.panel].index(point.row) + 0.6 / len(names) * (number - (len(names) - 1) / 2)
        bars = None
        if point.low is not None and point.high is not None:
            # a mean of equal values may lie outside its own interval by the last digit
            bars = [[max(0.0, point.value - point.low)], [max(0.0, point.high - point.value)]]
        handles[point.name] = axes.errorbar(point.value, y, xerr=bars, **series_style(number, line=False))

    for panel, axes in axes_of.items():
        rows = rows_of[panel]
        if level is not None:
            axes.axvline(level, color=INK, linewidth=1.2, dashes=(3, 2))
        axes.set_yticks(range(len(rows)), [shortened(row, 30) for row in rows])
        axes.set(ylim=(len(rows) - 0.45, -0.55), title=panel)
        axes.tick_params(axis="y", length=0)
    grid[len(rows_of) - 1].set_xlabel(x)
    add_legend(drawing, handles)
    return drawing


def make_grid(count: int, across: int, height: float, names: int, **options: Any) -> tuple[Drawing, Any]:
    """A figure with a grid of panels, `height` inches each, and room for a legend of that many names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    down = max(1, math.ceil(count / across))  # a figure without points is one empty panel
    drawing = Drawing(figsize=(SIZE, 0.5 + height * down + 0.1 * names), layout="compressed")
    FigureCanvasAgg(drawing)  # has one renderer for the sizes of all texts
    grid = drawing.subplots(down, across, squeeze=False, **options).ravel()
    for axes in grid[count:]:
        axes.set_axis_off()
    return drawing, grid


def series_style(number: int, line: bool = True, marker: bool = True) -> dict[str, Any]:
    """Colour, marker and dash of the series with that number."""
    return {
        "color": SERIES[number % len(SERIES)],
        "linestyle": DASHES[number % len(DASHES)] if line else "none",
        "marker": MARKERS[number % len(MARKERS)] if marker else "",
    }


def add_legend(drawing: Drawing, handles: Mapping[str, Any], least: int = 2) -> None:
    """Write a legend of `least` names or more below the panels, in as many columns as they have room for."""
    if len(handles) < least:
        return
    labels = [shortened(label, 30) for label in handles]
    longest = max(map(len, labels))
    columns = 2
    if longest <= 10:
        columns = 4
    elif longest <= 18:
        columns = 3
    drawing.legend(list(handles.values()), labels, loc="outside lower center", ncols=min(columns, len(labels)))


def _add_top_axis(axes: Axes, top: TopAxis) -> None:
    """Add an axis at the top that is piecewise linear in x."""
    first, last = np.asarray(top.points[0]), np.asarray(top.points[-1])
    # one more point on either side, at the mean rate: the axes are wider than the points
    x, values = np.array([2 * first - last, *top.points, 2 * last - first], dtype=float).T
    to_value, to_x = partial(np.interp, xp=x, fp=values), partial(np.interp, xp=values, fp=x)
    axis = axes.secondary_xaxis("top", functions=(to_value, to_x))
    axis.set_xlabel(top.title)
    _set_ticks(axis.xaxis, False)


def _set_ticks(axis: Any, log: bool) -> None:
    """Write the ticks as plain numbers, on a logarithmic axis at 1, 2, 5, 10, ... of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_formatter(FuncFormatter(plain))
    if log:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=7))
        axis.set_minor_locator(NullLocator())


# -- names inside of figures: of lines at their right ends, of points where they cover least ---------------------------


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


def name_points(axes: Axes, points: Points, names: Sequence[str]) -> None:
    """Write a name next to each point, on the side that covers least of all points and earlier names.

    The layout of the figure has to be finished.
    """
    centers = axes.transData.transform(points)  # pixels
    taken = np.stack([centers - 3, centers + 3], axis=1)  # boxes [box, lowest or highest corner, xy]
    panel = axes.get_window_extent().get_points()[None]
    pixels = axes.figure.dpi / 72  # of a point of type
    for point, center, name in zip(points, centers, names, strict=True):
        at = (point[0], point[1])
        text: Any = axes.annotate(shortened(name, LONGEST_NAME), at, (0, 0), textcoords="offset points", fontsize=8)
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
