"""How figures look and how they are written: one palette, one size, SVG that takes the page's colours and fonts, PNG for papers.

Text, axes and grid are drawn in INK, a colour nothing else uses. `inline_svg` turns it into `currentColor`, so that a figure
inside a page follows the page from light to dark; files on disk have a white ground and dark ink instead.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.core.errors import explained
from distilvec.core.extras import require_extra
from distilvec.core.files import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.6  # inches; 442 CSS pixels, so that text keeps 10 pixels on a phone 400 pixels wide
PNG_DPI = 150
INK = "#010203"  # becomes currentColor
# Okabe and Ito's palette (Color universal design, 2008) without the yellow and with black as INK. The first four keep a
# contrast of 3 : 1 on white and on #111, the last two only 2.2 : 1 on white; every use adds a marker or a dash of its own.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))
COLUMN_COLOURS = {"teacher": INK, "student": BLUE, "asymmetric": VERMILLION, "untrained": PURPLE}
COLUMN_MARKERS = {"teacher": "*", "student": "o", "asymmetric": "s", "untrained": "<"}

_STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
    "text.parse_math": False,
    "svg.fonttype": "none",
    "axes.formatter.useoffset": False,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Matplotlib's settings for the time of one figure; also a decorator. DistilvecError if matplotlib is not installed."""
    require_extra("report", "figures")
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure of that size in inches that belongs to nobody (no pyplot, no window)."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="compressed")


def write_figure(
    figure: Figure, folder: Path, name: str, description: str, title: str | None = None, key: str = "figures"
) -> dict[str, Any]:
    """Write folder/name.svg and folder/name.png.

    Gives {"name", "title", "description", "svg": the text to put into a page, "files": [paths]}. The same figure gives the
    same bytes. `description` says in words what the picture shows; `key` is for messages about the files.
    """
    svg, png = inline_svg(figure, name, description), io.BytesIO()
    with figure_style():
        figure.savefig(
            png, dpi=PNG_DPI, facecolor="white", format="png", metadata={"Software": None, "Description": description}
        )
    files = [folder / f"{name}.svg", folder / f"{name}.png"]
    with explained(key, folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(files[0], standalone_svg(svg), key)
    write_file(files[1], png.getvalue(), key)
    title = title or name.replace("_", " ").capitalize()
    return {"name": name, "title": title, "description": description, "svg": svg, "files": files}


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an `<svg>` element that can stand in a page with others.

    Text stays text in the page's font, INK is `currentColor`, ids carry the figure's name, there is no style sheet that
    would reach the page, no date, and the element's label is the description.
    """
    import matplotlib

    name = re.sub(r"[^A-Za-z0-9_-]", "-", name)

    buffer = io.StringIO()
    with figure_style(), matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    body = text[text.index("<svg ") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    body = re.sub(r"font: ((?:bold |italic |\d+ )*)([\d.]+px) [^;\"]+", _font, body)  # before matplotlib 3.11
    body = re.sub(r"font-family: [^;\"]+;? ?", "", body)
    body = re.sub(INK, "currentColor", body, flags=re.I)
    width, height = (72 * size for size in figure.get_size_inches())
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width * 4 / 3:.0f}" height="{height * 4 / 3:.0f}" role="img" aria-label="{escape(description)}" '
        'style="max-width: 100%; height: auto; stroke-linejoin: round; stroke-linecap: butt">'
    )
    body = opening + body[body.index(">") + 1 :]
    return re.sub(r"\n\s*\n+", "\n", body).strip()


def standalone_svg(inline: str) -> str:
    """The same picture as a file of its own: white ground, dark ink, a sans-serif font."""
    end = inline.index(">") + 1
    opening = inline[:end].replace(
        'style="', 'color="#1a1a1a" font-family="\'DejaVu Sans\', Verdana, Arial, sans-serif" style="', 1
    )
    return f'<?xml version="1.0" encoding="utf-8"?>\n{opening}\n<rect width="100%" height="100%" fill="#ffffff"/>{inline[end:]}\n'


def _font(found: re.Match[str]) -> str:
    """`font: bold 9px 'DejaVu Sans', ...` without the family, so that the page's font is used."""
    words = found[1].split()
    style = "".join(f"font-style: {word}; " if word == "italic" else f"font-weight: {word}; " for word in words)
    return f"{style}font-size: {found[2]}"


# -- small parts that several figures share ---------------------------------------------------------------------------


def plain_log_axis(axis: Any, values: Sequence[float], scale: float = 1.0) -> None:
    """Ticks at `values` of a logarithmic axis, written as plain numbers, divided by `scale`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    axis.set_major_locator(FixedLocator(list(values)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / scale:,.0f}" if value / scale >= 100 else f"{value / scale:.3g}")
    )
    axis.set_minor_formatter(NullFormatter())


def round_ticks(low: float, high: float) -> list[float]:
    """1, 3, 10, 30, ... from low to high (above 0); over many decades the tens alone."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in ((1, 3) if len(decades) < 6 else (1,))]
    return [tick for tick in ticks if low <= tick <= high]


def spread_ticks(values: Sequence[float]) -> list[float]:
    """At most six of the values, spread over a logarithmic axis, the largest among them."""
    ordered, kept = sorted(set(values), reverse=True), list[float]()
    for value in ordered:
        if not kept or kept[-1] / value >= max(1.4, (ordered[0] / ordered[-1]) ** (1 / 6)):
            kept.append(value)
    return kept[::-1]


def place_labels(
    axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str], others: Sequence[tuple[float, float]] = ()
) -> None:
    """Write a label next to each point [x, y], at whichever of eight sides covers least of the points, of `others` and earlier labels."""
    from matplotlib.transforms import Bbox

    figure: Any = axes.figure
    figure.draw_without_rendering()
    inside, taken = (
        axes.get_window_extent(),
        [Bbox.from_bounds(x - 3, y - 3, 6, 6) for x, y in axes.transData.transform([*points, *others])],
    )
    for point, label in zip(points, labels, strict=True):
        text: Any = axes.annotate(
            label, point, _SIDES[0], textcoords="offset points", fontsize=8, annotation_clip=False
        )
        covered = []
        for side in _SIDES:
            _put(text, side)
            box = text.get_window_extent()
            covered.append(sum(_shared(box, other) for other in taken) + 3 * (_area(box) - _shared(box, inside)))
        _put(text, _SIDES[covered.index(min(covered))])
        taken.append(text.get_window_extent())


_SIDES = (
    (5, 0),
    (-5, 0),
    (0, 5),
    (0, -5),
    (4, 4),
    (-4, 4),
    (4, -4),
    (-4, -4),
)  # right and up of the point, in points of type


def _put(text: Any, side: tuple[int, int]) -> None:
    right, up = side
    text.set_position(side)
    text.set_horizontalalignment("left" if right > 0 else "right" if right < 0 else "center")
    text.set_verticalalignment("bottom" if up > 0 else "top" if up < 0 else "center")


def shortened(text: str, length: int) -> str:
    """At most so many characters, an ellipsis at the end where something was cut."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _shared(box: Any, other: Any) -> float:
    width, height = min(box.x1, other.x1) - max(box.x0, other.x0), min(box.y1, other.y1) - max(box.y0, other.y0)
    return float(max(width, 0) * max(height, 0))


def _area(box: Any) -> float:
    return float(box.width * box.height)
