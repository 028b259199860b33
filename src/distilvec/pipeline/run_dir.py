"""The folder of a run or a sweep: its owner, its lock, and the fingerprint of its training.

    distilvec-run.json   marker with the run's id; a folder with other files and no marker is refused
    distilvec-run.lock   held by the process that writes
    recipe.yaml          the resolved recipe
    train.fingerprint    changes when anything that changes the trained weights does
    training.json        written when the training is finished, with the steps of every stage
    README.txt           what is in the folder

Nothing is removed: `--restart` moves the earlier run aside as a whole.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from distilvec.config import recipe as recipes
from distilvec.config.base import Section
from distilvec.config.schema import Recipe
from distilvec.config.training import TrainSection
from distilvec.core.errors import DistilvecError, explained
from distilvec.core.extras import require_extra
from distilvec.core.files import check_output_folder, locked, write_file, write_json
from distilvec.core.log import log

MARKER = "distilvec-run.json"
LOCK = "distilvec-run.lock"
FINGERPRINT = "train.fingerprint"
TRAINING = "training.json"
ABOUT = "README.txt"
SWEEP_FILE = "sweep.json"
FORMAT = 1
# Not "student": it is saved before the first step, as the first candidate for the student that ships.
RESULTS = (TRAINING, "last", "students", "report.json", "distillation.json")

CONTENTS = """\
This folder is a run of distilvec. The command that made it goes on with an interrupted run, and does nothing when the
run is finished.

student/            the model to use, for sentence-transformers: SentenceTransformer("student")
report.html         how good the model is; open it in a browser
recipe.yaml         the settings: `distilvec run recipe.yaml --out FOLDER` makes the same run elsewhere
metrics.jsonl       loss and validation, step by step
training.json       steps and time of the training; there when the training is finished
distillation.json   what the model was made from: teacher, texts, method, settings, scores
report.json         all numbers of the report; samples.npz and figures/ belong to it
start.safetensors   weights that were fitted to the teacher before the training
students/           models from along the way (train.keep_students)
stages/             metrics of the earlier stages of a training in stages
checkpoint/, last/  where an interrupted training goes on; removed at the end (train.keep_checkpoint keeps them)
"""


def check_run(recipe: Recipe, folder: Path) -> None:
    """DistilvecError if `folder` cannot be written, or a package or device that the recipe needs is missing."""
    refuse_foreign(folder)
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


def refuse_foreign(folder: Path) -> None:
    """DistilvecError unless `folder` can be written and is new, empty or ours. Changes nothing."""
    check_output_folder(folder, "--out")
    with explained("--out", folder):
        if not folder.exists() or _is_ours(folder) or not any(folder.iterdir()):
            return
    raise DistilvecError(
        "--out",
        f"{folder} holds files and is no folder of a distilvec run: it has no {MARKER}. Nothing was changed.",
        "Choose a new or empty folder.",
    )


@contextmanager
def claim_folder(folder: Path, recipe: Section, fingerprint: str, restart: bool) -> Iterator[None]:
    """Hold the run folder until the block ends; recipe.yaml and the training's fingerprint are written.

    With `restart` an earlier run is moved aside. A run that has not begun to train accepts any recipe.
    Errors: DistilvecError for a foreign folder, one that another process writes to, or the training of another recipe.
    """
    from distilvec.formats.sentence_transformers import recover_student

    own_folder(folder, restart)
    with locked(folder / LOCK, "--out", str(folder), wait=False):
        known, path = folder / FINGERPRINT, folder / "recipe.yaml"
        for name in ("student", "last"):
            recover_student(folder / name, in_run=True)
        if known.exists() and known.read_text().strip() != fingerprint and has_trained(folder):
            changed = ", ".join(_changed_keys(path, recipe)) or _changed_files(recipe)
            raise DistilvecError(
                "--out",
                f"{folder} holds a run of another recipe or other data ({changed}); it is not trained further.",
                "Choose another folder, or start over with --restart, which moves that run aside.",
            )
        write_file(folder / ABOUT, CONTENTS, "--out")
        write_file(path, recipes.dump(recipe), "--out")
        write_file(known, fingerprint + "\n", "--out")
        yield


def own_folder(folder: Path, restart: bool = False) -> None:
    """Write the marker into the folder; errors as `claim_folder`. With `restart` an earlier run is moved aside."""
    refuse_foreign(folder)
    if restart and folder.exists() and any(folder.iterdir()):
        path, now = folder.absolute(), time.strftime("%Y%m%d-%H%M%S")
        names = chain([""], (f"-{number}" for number in count(2)))
        aside = next(free for end in names if not (free := path.with_name(f"{path.name}.old-{now}{end}")).exists())
        with locked(folder / LOCK, "--out", str(folder), wait=False), explained("--restart", folder):
            path.rename(aside)
            log(f"the earlier run is now {aside}")
    with explained("--out", folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists():
        about = {"format": FORMAT, "id": uuid.uuid4().hex, "created": datetime.now(UTC).isoformat(timespec="seconds")}
        write_json(folder / MARKER, about, key="--out")


def has_trained(folder: Path) -> bool:
    """Whether the folder has results of a training: a checkpoint, a student or a report."""
    from distilvec.train.checkpoint import checkpoint_file

    checkpoints = [checkpoint_file(path) for path in (folder, *(folder / "stages").glob("*/"))]
    return any(path.exists() for path in (*checkpoints, *(folder / name for name in RESULTS)))


def saved_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of the saved checkpoints by step, in order."""
    named = ((re.fullmatch(r"step-([0-9]+)", path.name), path) for path in (folder / "students").glob("step-*/"))
    return dict(sorted((int(match[1]), path) for match, path in named if match))


def _is_ours(folder: Path) -> bool:
    """Return whether the folder has the marker of a run or a sweep."""
    try:
        identity = json.loads((folder / MARKER).read_text(encoding="utf-8"))["id"]
        return re.fullmatch(r"[0-9a-f]{32}", identity) is not None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _changed_files(recipe: Section) -> str:
    """Describe a change that no key shows; the method's own file is the usual one."""
    method = getattr(recipe, "method", None)
    own = Path(method.name).name if method is not None and method.name.endswith(".py") else ""
    return f"{own}, its texts or its models changed" if own else "its files changed"


def _changed_keys(path: Path, recipe: Section) -> list[str]:
    """List the dotted keys whose value differs from the recipe in the folder."""
    if not path.exists():
        return []

    def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
        if not isinstance(tree, dict):
            return {prefix: tree}
        return {k: v for name, part in tree.items() for k, v in flat(part, f"{prefix}.{name}".lstrip(".")).items()}

    before, now = flat(recipes.read_tree(path)), flat(recipe.model_dump(mode="json"))
    return sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
