"""Whose training a run folder holds: its fingerprint, and what is cleared away when it begins anew."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distilvec import recipe as recipes
from distilvec.errors import DistilvecError
from distilvec.export.portable import recover_student
from distilvec.method_file import method_code
from distilvec.schema import Recipe
from distilvec.section import Section
from distilvec.train.checkpoint import checkpoint_file
from distilvec.train.stages import Stage


def claim_folder(folder: Path, recipe: Section, wanted: str, restart: bool) -> None:
    """Write recipe.yaml and the training's fingerprint; what was left of a training that begins anew is removed.

    Errors: DistilvecError for a folder that holds the training of another recipe, unless `restart`.
    """
    path, mark = folder / "recipe.yaml", folder / "train.fingerprint"
    found = mark.read_text().strip() if mark.exists() else None
    if found not in (None, wanted) and not restart:
        changed = ", ".join(_changed_keys(path, recipe)) or "its files changed"
        raise DistilvecError(
            f"{folder} holds a run of another recipe or other data ({changed}). Choose another folder (--out) or start over (--restart)."
        )
    if restart or found != wanted:
        for name in ("metrics.jsonl", "report.json", "report.html", "samples.npz", "distillation.json", "sharpness.json"):
            (folder / name).unlink(missing_ok=True)
        checkpoint_file(folder).unlink(missing_ok=True)
        for name in ("students", "stages"):
            shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("student", "last"):
        recover_student(folder / name)
    path.write_text(recipes.dump(recipe), encoding="utf-8")
    mark.write_text(wanted + "\n")


def training_fingerprint(recipe: Recipe, stages: Sequence[Stage], vectors: str, corpus: str) -> str:
    """Changes when anything that changes the trained weights does; `vectors` and `corpus` are the data's own fingerprints."""
    sections: list[Any] = [recipe.student.model_dump(mode="json", exclude_none=True)]
    for stage in stages:
        train = stage.recipe.train.model_dump(mode="json")
        for name in ("logging_steps", "checkpoint_minutes", "checkpoint_steps", "trackers"):
            train.pop(name)
        sections += [stage.recipe.method.model_dump(mode="json"), train]
    if recipe.stages:  # the student is drawn from the recipe's own seed
        sections += [recipe.train.seed, *(stage.name for stage in stages)]
    codes = [method_code(stage.recipe.method.name) for stage in stages]
    sections += [code for code in codes if code is not None]  # methods of the package change with its version, which does not count
    return recipes.fingerprint(vectors, corpus, *sections)


def kept_folders(folder: Path) -> dict[int, Path]:
    """The students kept along the way, by step, in order."""
    found = {int(student.name.removeprefix("step-")): student for student in (folder / "students").glob("step-*/")}
    return dict(sorted(found.items()))


def _changed_keys(path: Path, recipe: Section) -> list[str]:
    """Dotted keys whose value differs from the recipe that is kept in the folder."""
    if not path.exists():
        return []

    def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
        if not isinstance(tree, dict):
            return {prefix: tree}
        return {k: v for name, part in tree.items() for k, v in flat(part, f"{prefix}.{name}".lstrip(".")).items()}

    before, now = flat(recipes.read_tree(path)), flat(recipe.model_dump(mode="json"))
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
