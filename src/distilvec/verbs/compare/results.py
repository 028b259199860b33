"""Finished runs and sweeps, found in their folders and grouped by recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.report.record import RunRecord, read_run_record
from distilvec.verbs.run.sweep import read_sweep

_UNTRAINED = (  # sections of a recipe that have no effect on weights
    "name",
    "description",
    "paper",
    "output",
    "cache",
    "evaluation",
    "sweep",
)


@dataclass(frozen=True)
class SeedRun:
    """A run among others: runs of one `group` differ by their seed only, and `name` is the group's."""

    run: FinishedRun
    name: str
    group: str
    seed: int | None


def finished_runs(folders: Sequence[Path]) -> list[SeedRun]:
    """Open the finished runs in folders of runs or sweeps, in order; repeated folders count once."""
    runs: dict[Path, SeedRun] = {}
    for folder in map(Path, folders):
        for run in _runs_in(folder):
            runs.setdefault(run.run.folder.resolve(), run)
    return list(runs.values())


def _runs_in(folder: Path) -> list[SeedRun]:
    """Open the runs of a sweep, or the run in a folder."""
    members, resolved = read_sweep(folder), folder.resolve()
    if members is not None:
        finished = [member for member in members if not _is_missing(folder, member)]
        if not finished:
            problem = f"none of the sweep's {len(members)} runs has finished. Run the sweep again."
            raise DistilvecError(f"{folder}: {problem}", key="run folder")
        return [_open_run(folder / member["folder"], member["group"]) for member in finished]
    if RunFolder(folder).record.is_file():
        siblings = read_sweep(resolved.parent) or []
        groups = {member["folder"]: member["group"] for member in siblings}
        return [_open_run(folder, groups.get(resolved.name))]
    problem = "neither a run nor a sweep. Name the folder of a run or of a sweep."
    if RunFolder(folder).recipe.exists():
        problem = "the run has not finished. Run its recipe again, then compare."
    raise DistilvecError(f"{folder}: {problem}", key="run folder")


def unfinished(folders: Sequence[Path]) -> list[str]:
    """List the sweeps with missing runs."""
    notes = []
    for folder in map(Path, folders):
        members = read_sweep(folder) or []
        missing = [member["name"] for member in members if _is_missing(folder, member)]
        if missing:
            notes.append(f"{folder}: {len(missing)} of {len(members)} runs have not finished: {', '.join(missing)}.")
    return notes


def distinct_names(runs: Sequence[SeedRun]) -> list[str]:
    """Return the runs' names, with their methods or folders if several runs share a name.

    In two sweeps a variant may have one name and two methods: it is then named by its method.
    """
    names = _by_method(runs)
    folders = [run.run.folder.resolve().name for run in runs]
    if len(set(folders)) < len(folders):
        folders = [str(run.run.folder) for run in runs]
    distinct = []
    for name, folder in zip(names, folders, strict=True):
        distinct.append(name if names.count(name) == 1 else f"{name} ({folder})")
    return distinct


def _by_method(runs: Sequence[SeedRun]) -> list[str]:
    """Return the runs' names; runs of one name whose methods all differ are told apart by these."""
    methods = []
    for run in runs:
        record = run.run.record.method
        methods.append("" if record is None else record.name or "")
    names = []
    for run, method in zip(runs, methods, strict=True):
        rivals = [rival for candidate, rival in zip(runs, methods, strict=True) if candidate.name == run.name]
        if len(rivals) == 1 or len(set(rivals)) < len(rivals):
            names.append(run.name)
        elif run.name in rivals:
            names.append(method)
        else:
            names.append(f"{run.name}, {method}")
    return names


def _is_missing(sweep: Path, member: Mapping[str, Any]) -> bool:
    return member["state"] == "failed" or not RunFolder(sweep / member["folder"]).record.is_file()


def _open_run(folder: Path, group: str | None) -> SeedRun:
    """Open a run; `group` is its group in its sweep, None outside of sweeps."""
    record = read_run_record(RunFolder(folder)) or RunRecord()
    run = FinishedRun(folder, record)
    tree = _recipe_tree(run.files.recipe)
    train = tree.get("train") or {}
    seed = train.get("seed")
    if not train and record.training is not None:
        seed = record.training.seed
    if not tree:
        return SeedRun(run, group or run.name, str(folder.resolve()), seed)
    trained = {key: value for key, value in tree.items() if key not in _UNTRAINED}
    trained["train"] = {key: value for key, value in train.items() if key != "seed"}
    code = None if record.method is None else record.method.code
    sources: list[str | None] = [None if record.teacher is None else record.teacher.fingerprint]
    sources.append(None if record.data is None else record.data.fingerprint)
    sources += [teacher.fingerprint for teacher in record.more_teachers]
    if group is not None:
        # Seeds that were run with other keys or other code, one command after another, are no repetitions. Those of one
        # group in several folders are, as jobs leave them
        return SeedRun(run, group, recipes.fingerprint(group, trained, code, sources), seed)
    return SeedRun(run, run.name, recipes.fingerprint(trained, code, sources), seed)


def _recipe_tree(path: Path) -> dict[str, Any]:
    """Return a recipe as plain data; keys that are newer than the run get their default, so that its seeds group."""
    tree = recipes.read_tree(path) if path.exists() else {}
    if not isinstance(tree.get("train") or {}, dict):
        raise DistilvecError(
            f"{path}: train is no mapping.", "Run the recipe again: it writes the file again.", key="recipe.yaml"
        )
    with suppress(ValidationError):
        return Recipe.model_validate(tree).model_dump(mode="json")
    return tree
