"""Runs below a folder, read from their files; nothing is computed, loaded or changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from distilvec.config import recipe as recipes
from distilvec.core.errors import about, plain_errors, user_error
from distilvec.core.files import folder_bytes, is_locked
from distilvec.core.run_folder import RunFolder
from distilvec.report.record import read_run_record
from distilvec.report.values import Report, Verdict, read_report
from distilvec.train.length import read_steps
from distilvec.train.metrics import read_metrics

State = Literal["finished", "running", "stopped", "damaged", "unreadable"]
AVERAGE = "all"  # of all tasks, in a report's averages


@dataclass(frozen=True)
class RunInfo:
    """A run folder, or a folder that could not be searched for runs: its state is "unreadable".

    `step` of `steps` is the last logged one; None before training, `steps` also where they are not known. `changed` is
    when the run last wrote a result. `score` is the student's average over the tasks times 100, `retention` that as per
    cent of the teacher's, `overlap_among` and `overlap_alone` the overlap@10 among the teacher's vectors and with its
    own; None where the run did not measure it. `problem` says why the state is "damaged" or "unreadable".
    """

    folder: Path
    name: str
    state: State
    step: int | None
    steps: int | None
    changed: datetime
    bytes: int
    parameters: int | None = None
    score: float | None = None
    retention: float | None = None
    overlap_among: float | None = None
    overlap_alone: float | None = None
    problem: str = ""

    @property
    def state_text(self) -> str:
        """The state in words."""
        if self.state == "finished" or self.step is None:
            return self.state
        progress = f"step {self.step:,}" if self.steps is None else f"step {self.step:,} of {self.steps:,}"
        return f"{self.state} at {progress}"


@plain_errors()
def runs(folder: str | Path = "runs") -> list[RunInfo]:
    """List the runs in a folder and below it, sweeps included, the newest first.

    A folder below it that cannot be read is listed with its problem, and does not hide the others.
    Errors: DistilvecError if there is no such folder, or if it cannot be read itself.
    """
    root = Path(folder)
    with about("folder", root):
        next(root.iterdir(), None)
    return sorted(runs_below(root), key=lambda run: run.changed, reverse=True)


def runs_below(folder: Path) -> Iterator[RunInfo]:
    """Yield the runs at and below a folder; what lies inside of a run is not searched."""
    run = RunFolder(folder)
    folders: list[Path] = []
    try:
        with about("folder", folder):
            is_run = run.marker.is_file() and not run.sweep.is_file()
            if not is_run:
                for path in sorted(folder.iterdir()):
                    if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                        folders.append(path)
    except Exception as error:
        problem = user_error(error)
        if problem is None:
            raise
        yield RunInfo(folder, folder.name, "unreadable", None, None, _last_touch(folder), 0, problem=str(problem))
        return
    if is_run:
        yield read_run(folder)
    for path in folders:
        yield from runs_below(path)


def _last_touch(folder: Path) -> datetime:
    """Return when a folder was changed; the beginning of time where not even that can be read."""
    with suppress(OSError):
        return datetime.fromtimestamp(folder.lstat().st_mtime, UTC)
    return datetime.fromtimestamp(0, UTC)


def read_run(folder: Path) -> RunInfo:
    """Read one run folder; damaged files, and those that may not be opened, are a state, not an error."""
    run = RunFolder(folder)
    changed, size = _last_touch(folder), 0
    try:
        with about("run folder", folder):
            # When it last wrote its record, a line of metrics, or its recipe
            files = [run.record, run.report, run.metrics, run.recipe, run.marker]
            seconds = max(path.stat().st_mtime for path in files if path.exists())
            changed = datetime.fromtimestamp(seconds, UTC)
            size = folder_bytes(folder)
            step, steps = training_progress(run)
            record = read_run_record(run)
            report = read_report(run) or Report()
            is_running = is_locked(run.lock)
    except Exception as error:
        problem = user_error(error)
        if problem is None:
            raise
        return RunInfo(folder, folder.name, "damaged", None, None, changed, size, problem=str(problem))

    if is_running:
        return RunInfo(folder, folder.name, "running", step, steps, changed, size)
    if record is None:
        return RunInfo(folder, folder.name, "stopped", step, steps, changed, size)
    verdict = report.verdict or Verdict()
    return RunInfo(
        folder,
        record.name or folder.name,
        "finished",
        step,
        step,
        changed,
        size,
        parameters=None if record.student is None else record.student.parameters,
        score=report.averages.get("student", {}).get(AVERAGE),
        retention=None if verdict.coverage else verdict.retention,
        overlap_among=verdict.overlap_among,
        overlap_alone=verdict.overlap_alone,
    )


def training_progress(run: RunFolder) -> tuple[int | None, int | None]:
    """Return the last logged step of the training, and the number of steps that it has in all.

    The total follows from the recipe's epochs and how far the last line has come; None where no epoch has begun, or
    where the recipe has something else in the place of a number. Of a recipe that leaves the length open it is in a
    file.
    """
    lines = read_metrics(run.metrics)
    if not lines:
        return None, None
    step, epoch = lines[-1]["step"], lines[-1].get("epoch")
    if not step or not epoch or not _is_number(epoch) or not run.recipe.exists():
        return step, None
    tree = recipes.read_tree(run.recipe)
    if tree.get("stages"):  # the last line counts the epochs of one of them
        return step, None
    train = tree.get("train")
    settings: dict[str, Any] = train if isinstance(train, dict) else {}
    epochs, most = settings.get("epochs", "auto"), settings.get("max_steps")
    if most is not None and not _is_number(most):
        return step, None
    if epochs == "auto":
        return step, most or read_steps(run.training)
    if not _is_number(epochs):
        return step, None
    total = round(epochs * step / epoch)
    return step, total if most is None else min(total, most)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
