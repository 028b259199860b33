"""Who may write into a run folder: its marker, its lock, and the fingerprint of its training (core/run_folder.py).

Nothing is removed: `--restart` moves the earlier run aside as a whole.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from distilvec.config import recipe as recipes
from distilvec.config.base import Section
from distilvec.config.paths import input_names
from distilvec.config.schema import Recipe
from distilvec.config.training import TrainSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.extras import require_extra
from distilvec.core.files import (
    acquire_lock,
    check_output_folder,
    existing_paths,
    is_scratch,
    remove,
    sync_folder,
    write_file,
    write_json,
)
from distilvec.core.log import log
from distilvec.core.run_folder import FORMAT, RunFolder
from distilvec.evaluation.suite import SUITE_ENDINGS, suite_paths

CONTENTS = """\
This folder is a run of distilvec. The command that made it goes on with an interrupted run, and does nothing when the
run is finished.

student/      the model to use, for sentence-transformers: SentenceTransformer("student")
report.html   how good the model is; open it in a browser
recipe.yaml   the settings: `distilvec run recipe.yaml --out FOLDER` makes the same run elsewhere
students/     models from along the way, if the recipe asks for them (train.keep_students)
details/      everything else:
  report.json         all numbers of the report; samples.npz and figures/ belong to it
  record.json         what the model was made from: teacher, texts, method, settings, scores
  metrics.jsonl       loss and validation, step by step; those of earlier stages are in stages/
  training.json       steps and time of the training; there when the training is finished
  start.safetensors   weights that were fitted to the teacher before the training
  vocabulary/         the tokenizer that was chosen for the student
  checkpoint/, last/  where an interrupted training goes on; removed at the end (train.keep_checkpoint keeps them)
  data/, teacher/     of `distilvec classify`: the rows of its split, and the run in which the teacher learned them
"""


def check_run(recipe: Recipe, run: RunFolder) -> None:
    """DistilvecError if the folder cannot be written, or a package or device that the recipe needs is missing."""
    refuse_foreign(run)
    check_training(recipe.train)
    if recipe.student.lora is not None:
        require_extra("finetune", "student.lora")
    for number, source in enumerate(recipe.corpus.sources if recipe.corpus else []):
        if source.dataset is not None:
            require_extra("datasets", f"corpus.sources.{number}.dataset")


def check_training(train: TrainSection) -> None:
    """DistilvecError if a device or a tracker that the training needs is missing."""
    from distilvec.core.device import pick_device  # torch: a mistake in a recipe is reported before

    pick_device(train.device)
    for tracker in train.trackers:
        require_extra(tracker, f"train.trackers: {tracker}")


def refuse_foreign(run: RunFolder) -> None:
    """DistilvecError unless the folder can be written and is new, empty or ours. Changes nothing."""
    folder = run.path
    with about("--out", folder):
        check_output_folder(folder)
        if run.is_ours():
            run.check_format("--out")
            return
        if not folder.exists():
            return
        entries = list(folder.iterdir())
        if run.details in entries and run.details.is_dir():  # what a kill before its marker was written has left
            entries.remove(run.details)
            entries += run.details.iterdir()
        if all(is_scratch(entry) for entry in entries):
            return
    raise DistilvecError(
        f"{folder} holds files and is no folder of a distilvec run: it has no {run.marker.relative_to(folder)}. "
        "Nothing was changed.",
        "Choose a new or empty folder.",
        key="--out",
    )


@contextmanager
def claim_folder(
    run: RunFolder, recipe: Section, fingerprint: str, restart: bool, start_fingerprint: str = ""
) -> Iterator[None]:
    """Hold the run folder until the block ends; recipe.yaml and the training's fingerprint are written.

    With `restart` an earlier run is moved aside. A run that has not begun to train accepts any recipe, a finished run
    without training (`start_fingerprint`) the training that begins with its student.
    """
    from distilvec.formats.sentence_transformers import recover_student

    own_folder(run, restart, recipe_inputs(recipe) if restart else ())
    with about("--out", run.path):
        lock = acquire_lock(run.lock, str(run.path), wait=False)
    with lock:
        for model in (run.student, run.last):
            recover_student(model, in_run=True)
            with about("--out", model):
                check_output_folder(model)  # a link to nothing, say: before the training writes other files
        earlier = run.fingerprint.read_text().strip() if run.fingerprint.exists() else fingerprint
        if earlier == start_fingerprint != fingerprint:
            # The start itself stays; what says that the run is finished is made again
            for path in (run.training.checkpoint.parent, run.last, run.training_result, run.record, run.report):
                remove(path)
        elif earlier != fingerprint and has_trained(run):
            changed = ", ".join(_changed_keys(run.recipe, recipe))
            method = getattr(recipe, "method", None)
            if not changed and method is not None and method.name.endswith(".py"):
                changed = f"{Path(method.name).name}, its texts or its models changed"
            changed = changed or "its files changed"
            raise DistilvecError(
                f"{run.path} holds a run of another recipe or other data ({changed}); it is not trained further.",
                "Choose another folder, or start over with --restart, which moves that run aside.",
                key="--out",
            )
        write_file(run.readme, CONTENTS)
        write_file(run.recipe, recipes.dump(recipe))
        write_file(run.fingerprint, fingerprint + "\n")
        yield


def own_folder(run: RunFolder, restart: bool = False, inputs: Collection[Path] = ()) -> None:
    """Write the marker into the folder; errors as `claim_folder`. With `restart` an earlier run is moved aside.

    `inputs` are resolved paths that the new run reads.
    """
    refuse_foreign(run)
    if restart and run.is_ours():
        refuse_inputs_inside(run, inputs)
        with about("--out", run.path):
            lock = acquire_lock(run.lock, str(run.path), wait=False)
        with lock, about("--restart", run.path):
            aside = _free_name(run.path.absolute())
            run.path.absolute().rename(aside)
            log(f"the earlier run is now {aside}")
    with about("--out", run.path):
        run.make()
        sync_folder(run.path)
    if not run.marker.exists():
        marker = {"format": FORMAT, "id": uuid.uuid4().hex, "created": datetime.now(UTC).isoformat(timespec="seconds")}
        write_json(run.marker, marker)


def refuse_inputs_inside(run: RunFolder, inputs: Collection[Path]) -> None:
    """DistilvecError if one of these resolved paths lies in a run folder that is to be moved aside."""
    folder = run.path.resolve()
    for path in sorted(inputs):
        if path.is_relative_to(folder):
            raise DistilvecError(
                f"{path} is read here, and would be moved aside with {run.path}. Nothing was moved.",
                "Choose another folder with --out.",
                key="--restart",
            )


def _free_name(path: Path) -> Path:
    """Return the path to which an earlier run is moved: NAME.old-TIME, with a number if that is taken."""
    name = f"{path.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"
    aside = path.with_name(name)
    for number in count(2):
        if not aside.exists():
            break
        aside = path.with_name(f"{name}-{number}")
    return aside


def has_trained(run: RunFolder) -> bool:
    """Whether the folder has results of a training: a checkpoint, a model or a report."""
    # Not `student`: it is saved before the first step, as the first candidate for the student that ships
    results = [run.training_result, run.last, run.students, run.report, run.record]
    checkpoints = [stage.checkpoint for stage in (run.training, *run.earlier_stages)]
    return any(path.exists() for path in (*results, *checkpoints))


def _changed_keys(path: Path, recipe: Section) -> list[str]:
    """List the dotted keys whose value differs from the recipe in the folder."""
    if not path.exists():
        return []
    before = _values_by_key(recipes.read_tree(path))
    now = _values_by_key(recipe.model_dump(mode="json"))
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))


def _values_by_key(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    values: dict[str, Any] = {}
    for name, part in tree.items():
        values |= _values_by_key(part, f"{prefix}.{name}" if prefix else name)
    return values


def recipe_inputs(recipe: Section) -> set[Path]:
    """Return the existing files and folders that a recipe names, and the data of its suite; resolved."""
    return changed_inputs(recipe.model_dump(), type(recipe))


def changed_inputs(changes: Mapping[str, Any], section: type[Section] = Recipe) -> set[Path]:
    """Return the same of some of a recipe's values, by dotted key."""
    paths = existing_paths(input_names(changes, section))
    for path in tuple(paths):
        if path.suffix.lower() in SUITE_ENDINGS:
            paths |= existing_paths(suite_paths(path))
    return paths
