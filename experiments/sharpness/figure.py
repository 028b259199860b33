"""Table and figure of sharpness over training (TALAS, table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.core.escape import visible_tree
from distilvec.core.extras import require_extra
from distilvec.core.log import log
from distilvec.core.run_folder import RunFolder
from distilvec.report.figures import LinePoint, lines_figure, write_figure
from distilvec.report.section import Figure
from distilvec.report.tables import Table, make_table

Part = Mapping[str, Any]  # a sharpness.json
QUANTITIES = {"lambda_max": "largest eigenvalue", "trace": "trace", "sam": "rise by SAM", "asam": "rise by ASAM"}
COLUMNS: dict[str, Any] = {
    "Step": ("step", 0), "Epoch": ("epoch", 2), "Largest eigenvalue": ("lambda_max", 3), "Trace": ("trace", 1),
    "± error": ("trace_error", 1), "Rise by SAM": ("sam", 5), "Rise by ASAM": ("asam", 5), "Loss": ("loss", 4),
}  # fmt: skip
NOTE = (
    "Largest eigenvalue and trace (with one standard error) of the Hessian of the training objective, and the rise of "
    "the loss under the perturbations of SAM and ASAM, on {rows} training texts; dropout: {dropout}."
)


def note(content: Part) -> str:
    """Return the meaning of the numbers of a sharpness.json."""
    return NOTE.format(**content)


def sharpness_table(*runs: Part) -> Table:
    """Return one row per checkpoint, runs below each other."""
    points = [{"run": run.get("name"), **point} for run in runs for point in run["points"]]
    columns = COLUMNS if len(runs) == 1 else {"Run": "run", **COLUMNS}
    return make_table("sharpness-table", "Sharpness by checkpoint", points, columns)


def sharpness_figure(*runs: Part) -> Figure:
    """Return one panel per quantity, one line per run, over the epochs; error bars of the trace: one standard error."""
    points = []
    for key, title in QUANTITIES.items():
        for run in runs:
            for point in run["points"]:
                if key in point:
                    x = point["step"] if point["epoch"] is None else point["epoch"]
                    error = point["trace_error"] if key == "trace" else None
                    points.append(LinePoint(title, run["name"], x, point[key], error))
    return lines_figure("sharpness", "Sharpness", points, "epoch", sharpness_table(*runs))


def draw_sharpness(runs: Sequence[Part], path: Path | None) -> list[Path]:
    """Write .svg and .png to `path`, else into the run's figures or next to the first of several runs."""
    try:
        require_extra("report", "--figure")
    except DistilvecError as error:
        log(f"no figure: {error}")
        return []
    first = Path(runs[0]["folder"])
    target = path or (RunFolder(first).figures if len(runs) == 1 else first.resolve().parent) / "sharpness.svg"
    figure = replace(sharpness_figure(*visible_tree(runs)), name=target.stem)
    write_figure(figure, target.parent)
    return [target.with_suffix(".svg"), target.with_suffix(".png")]
