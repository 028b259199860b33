"""Sharpness over the course of training, measured at a run's saved checkpoints.

A run's `sharpness.json` has format, fingerprint, name, method, update, settings, rows (texts in the loss), dropout, and
`points`, one per checkpoint: step, epoch, loss, lambda_max, residual, lambda_min, products, sam, asam, seconds, and
with `trace` also trace and trace_error. Points are written one by one. The same settings resume, others start again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from distilvec.config.recipe import fingerprint
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.log import progress
from distilvec.evaluation.curvature import (
    gradient,
    hessian_product,
    hutchinson_trace,
    largest_eigenvalue,
    loss_value,
    rise,
)
from distilvec.pipeline.loss_landscape import Landscape, Landscapes
from distilvec.pipeline.results import RunSummary, load_runs
from distilvec.report.run_files import SHARPNESS, read_run_file
from distilvec.train.metrics import read_metrics

FORMAT = 1
USUAL_PRODUCTS = 15  # what Lanczos takes as a rule, for the time left
Point = dict[str, Any]
Report = Callable[[int, str], None]  # (passes over the texts so far, note)


@dataclass(frozen=True)
class Settings:
    """Settings of a measurement: `texts` of training, drawn by `seed`; `rho` is the radius of SAM and ASAM.

    `dropout` None: on, with the same masks in every pass, for methods that compare two views; else off. `tolerance` is
    relative, of the eigenvalue's residual; `draws` counts the random vectors of the trace.
    """

    texts: int = 256
    seed: int = 0
    dropout: bool | None = None
    rho: float = 0.05
    tolerance: float = 1e-2
    draws: int = 5


class Measurement:
    """One run's sharpness.json. Errors: DistilvecError if the run folder or a cache lacks a part."""

    def __init__(self, run: RunSummary, settings: Settings) -> None:
        self.folder, self.settings = run.folder, settings
        self.landscapes = Landscapes(run.folder, run.record, settings.texts, settings.seed, settings.dropout)
        trained = run.folder / "train.fingerprint"
        key = fingerprint(FORMAT, trained.read_text() if trained.exists() else "", asdict(settings))
        self.content = read_run_file(run.folder, SHARPNESS) or {}
        if self.content.get("fingerprint") != key:
            recipe = self.landscapes.stage.recipe
            about = {
                "name": recipe.name,
                "method": recipe.method.name,
                "update": recipe.model_dump(mode="json")["train"]["update"],
            }
            self.content = {"format": FORMAT, "fingerprint": key, **about, "settings": asdict(settings), "points": []}

    def chosen(self, steps: Sequence[int] | None) -> list[int]:
        """Return the chosen steps (default: all). DistilvecError for a step without a saved checkpoint."""
        known = sorted(self.landscapes.students)
        for step in steps or ():
            if step not in known:
                raise DistilvecError(
                    f"[--steps] {self.folder} has no checkpoint of step {step}; it has {', '.join(map(str, known))}. "
                    "Choose one of these; train.keep_students in the recipe saves more."
                )
        return known if steps is None else sorted(set(steps))

    def missing(self, steps: Sequence[int], trace: bool) -> list[int]:
        """Return the steps that are not measured yet, or only in part."""
        done = {point["step"] for point in self.content["points"] if not trace or "trace" in point}
        return [step for step in steps if step not in done]

    def measure(self, step: int, trace: bool, report: Report) -> None:
        """Measure one checkpoint; written before the trace and after it."""
        landscape = self.landscapes.landscape(step)
        point = next((point for point in self.content["points"] if point["step"] == step), None)
        if point is None:
            point = {
                "step": step,
                "epoch": epoch_of(self.folder, step),
                **measure_curvature(landscape, self.settings, report),
            }
            self.content |= {"rows": landscape.rows, "dropout": landscape.module.training}
            self.content["points"] = sorted([*self.content["points"], point], key=lambda other: int(other["step"]))
            write_json(self.folder / SHARPNESS, self.content)
        if trace:
            point |= measure_trace(landscape, self.settings, report)
            write_json(self.folder / SHARPNESS, self.content)


def measure_runs(
    folders: Sequence[Path], steps: Sequence[int] | None, settings: Settings, trace: bool
) -> list[dict[str, Any]]:
    """Return every run's sharpness.json with its `folder` and the chosen points; missing ones are measured.

    Errors: DistilvecError as `load_runs` and `Measurement`, before anything is measured.
    """
    runs = load_runs(folders)
    measurements = {name: Measurement(run, settings) for name, run in zip(distinct_names(runs), runs, strict=True)}
    chosen = {name: measurement.chosen(steps) for name, measurement in measurements.items()}
    todo = [
        (name, step) for name, measurement in measurements.items() for step in measurement.missing(chosen[name], trace)
    ]
    share = USUAL_PRODUCTS + 4 + trace * settings.draws
    with progress("sharpness", share * len(todo), "passes") as advance:
        for number, (name, step) in enumerate(todo):

            def report(
                passes: int, text: str, before: int = share * number, where: str = f"{name}, step {step}"
            ) -> None:
                advance(before + min(passes, share - 1), f"{where}: {text}")

            measurements[name].measure(step, trace, report)
            advance(share * (number + 1), "")
    found = []
    for name, measurement in measurements.items():
        points = [point for point in measurement.content["points"] if point["step"] in chosen[name]]
        found.append({**measurement.content, "name": name, "folder": str(measurement.folder), "points": points})
    return found


def measure_curvature(landscape: Landscape, settings: Settings, report: Report) -> Point:
    """Measure the loss, its largest eigenvalue, and its rise under the perturbations of SAM and ASAM."""
    began, parts, parameters = time.monotonic(), landscape.parts, landscape.parameters
    loss = loss_value(parts)
    if not math.isfinite(loss):
        raise DistilvecError(
            f"[run folder] the loss at this checkpoint is {loss}: no curvature. Leave its step out (--steps)."
        )
    product = partial(hessian_product, parts, parameters)
    size = sum(parameter.numel() for parameter in parameters)
    start = torch.randn(size, generator=torch.Generator().manual_seed(settings.seed)).to(parameters[0])
    largest = largest_eigenvalue(
        product,
        start,
        settings.tolerance,
        monitor=lambda count, value: report(count + 1, f"largest eigenvalue {value:.4g}"),
    )
    slopes = gradient(parts, parameters)
    rises = {name: rise(parts, parameters, slopes, settings.rho, adaptive=name == "asam") for name in ("sam", "asam")}
    return {
        "loss": loss,
        "lambda_max": largest.value,
        "residual": largest.residual,
        "lambda_min": largest.smallest,
        "products": largest.products,
        **rises,
        "seconds": round(time.monotonic() - began, 1),
    }


def measure_trace(landscape: Landscape, settings: Settings, report: Report) -> Point:
    """Measure the Hessian's trace and its standard error."""
    product = partial(hessian_product, landscape.parts, landscape.parameters)
    generator, before = torch.Generator().manual_seed(settings.seed + 1), USUAL_PRODUCTS + 4
    mean, error = hutchinson_trace(
        product,
        landscape.parameters,
        settings.draws,
        generator,
        lambda count, value: report(before + count, f"trace {value:.4g}"),
    )
    return {"trace": mean, "trace_error": error}


def epoch_of(folder: Path, step: int) -> float | None:
    """Return the epochs done after a step, by its first line in metrics.jsonl."""
    return next((line["epoch"] for line in read_metrics(folder / "metrics.jsonl") if line["step"] == step), None)


def distinct_names(runs: Sequence[RunSummary]) -> list[str]:
    """Return the runs' names; their folders' if two names are equal."""
    for names in ([run.name for run in runs], [run.folder.resolve().name for run in runs]):
        if len(set(names)) == len(names):
            return names
    return [str(run.folder) for run in runs]
