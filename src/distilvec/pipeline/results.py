"""Results of finished runs and sweeps, read from their folders: scores, scored rows, recipe and record."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.config import recipe as recipes
from distilvec.core.errors import UNREADABLE, DistilvecError, first_line
from distilvec.evaluation.evaluator import Sample
from distilvec.pipeline.run_dir import SWEEP_FILE
from distilvec.pipeline.sweep import read_sweep
from distilvec.report.run_files import RECORD, REPORT, read_run_file

_UNTRAINED = (
    "name",
    "description",
    "paper",
    "output",
    "cache",
    "evaluation",
    "sweep",
)  # keys without effect on weights
_SCORE_AGAIN = "Delete it and report.json and run the same recipe again: training is kept."


@dataclass(frozen=True)
class RunSummary:
    """A finished run. Runs of one `group` differ by their seed only; `name` is the group's."""

    folder: Path
    name: str
    group: str
    seed: int | None
    recipe: dict[str, Any]
    record: dict[str, Any]
    report: dict[str, Any]

    def scores(self, column: str) -> dict[str, dict[str, Any]]:
        """Return a model's scores by task, each with type, metric and value; empty if the run has none."""
        columns = self.report.get("scores") or self.record.get("scores") or {}
        return {score["task"]: score for score in columns.get(column) or []}

    def samples(self, column: str, tasks: Iterable[str]) -> dict[str, Sample]:
        """Return the predictions of a model's scores by task; tasks without stored predictions are missing."""
        path, scores = self.folder / "samples.npz", self.scores(column)
        if not path.exists():
            return {}
        try:
            with np.load(path, allow_pickle=False) as kept:
                parts = {task: [f"{column}/{task}/{part}" for part in ("predicted", "gold")] for task in tasks}
                found = {
                    task: Sample(scores[task]["type"], scores[task]["metric"], *(kept[key] for key in keys))
                    for task, keys in parts.items()
                    if all(key in kept for key in keys)
                }
        except (*UNREADABLE, zlib.error) as error:
            raise DistilvecError(f"[samples.npz] {path} is damaged: {first_line(error)}. {_SCORE_AGAIN}") from None
        for task, sample in found.items():
            _check_sample(sample, f"{path}: {column}/{task}")
        return found


def _check_sample(sample: Sample, where: str) -> None:
    """DistilvecError unless every row has a finite prediction and a gold value."""
    arrays = (sample.predicted, sample.gold)
    if any(values.ndim != 1 or values.dtype.kind not in "biuf" for values in arrays) or len(sample.predicted) != len(
        sample.gold
    ):
        shapes = " and ".join(f"{values.dtype} {list(values.shape)}" for values in arrays)
        raise DistilvecError(
            f"[samples.npz] {where}: expected two lists of equal length; found {shapes}. {_SCORE_AGAIN}"
        )
    if not all(np.isfinite(values).all() for values in arrays):
        raise DistilvecError(f"[samples.npz] {where} holds NaN or infinite numbers. {_SCORE_AGAIN}")


def load_runs(folders: Sequence[Path]) -> list[RunSummary]:
    """Read the finished runs in folders of runs or sweeps, in order; repeated folders count once.

    Errors: DistilvecError for another folder, an unfinished run, a sweep without finished runs.
    """
    found: dict[Path, RunSummary] = {}
    for folder in (Path(folder) for folder in folders):
        if (members := read_sweep(folder)) is not None:
            runs = [
                _load_run(folder / entry["folder"], folder, entry["group"])
                for entry in members
                if entry["state"] != "failed" and _is_finished(folder / entry["folder"])
            ]
            if not runs:
                raise DistilvecError(
                    f"[run folder] {folder}: none of the sweep's {len(members)} runs has finished. Run the sweep again."
                )
        elif _is_finished(folder):
            listed = {entry["folder"]: entry["group"] for entry in read_sweep(folder.resolve().parent) or []}
            runs = [_load_run(folder, folder.resolve().parent, listed.get(folder.resolve().name))]
        elif (folder / "recipe.yaml").exists():
            raise DistilvecError(
                f"[run folder] {folder}: the run has not finished. Run its recipe again, then compare."
            )
        else:
            raise DistilvecError(
                f"[run folder] {folder} is neither a run nor a sweep. Name a folder with distillation.json or "
                f"{SWEEP_FILE}."
            )
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def unfinished(folders: Sequence[Path]) -> list[str]:
    """List the sweeps with missing runs."""
    notes = []
    for folder in folders:
        entries = read_sweep(Path(folder)) or []
        absent = [e["name"] for e in entries if e["state"] == "failed" or not _is_finished(Path(folder) / e["folder"])]
        if absent:
            notes.append(
                f"{folder}: {len(absent)} of {len(entries)} runs failed or have not finished: {', '.join(absent)}."
            )
    return notes


def _is_finished(folder: Path) -> bool:
    return (folder / "distillation.json").is_file()


def _load_run(folder: Path, sweep: Path, group: str | None) -> RunSummary:
    """Read a run; `group` is its group in the sweep in the folder `sweep`, None outside of sweeps."""
    record, report = read_run_file(folder, RECORD) or {}, read_run_file(folder, REPORT) or {}
    path = folder / "recipe.yaml"
    recipe = recipes.read_tree(path) if path.exists() else {}
    if not isinstance(recipe.get("train") or {}, dict):
        raise DistilvecError(
            f"[recipe.yaml] {path}: train is no mapping. Run the recipe again: it writes the file again."
        )
    seed = (recipe.get("train") or record.get("training") or {}).get("seed")
    if group is not None:
        return RunSummary(folder, group, f"{sweep.resolve()}:{group}", seed, recipe, record, report)
    kept = {key: value for key, value in recipe.items() if key not in _UNTRAINED}
    kept["train"] = {key: value for key, value in (recipe.get("train") or {}).items() if key != "seed"}
    parts = [record.get("teacher"), record.get("data"), *record.get("more_teachers", [])]
    origin = [(part or {}).get("fingerprint") for part in parts]
    key = recipes.fingerprint(kept, origin) if recipe else str(folder.resolve())
    return RunSummary(folder, str(record.get("name") or folder.resolve().name), key, seed, recipe, record, report)
