"""Metrics of a run: one JSON line per logged step in metrics.jsonl, also for accelerate's trackers and callbacks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from distilvec.core import processes
from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.files import write_file

KEY = "metrics.jsonl"
MONITORED = ("distance", "similarity_gap", "f1", "accuracy", "spearman")  # numbers of validation, the first one counts
SCORES = ("f1", "accuracy", "spearman")  # on a labelled task: greater is better
Callback = Callable[[int, dict[str, float]], object]  # (step, metrics by name), called for every line but warnings


class MetricsLog:
    """Appends to `metrics.jsonl` and calls every callback with each line, in the main process only."""

    def __init__(self, path: Path, accelerator: Accelerator, callbacks: Sequence[Callback] = ()) -> None:
        self.path, self.accelerator, self.callbacks = path, accelerator, callbacks

    def resume(self, step: int) -> set[str]:
        """Drop the lines after a checkpoint's step, which are written again; return the kinds of earlier warnings."""
        kept = [line for line in read_metrics(self.path) if line["step"] <= step] if step else []
        if processes.is_main():
            with explained(KEY, self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_file(self.path, "".join(map(_line, kept)), KEY)
        return {line["kind"] for line in kept if "warning" in line}

    def write(self, step: int, epoch: float, prefix: str, values: Mapping[str, float]) -> None:
        """Write a line with `values`, named `<prefix>/<name>`. Errors: DistilvecError if a callback fails."""
        metrics = {"epoch": round(epoch, 4)} | {f"{prefix}/{name}": value for name, value in values.items()}
        self._append({"step": step} | metrics)
        self.accelerator.log(metrics, step=step)
        for callback in self.callbacks if processes.is_main() else ():
            try:
                callback(step, dict(metrics))
            except Exception as error:
                name = getattr(callback, "__qualname__", type(callback).__qualname__)
                raise DistilvecError(
                    "callbacks",
                    f"{name} failed at step {step} with {type(error).__name__}: {first_line(error)}.",
                    "Correct the callback and start the same run again: it goes on from its last checkpoint.",
                ) from error

    def warn(self, step: int, epoch: float, kind: str, text: str) -> None:
        """Write a line with a warning, for the report; trackers take numbers only."""
        self._append({"step": step, "epoch": round(epoch, 4), "kind": kind, "warning": text})

    def sync(self) -> None:
        """Wait until all lines are on the disk: a checkpoint must not outlive lines of earlier steps."""
        if processes.is_main():
            with explained(KEY, self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    def _append(self, entry: dict[str, Any]) -> None:
        if processes.is_main():
            with explained(KEY, self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))


class RunningMeans:
    """Sums since the last logged line, kept on the device so that no step waits for a number.

    `state` goes into checkpoints: sum and count of each term, seconds that steps waited for data, and texts, tokens and
    seconds at the last line.
    """

    def __init__(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        self.state = {name: value.to(device) if name.startswith("sum/") else value for name, value in state.items()}
        self.rate = 0.0

    def add(self, terms: Mapping[str, Tensor], rate: float, waited: float = 0.0) -> None:
        """Add a step's terms and the seconds that it waited for data."""
        self.rate = rate
        self.state["waited"] = self.state.get("waited", torch.zeros((), dtype=torch.float64)) + waited
        for name, values in terms.items():
            for key, value in ((f"sum/{name}", values.sum()), (f"count/{name}", torch.tensor(len(values)))):
                self.state[key] = self.state[key] + value if key in self.state else value

    def metrics(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Mean of the weighted loss and of each term, and the learning rate."""
        sums = {name.removeprefix("sum/"): value for name, value in self.state.items() if name.startswith("sum/")}
        terms = {name: float(value) / int(self.state[f"count/{name}"]) for name, value in sums.items()}
        loss = sum(weights[name] * value for name, value in terms.items())
        return {"loss": loss, **{f"loss_{name}": value for name, value in terms.items()}, "learning_rate": self.rate}

    def restart(self, texts: int, tokens: int, seconds: float) -> dict[str, float]:
        """Start again from these numbers and seconds of training; return the speed up to here.

        texts and tokens per second, and `wait`, the share of the seconds that steps waited for data.
        """
        before, self.state = self.state, {"since": torch.tensor([texts, tokens, seconds], dtype=torch.float64)}
        done = (self.state["since"] - before.get("since", 0)).tolist()
        found = {"texts_per_second": done[0], "tokens_per_second": done[1], "wait": float(before.get("waited", 0))}
        return {name: value / max(done[2], 1e-9) for name, value in found.items()}


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple; DistilvecError if one cannot be called."""
    if isinstance(callbacks, (list, tuple)) and all(map(callable, callbacks)):
        return tuple(callbacks)
    raise DistilvecError(
        "callbacks",
        f"expected a list of functions of step and metrics; found {str(callbacks)[:200]}.",
        "Give [function].",
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a metrics file; a last line torn by a kill is left out.

    Errors: DistilvecError for a file that cannot be read, and for a damaged line.
    """
    if not path.exists():
        return []
    with explained(KEY, path):
        *lines, _ = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line.decode()))
            intact = isinstance(found[-1], dict) and isinstance(found[-1].get("step"), int)
        except (ValueError, RecursionError):
            intact = False
        if not intact:
            fix = "Put back a copy of the file, or remove that line."
            raise DistilvecError(KEY, f"{path}: line {number} is damaged.", fix)
    return found


def validation_metric(line: Mapping[str, Any]) -> str | None:
    """Name of the monitored number in a line of metrics.jsonl; None in other lines."""
    return next((name for name in MONITORED if f"eval/{name}" in line), None)


def _line(entry: dict[str, Any]) -> str:
    clean = {k: (round(v, 8) if isinstance(v, float) and math.isfinite(v) else v) for k, v in entry.items()}
    return json.dumps(clean) + "\n"
