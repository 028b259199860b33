"""The verb `distilvec sharpness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.cli.outputs import check_outputs, check_positive, pictures_of
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.files import write_json


def sharpness(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of sweeps.")],
    steps: Annotated[
        Optional[str], typer.Option(help="Steps of kept students, separated by commas; all by default.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Training texts in the loss, in batches as in training.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Draws the texts, dropout masks and random vectors.")] = 0,
    dropout: Annotated[
        Optional[bool],
        typer.Option(
            help="With dropout, the same masks in every pass; by default where the method compares two views."
        ),
    ] = None,
    rho: Annotated[float, typer.Option(help="Radius of the SAM and ASAM perturbations.")] = 0.05,
    trace: Annotated[bool, typer.Option(help="The Hessian's trace as well.")] = True,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="Write all figures here.")] = None,
    figure: Annotated[Optional[Path], typer.Option(help="Write the picture here as SVG, and as PNG beside it.")] = None,
) -> None:
    """How sharp the minimum is, over training: largest Hessian eigenvalue, trace, rise of the loss near by.

    Of the full training objective, in fp32, at every student that a run has kept (train.keep_students). Run again to resume.
    """
    check_outputs([("--json", json_file), *pictures_of(figure, "--figure")])
    check_positive(rho, "--rho")
    chosen = _steps(steps)
    if figure is not None:
        require_extra("report", "--figure")

    from distilvec.cli.terminal import show_sharpness
    from distilvec.pipeline.sharpness import Settings, measure_runs
    from distilvec.report.sections.sharpness import draw_sharpness
    from distilvec.report.write import refresh_report

    settings = Settings(texts=texts, seed=seed, dropout=dropout, rho=rho)
    found = measure_runs(runs, chosen, settings, trace)
    if json_file:
        write_json(json_file, found, key="--json")
    show_sharpness(*found)
    for run in found:
        refresh_report(Path(run["folder"]))
    for path in draw_sharpness(found, figure):
        print(path)


def _steps(text: str | None) -> list[int] | None:
    """ "100,200" as numbers."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise DistilvecError(
            f"[--steps] found {text!r}. Give numbers separated by commas, for example 100,200."
        ) from None
