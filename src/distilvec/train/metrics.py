"""The run's record: one JSON line a logged step in metrics.jsonl, and the same to whatever tracker accelerate knows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.files import write_file

KEY = "metrics.jsonl"
Callback = Callable[[int, dict[str, float]], object]  # (step, metrics by name), called for every line but warnings


class MetricsLog:
    """Appends to `metrics.jsonl`, and calls every callback with each line; of several processes only the main one does.

    A resumed run first drops the lines written after its checkpoint; callbacks get those steps again.
    """

    def __init__(
        self, path: Path, resume_step: int, accelerator: Accelerator, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.path, self.accelerator, self.callbacks = path, accelerator, callbacks
        kept = [line for line in read_metrics(path) if line["step"] <= resume_step] if resume_step else []
        self.warned = {
            line.get("kind", "collapse") for line in kept if "warning" in line
        }  # lines had no kind while there was one
        if not accelerator.is_main_process:
            return
        with explained(KEY, path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, "".join(_line(entry) for entry in kept), KEY)

    def write(self, step: int, epoch: float, **values: float) -> None:
        """One line; names use '/' as trackers do (`train__loss` is written `train/loss`).

        Errors: DistilvecError where a callback fails.
        """
        entry = {"step": step, "epoch": round(epoch, 4)} | {
            name.replace("__", "/", 1): value for name, value in values.items()
        }
        self._append(entry)
        metrics = {name: value for name, value in entry.items() if name != "step"}
        self.accelerator.log(metrics, step=step)
        for callback in self.callbacks if self.accelerator.is_main_process else ():
            try:
                callback(step, dict(metrics))
            except Exception as error:
                raise DistilvecError(
                    f"[callbacks] {_name(callback)} failed at step {step} with {type(error).__name__}: {first_line(error)}. "
                    "Correct the callback and start the same run again: it goes on from its last checkpoint."
                ) from error

    def warn(self, step: int, epoch: float, kind: str, text: str) -> None:
        """A line with a warning, which the report shows; trackers take numbers only. `kind` is what a resumed run's `warned` holds."""
        self._append({"step": step, "epoch": round(epoch, 4), "kind": kind, "warning": text})

    def sync(self) -> None:
        """Wait until all lines are on the disk: a checkpoint must not outlive lines of earlier steps."""
        if self.accelerator.is_main_process:
            with explained(KEY, self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    def _append(self, entry: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with explained(KEY, self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks of a run. Errors: DistilvecError for what cannot be called."""
    found = tuple(callbacks) if isinstance(callbacks, (list, tuple)) else None
    if found is None or not all(map(callable, found)):
        shown = type(callbacks).__name__ if found is None else ", ".join(type(one).__name__ for one in found)
        raise DistilvecError(
            f"[callbacks] expected a list of functions of step and metrics; found {shown}. Give [function]."
        )
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill, which can only be the last one, is left out.

    Errors: DistilvecError for a file that cannot be read, and for a damaged line.
    """
    if not path.exists():
        return []
    with explained(KEY, path):
        *lines, _ = path.read_bytes().split(b"\n")
    return [_read_line(line, number, path) for number, line in enumerate(lines, 1)]


WATCHED = ("distance", "similarity_gap", "accuracy", "spearman")
SCORES = ("accuracy", "spearman")  # on a labelled task: the greater the better


def validation_metric(line: Mapping[str, Any]) -> str | None:
    """The number to watch in a line of metrics.jsonl: "distance", "similarity_gap" where there is none, on a task the score.

    None for other lines.
    """
    return next((name for name in WATCHED if f"eval/{name}" in line), None)


def _name(callback: Callback) -> str:
    return str(getattr(callback, "__qualname__", type(callback).__qualname__))


def _line(entry: dict[str, Any]) -> str:
    clean = {k: (round(v, 8) if isinstance(v, float) and math.isfinite(v) else v) for k, v in entry.items()}
    return json.dumps(clean) + "\n"


def _read_line(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode())
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
        raise DistilvecError(
            f"[{KEY}] {path}: line {number} is damaged. Put back a copy of the file, or remove that line."
        )
    return entry
