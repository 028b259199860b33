"""Results of finished runs and sweeps, read from their folders: scores, scored rows, recipe and record."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import UNREADABLE, DistilvecError, first_line
from distilvec.evaluation.evaluator import Sample
from distilvec.pipeline.run_dir import SWEEP_FILE
from distilvec.pipeline.sweep import read_sweep
from distilvec.report.run_files import RECORD, REPORT, read_run_file

_UNTRAINED = (  # no effect on weights
    "name",
    "description",
    "paper",
    "output",
    "remote_output",
    "cache",
    "evaluation",
    "sweep",
)
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
        """Return the predictions of a model's scores by task; tasks without stored predictions are missing.

        Errors: DistilvecError for a damaged file, or rows without a finite prediction and gold value.
        """
        path, scores, found = self.folder / "samples.npz", self.scores(column), dict[str, Sample]()
        if not path.exists():
            return {}
        try:
            with np.load(path, allow_pickle=False) as kept:
                for task in (task for task in tasks if task in scores):
                    keys = [f"{column}/{task}/{part}" for part in ("predicted", "gold")]
                    if all(key in kept for key in keys):
                        arrays = [kept[key] for key in keys]
                        if not _fit(*arrays):
                            shapes = " and ".join(f"{values.dtype} {list(values.shape)}" for values in arrays)
                            raise ValueError(f"{column}/{task}: expected two lists of finite numbers; found {shapes}")
                        found[task] = Sample(scores[task]["type"], scores[task]["metric"], *arrays)
        except (*UNREADABLE, zlib.error) as error:
            raise DistilvecError("samples.npz", f"{path} is damaged: {first_line(error)}.", _SCORE_AGAIN) from None
        return found


def _fit(predicted: np.ndarray[Any, Any], gold: np.ndarray[Any, Any]) -> bool:
    """Whether every row has a finite prediction and a finite gold value."""
    numbers = all(one.dtype.kind in "biuf" and one.ndim == 1 and np.isfinite(one).all() for one in (predicted, gold))
    return numbers and len(predicted) == len(gold)


def load_runs(folders: Sequence[Path]) -> list[RunSummary]:
    """Read the finished runs in folders of runs or sweeps, in order; repeated folders count once.

    Errors: DistilvecError for another folder, an unfinished run, a sweep without finished runs.
    """
    found: dict[Path, RunSummary] = {}
    for folder in map(Path, folders):
        members, own = read_sweep(folder), folder.resolve()
        if members is not None:
            runs = [_load_run(folder / e["folder"], own, e["group"]) for e in members if not _is_missing(folder, e)]
            problem = f"none of the sweep's {len(members)} runs has finished. Run the sweep again."
        elif (folder / RECORD).is_file():
            listed = {entry["folder"]: entry["group"] for entry in read_sweep(own.parent) or []}
            runs = [_load_run(folder, own.parent, listed.get(own.name))]
        elif (folder / "recipe.yaml").exists():
            runs, problem = [], "the run has not finished. Run its recipe again, then compare."
        else:
            runs, problem = [], f"neither a run nor a sweep. Name a folder with {RECORD} or {SWEEP_FILE}."
        if not runs:
            raise DistilvecError("run folder", f"{folder}: {problem}")
        for run in runs:
            found.setdefault(run.folder.resolve(), run)
    return list(found.values())


def unfinished(folders: Sequence[Path]) -> list[str]:
    """List the sweeps with missing runs."""
    notes = []
    for folder in map(Path, folders):
        entries = read_sweep(folder) or []
        if absent := [entry["name"] for entry in entries if _is_missing(folder, entry)]:
            notes.append(f"{folder}: {len(absent)} of {len(entries)} runs have not finished: {', '.join(absent)}.")
    return notes


def distinct_names(runs: Sequence[RunSummary]) -> list[str]:
    """Return the runs' names, with their folders if several runs share a name."""
    names, folders = [run.name for run in runs], [run.folder.resolve().name for run in runs]
    if len(set(folders)) < len(folders):
        folders = [str(run.folder) for run in runs]
    return [n if names.count(n) == 1 else f"{n} ({folder})" for n, folder in zip(names, folders, strict=True)]


def _is_missing(sweep: Path, entry: Mapping[str, Any]) -> bool:
    return entry["state"] == "failed" or not (sweep / entry["folder"] / RECORD).is_file()


def _load_run(folder: Path, sweep: Path, group: str | None) -> RunSummary:
    """Read a run; `group` is its group in the sweep in the folder `sweep`, None outside of sweeps."""
    record, report = read_run_file(folder, RECORD) or {}, read_run_file(folder, REPORT) or {}
    path = folder / "recipe.yaml"
    recipe = recipes.read_tree(path) if path.exists() else {}
    train = recipe.get("train") or {}
    if not isinstance(train, dict):
        raise DistilvecError(
            "recipe.yaml", f"{path}: train is no mapping.", "Run the recipe again: it writes the file again."
        )
    with suppress(ValidationError):  # keys that are newer than the run get their default: seeds of two versions group
        recipe = Recipe.model_validate(recipe).model_dump(mode="json")
    seed = (train or record.get("training") or {}).get("seed")
    if group is not None:
        return RunSummary(folder, group, f"{sweep}:{group}", seed, recipe, record, report)
    kept = {key: value for key, value in recipe.items() if key not in _UNTRAINED}
    kept["train"] = {key: value for key, value in (recipe.get("train") or {}).items() if key != "seed"}
    parts = [record.get("teacher"), record.get("data"), *record.get("more_teachers", [])]
    origin = [(part or {}).get("fingerprint") for part in parts]
    name = str(record.get("name") or folder.resolve().name)
    key = recipes.fingerprint(kept, origin) if recipe else str(folder.resolve())
    return RunSummary(folder, name, key, seed, recipe, record, report)
