"""Sharpness over the course of training, measured at a run's saved checkpoints.

The loss is the training objective as a function of the weights. Student, objective, rows and teacher vectors come from
the run folder and the caches; a teacher is loaded only if it ran in every step, or if the method learns from its
tokens. The loss is the mean over fixed training batches in fp32. Batches are formed as in training, since methods
compare the texts of a batch. Dropout masks and other random draws are seeded by the batch. Buffers of the objective,
such as a queue, are those of the checkpoint for every batch.

A run's `sharpness.json` has format, fingerprint, name, method, update, settings, rows (texts in the loss), dropout, and
`points`, one per checkpoint: step, epoch, loss, lambda_max, residual, lambda_min, products, sam, asam, seconds, and
with `trace` also trace and trace_error. Points are written one by one. The same settings resume, others start again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from distilvec.config import recipe as recipes
from distilvec.core.batch import TextBatch
from distilvec.core.device import keep_memory, pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.files import read_json, write_json
from distilvec.core.log import progress
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs
from distilvec.core.run_folder import RunFolder
from distilvec.data.sampler import epoch_batches
from distilvec.models.load import load
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import reopen
from distilvec.students.encoder import Encoder
from distilvec.train.checkpoint import load_objective
from distilvec.train.distillation import Distillation, seed_step
from distilvec.train.metrics import read_metrics
from distilvec.train.optimizer import freeze_others
from distilvec.verbs.compare.results import distinct_names, finished_runs
from experiments.sharpness import curvature

SHARPNESS = "sharpness.json"
MEASURE_AGAIN = "Delete it and measure again."
FORMAT = 1
USUAL_PASSES = 19  # over the texts at a checkpoint without the trace, for the time left
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


# -- the loss ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Landscape:
    """The loss at one student. `module` holds the weights; dropout is on while it is in training mode."""

    module: Distillation
    batches: list[tuple[TextBatch, ModelOutputs]]
    seed: int

    @property
    def rows(self) -> int:
        """Texts in the loss."""
        return sum(len(batch) for batch, _ in self.batches)

    @cached_property
    def parameters(self) -> list[Tensor]:
        """Trained parameters: the student's and the objective's."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def parts(self) -> Iterator[Tensor]:
        """Yield the loss batch by batch. Attention is not fused here: the fused kernel has no second derivative."""
        buffers = {f"objective.{name}": buffer for name, buffer in self.module.objective.named_buffers()}
        for number, (batch, teacher) in enumerate(self.batches):
            seed_step(self.seed, 0, number, 0)
            copies = {name: buffer.clone() for name, buffer in buffers.items()}
            with sdpa_kernel(SDPBackend.MATH):
                terms = functional_call(self.module, copies, (batch, teacher))
            yield weighted_loss(terms, self.module.objective.weights) * (len(batch) / self.rows)


class Landscapes:
    """The landscapes of a finished run, over about `texts` texts drawn by `seed`.

    `students` are the folders of the saved checkpoints by step, the final one among them. The objective is that of the
    last stage. Errors: DistilvecError if the folder or a cache lacks a part.
    """

    def __init__(self, run: FinishedRun, texts: int, seed: int, dropout: bool | None) -> None:
        self.texts, self.seed, self.dropout = texts, seed, dropout
        if not run.files.last.exists():
            raise DistilvecError(
                f"{run.folder} has not kept the last weights of its training.",
                "Run the recipe in another folder with train.keep_checkpoint=true.",
                key="train.keep_checkpoint",
            )
        self.job = reopen(run.recipe, run.folder, run.record)
        self.recipe = self.job.stages[-1].recipe
        training = run.record.training
        assert training is not None
        final = training.stages[-1].steps if training.stages else training.steps  # each stage counts its steps from 0
        self.students = {**run.files.saved_students, int(final or 0): run.files.last}

    def objective_file(self, step: int) -> Path:
        """Return the file of the objective's parameters at the checkpoint of a step."""
        files = self.job.files
        return files.objective("last" if self.students[step] == files.last else f"students/step-{step}")

    def landscape(self, step: int) -> Landscape:
        """Return the loss at the checkpoint of a step, on the first batches of an epoch; at least one."""
        folder, train = self.students[step], self.recipe.train
        if not (folder / "modules.json").exists():
            raise DistilvecError(
                f"{folder} is missing.", "Run the recipe again (--restart) to save checkpoints.", key="run folder"
            )
        keep_memory()
        device = torch.device(pick_device(train.device))
        model = load(folder, device="cpu").float()
        objective = make_objective(self.job.stages[-1], self.job.context)
        load_objective(self.objective_file(step), objective)
        module = Distillation(Encoder(model), objective).to(device)
        freeze_others(module, train)
        data = prepare_data(self.job, model).training_data(required_outputs(objective, self.job.examples))
        batches = epoch_batches(
            data.train_rows, data.lengths, batch_size=train.batch_size, max_tokens=train.max_tokens,
            window=train.window, seed=self.seed, epoch=0, drop_last=objective.needs_fixed_batch,
        )  # fmt: skip
        dropout = objective.student_outputs.second_view if self.dropout is None else self.dropout
        found = Landscape(module.train(dropout), [], self.seed)
        for number in range(len(batches)):
            batch = data.batch(batches[number]).to(device)
            found.batches.append((batch, data.teacher.signals(batch)))
            if found.rows + train.batch_size // 2 >= self.texts:
                break
        return found


# -- measuring ---------------------------------------------------------------------------------------------------------


class Measurement:
    """One run's sharpness.json. Errors: DistilvecError if the run folder or a cache lacks a part."""

    def __init__(self, run: FinishedRun, settings: Settings) -> None:
        self.folder, self.settings = run.folder, settings
        self.landscapes = Landscapes(run, settings.texts, settings.seed, settings.dropout)
        trained, values = run.files.fingerprint, asdict(settings)
        key = recipes.fingerprint(FORMAT, trained.read_text() if trained.exists() else "", values)
        path = run.folder / SHARPNESS
        self.content = read_json(path, MEASURE_AGAIN, sealed=False) if path.exists() else {}
        if self.content.get("fingerprint") != key:
            recipe = self.landscapes.recipe
            update = recipe.train.model_dump(mode="json")["update"]
            self.content = {"format": FORMAT, "fingerprint": key, "name": recipe.name, "method": recipe.method.name}
            self.content |= {"update": update, "settings": values, "points": []}

    def chosen(self, steps: Sequence[int] | None) -> list[int]:
        """Return the chosen steps (default: all). DistilvecError for a step without a saved checkpoint."""
        known = sorted(self.landscapes.students)
        if absent := [step for step in steps or () if step not in known]:
            raise DistilvecError(
                f"{self.folder} has no checkpoint of step {absent[0]}; it has {', '.join(map(str, known))}.",
                "Choose one of these; train.keep_students in the recipe saves more.",
                key="--steps",
            )
        return known if steps is None else sorted(set(steps))

    def missing(self, steps: Sequence[int], trace: bool) -> list[int]:
        """Return the steps that are not measured yet, or only in part."""
        done = {point["step"] for point in self.content["points"] if not trace or "trace" in point}
        return [step for step in steps if step not in done]

    def measure(self, step: int, trace: bool, report: Report) -> None:
        """Measure one checkpoint; written before the trace and after it."""
        landscape, points = self.landscapes.landscape(step), self.content["points"]
        point = next((point for point in points if point["step"] == step), None)
        if point is None:
            lines = read_metrics(RunFolder(self.folder).metrics)
            epoch = next((line["epoch"] for line in lines if line["step"] == step), None)
            point = {"step": step, "epoch": epoch, **measure_curvature(landscape, self.settings, report)}
            points.append(point)
            points.sort(key=lambda other: int(other["step"]))
            self.content |= {"rows": landscape.rows, "dropout": landscape.module.training}
            write_json(self.folder / SHARPNESS, self.content)
        if trace:
            point |= measure_trace(landscape, self.settings, report)
            write_json(self.folder / SHARPNESS, self.content)


def measure_runs(
    folders: Sequence[Path], steps: Sequence[int] | None, settings: Settings, trace: bool
) -> list[dict[str, Any]]:
    """Return every run's sharpness.json with its `folder` and the chosen points; missing ones are measured.

    Errors: DistilvecError as `finished_runs` and `Measurement`, before anything is measured.
    """
    runs = finished_runs(folders)
    names = distinct_names(runs)
    measurements = {name: Measurement(member.run, settings) for name, member in zip(names, runs, strict=True)}
    chosen = {name: one.chosen(steps) for name, one in measurements.items()}
    todo = [(name, step) for name, one in measurements.items() for step in one.missing(chosen[name], trace)]
    share = USUAL_PASSES + trace * settings.draws
    with progress("sharpness", share * len(todo), "passes") as advance:

        def report(before: int, where: str, passes: int, text: str) -> None:
            advance(before + min(passes, share), f"{where}: {text}")

        for number, (name, step) in enumerate(todo):
            measurements[name].measure(step, trace, partial(report, share * number, f"{name}, step {step}"))
    found = []
    for name, one in measurements.items():
        points = [point for point in one.content["points"] if point["step"] in chosen[name]]
        found.append({**one.content, "name": name, "folder": str(one.folder), "points": points})
    return found


def measure_curvature(landscape: Landscape, settings: Settings, report: Report) -> Point:
    """Measure the loss, its largest eigenvalue, and its rise under the perturbations of SAM and ASAM."""
    began, parts, parameters = time.monotonic(), landscape.parts, landscape.parameters
    loss = curvature.loss_value(parts)
    if not math.isfinite(loss):
        raise DistilvecError(
            f"the loss at this checkpoint is {loss}: no curvature.", "Leave its step out (--steps).", key="run folder"
        )
    size = sum(parameter.numel() for parameter in parameters)
    start = torch.randn(size, generator=torch.Generator().manual_seed(settings.seed)).to(parameters[0])
    largest = curvature.largest_eigenvalue(
        partial(curvature.hessian_product, parts, parameters), start, settings.tolerance,
        monitor=lambda count, value: report(count + 1, f"largest eigenvalue {value:.4g}"),
    )  # fmt: skip
    slopes = curvature.gradient(parts, parameters)
    return {
        "loss": loss,
        "lambda_max": largest.value,
        "residual": largest.residual,
        "lambda_min": largest.smallest,
        "products": largest.products,
        **{name: curvature.rise(parts, parameters, slopes, settings.rho, name == "asam") for name in ("sam", "asam")},
        "seconds": round(time.monotonic() - began, 1),
    }


def measure_trace(landscape: Landscape, settings: Settings, report: Report) -> Point:
    """Measure the Hessian's trace and its standard error."""
    mean, error = curvature.hutchinson_trace(
        partial(curvature.hessian_product, landscape.parts, landscape.parameters), landscape.parameters, settings.draws,
        torch.Generator().manual_seed(settings.seed + 1),
        lambda count, value: report(USUAL_PASSES + count, f"trace {value:.4g}"),
    )  # fmt: skip
    return {"trace": mean, "trace_error": error}
