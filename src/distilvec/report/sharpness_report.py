"""Sharpness over training as a picture, in words and as a table: of one run, or of several side by side (TALAS, table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.core.errors import DistilvecError
from distilvec.core.escape import visible_tree
from distilvec.core.extras import require_extra
from distilvec.core.log import log
from distilvec.report.figure_style import DASHES, MARKERS, SERIES, figure_style, new_figure, shortened, write_figure
from distilvec.report.page_cells import Table, figure
from distilvec.report.run_files import SHARPNESS, read_run_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Mapping[str, Any]
FILE = SHARPNESS
QUANTITIES = {"lambda_max": "largest eigenvalue", "trace": "trace", "sam": "rise by SAM", "asam": "rise by ASAM"}
NOTE = (
    "The largest algebraic eigenvalue of the Hessian of the full training objective, its trace with one standard error, and by how "
    "much the perturbations of SAM and ASAM raise the loss, on {rows} training texts, {dropout} dropout."
)


def read_sharpness(folder: Path) -> dict[str, Any] | None:
    """A run's sharpness.json, None where there is none; DistilvecError as `read_run_file`."""
    return read_run_file(folder, FILE)


def note(content: Part) -> str:
    """What the numbers of a sharpness.json are, in words."""
    return NOTE.format(rows=content["rows"], dropout="with" if content["dropout"] else "without")


@figure_style()
def sharpness_figure(*runs: Part) -> Figure:
    """One panel a quantity, one line a run, over the epochs; bars at the trace: one standard error."""
    shown = [name for name in QUANTITIES if any(name in point for run in runs for point in run["points"])]
    picture = new_figure(0.5 + 1.9 * -(-len(shown) // 2))
    grid = picture.subplots(-(-len(shown) // 2), 2, squeeze=False).ravel()
    for axes, quantity in zip(grid, shown, strict=False):
        for number, run in enumerate(runs):
            points = [point for point in run["points"] if quantity in point]
            axes.errorbar(
                [_place(point) for point in points], [point[quantity] for point in points],
                yerr=[point["trace_error"] for point in points] if quantity == "trace" else None,
                label=shortened(run["name"], 30), color=SERIES[number % 6], marker=MARKERS[number % 8], linestyle=DASHES[number % 6],
            )  # fmt: skip
        axes.set(title=QUANTITIES[quantity], xlabel="epoch")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}")
        values = [point[quantity] for run in runs for point in run["points"] if quantity in point]
        axes.set_ylim(1.1 * min(0.0, *values), 1.1 * max(0.0, *values))
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    if len(runs) > 1:
        picture.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return picture


def describe_sharpness(*runs: Part) -> str:
    """Every run's largest eigenvalue at its first and last student, and the quantities at the last."""
    sentences = []
    for run in runs:
        first, last = run["points"][0], run["points"][-1]
        others = ", ".join(f"{label} {last[key]:.3g}" for key, label in list(QUANTITIES.items())[1:] if key in last)
        way = f"from {first['lambda_max']:.3g} at epoch {_place(first):.3g} to " if first is not last else ""
        sentences.append(
            f"{run['name']}: largest eigenvalue {way}{last['lambda_max']:.3g} at epoch {_place(last):.3g}; there {others}."
        )
    return "Sharpness of the training objective over the epochs. " + " ".join(sentences)


def sharpness_table(content: Part) -> Table:
    """The page's table: one row a kept student."""
    rows = [
        [
            figure(point["step"], 0), figure(point["epoch"], 2), figure(point["lambda_max"], 3), figure(point.get("trace"), 1),
            figure(point.get("trace_error"), 1), figure(point["sam"], 5), figure(point["asam"], 5), figure(point["loss"], 4),
        ]
        for point in content["points"]
    ]  # fmt: skip
    header = ["Step", "Epoch", "Largest eigenvalue", "Trace", "± standard error", "Rise by SAM", "Rise by ASAM", "Loss"]
    return Table("sharpness-table", "Sharpness, student by student", header, rows, words=0)


def draw_sharpness(runs: Sequence[Part], path: Path | None) -> list[Path]:
    """Write the picture: to `path` (.svg, with .png beside it), or else into the run's figures/, of several runs beside the first."""
    first = Path(runs[0]["folder"])
    place = path or (first / "figures" if len(runs) == 1 else first.resolve().parent) / "sharpness.svg"
    try:
        require_extra("report", "--figure")
    except DistilvecError as error:
        log(f"no figure: {error}")
        return []
    runs, key = visible_tree(runs), "--figure" if path else "figures"
    files: list[Path] = write_figure(
        sharpness_figure(*runs), place.parent, place.stem, describe_sharpness(*runs), key=key
    )["files"]
    return files


def point_cells(point: Part) -> list[str]:
    """A point as text: step, epoch, eigenvalue, trace, rises by SAM and ASAM, loss."""
    trace = f"{point['trace']:,.1f} ± {point['trace_error']:,.1f}" if "trace" in point else "-"
    numbers = [f"{point[name]:.5g}" for name in ("sam", "asam", "loss")]
    return [f"{point['step']:,}", f"{_place(point):g}", f"{point['lambda_max']:.5g}", trace, *numbers]


def _place(point: Part) -> float:
    """Where a point stands on the axis of epochs."""
    return float(point["step"] if point["epoch"] is None else point["epoch"])
