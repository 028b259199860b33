"""Metrics of a run: one JSON line per logged step in metrics.jsonl, also for accelerate's trackers and callbacks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from distilvec.core import processes
from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import write_file

KEY = "metrics.jsonl"
TEXTS = ("kind", "warning", "watched", "better")  # keys of a line whose values are texts
VALIDATION_OVERLAP = "overlap_of_validation_texts"  # among themselves; the name of a number of each validation
OVERLAP_BY_CHANCE = 0.02  # an overlap@10 that differs by less is the same
Callback = Callable[[int, dict[str, float]], object]  # (step, metrics by name), called for every line but warnings


@dataclass(frozen=True)
class Metric:
    """The number that validation watches. Only train/validation.py knows its name and what it means.

    higher_is_better: which way is better; None where it does not tell which of two students is the better one
    """

    name: str
    value: float
    higher_is_better: bool | None

    @property
    def title(self) -> str:
        """The name in sentences and figures."""
        return self.name.replace("_", " ")

    def is_better_than(self, other: Metric, share: float = 0.0) -> bool:
        """Whether it is better by more than this share of the other's value."""
        return self._gain(other) > share * abs(other.value)

    def is_worse_than(self, other: Metric, share: float = 0.0) -> bool:
        """Whether it is worse by more than this share of the other's value, as nan is."""
        return not -self._gain(other) <= share * abs(other.value)

    def _gain(self, other: Metric) -> float:
        return self.value - other.value if self.higher_is_better else other.value - self.value


class MetricsLog:
    """Appends to `metrics.jsonl` and calls every callback with each line, in the main process only."""

    def __init__(self, path: Path, accelerator: Accelerator, callbacks: Sequence[Callback] = ()) -> None:
        self.path = path
        self.accelerator = accelerator
        self.callbacks = callbacks

    def resume(self, step: int) -> set[str]:
        """Drop the lines after a checkpoint's step, which are written again; return the kinds of earlier warnings."""
        lines: list[dict[str, Any]] = []
        if step:
            lines = [line for line in read_metrics(self.path) if line["step"] <= step]
        if processes.is_main():
            with about(KEY, self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                write_file(self.path, "".join(map(_line, lines)))
        return {line["kind"] for line in lines if "warning" in line}

    def write(
        self, step: int, epoch: float, prefix: str, values: Mapping[str, float], watched: Metric | None = None
    ) -> None:
        """Write a line with `values`, named `<prefix>/<name>`; of a validation also which of them is watched."""
        metrics = {"epoch": round(epoch, 4)} | {f"{prefix}/{name}": value for name, value in values.items()}
        self._append({"step": step} | metrics | _watched_keys(watched))
        self.accelerator.log(metrics, step=step)
        for callback in self.callbacks if processes.is_main() else ():
            try:
                callback(step, dict(metrics))
            except Exception as error:
                name = getattr(callback, "__qualname__", type(callback).__qualname__)
                raise DistilvecError(
                    f"{name} failed at step {step} with {type(error).__name__}: {first_line(error)}.",
                    "Correct the callback and start the same run again: it goes on from its last checkpoint.",
                    key="callbacks",
                ) from error

    def warn(self, step: int, epoch: float, kind: str, text: str) -> None:
        """Write a line with a warning, for the report; trackers take numbers only."""
        self._append({"step": step, "epoch": round(epoch, 4), "kind": kind, "warning": text})

    def sync(self) -> None:
        """Wait until all lines are on the disk: a checkpoint must not outlive lines of earlier steps."""
        if processes.is_main():
            with about(KEY, self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    def _append(self, entry: dict[str, Any]) -> None:
        if processes.is_main():
            with about(KEY, self.path), self.path.open("a", encoding="utf-8") as file:
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
            self._add(f"sum/{name}", values.sum())
            self._add(f"count/{name}", torch.tensor(len(values)))

    def _add(self, key: str, value: Tensor) -> None:
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
        waited = float(self.state.get("waited", 0))
        since = self.state.get("since", 0)
        self.state = {"since": torch.tensor([texts, tokens, seconds], dtype=torch.float64)}
        new_texts, new_tokens, new_seconds = (self.state["since"] - since).tolist()
        new_seconds = max(new_seconds, 1e-9)
        return {
            "texts_per_second": new_texts / new_seconds,
            "tokens_per_second": new_tokens / new_seconds,
            "wait": waited / new_seconds,
        }


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks as a tuple; DistilvecError if one cannot be called."""
    if isinstance(callbacks, (list, tuple)) and all(map(callable, callbacks)):
        return tuple(callbacks)
    raise DistilvecError(
        f"expected a list of functions of step and metrics; found {str(callbacks)[:200]}.",
        "Give [function].",
        key="callbacks",
    )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a metrics file; a last line torn by a kill is left out."""
    if not path.exists():
        return []
    with about(KEY, path):
        *lines, _ = path.read_bytes().split(b"\n")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line.decode())
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("step"), int) or not _is_line(entry):
            fix = "Put back a copy of the file, or remove that line."
            raise DistilvecError(f"{path}: line {number} is damaged.", fix, key=KEY)
        entries.append(entry)
    return entries


def _is_line(entry: dict[str, Any]) -> bool:
    """Whether a line has what is written: numbers by name, and the texts of a warning."""
    for name, value in entry.items():
        expected = str if name in TEXTS else (int, float, type(None))
        if not isinstance(value, expected):
            return False
    return "watched" not in entry or f"eval/{entry['watched']}" in entry


def _watched_keys(watched: Metric | None) -> dict[str, str]:
    """What a line of a validation says of the metric that is watched; see `watched_metric`."""
    if watched is None:
        return {}
    if watched.higher_is_better is None:
        return {"watched": watched.name}
    return {"watched": watched.name, "better": "higher" if watched.higher_is_better else "lower"}


def watched_metric(line: Mapping[str, Any]) -> Metric | None:
    """The metric that is watched, in a validation's line of metrics.jsonl; None in other lines."""
    name = line.get("watched")
    if name is None:
        return None
    value = line.get(f"eval/{name}")
    higher_is_better = line["better"] == "higher" if "better" in line else None
    return Metric(name, math.nan if value is None else value, higher_is_better)


@dataclass(frozen=True)
class ShippedNumbers:
    """The numbers of validation of the student that ships.

    numbers: by name; `untrained_<name>` of the watched one is that of the student before training
    watched: the one that validation watches
    """

    numbers: dict[str, float]
    watched: Metric


def shipped_numbers(metrics: Sequence[Path], best_step: int) -> ShippedNumbers:
    """Return what validation says of the student that ships.

    `metrics` are the files of the stages, `best_step` the step of the last stage after which the student was saved.
    """
    first = [line for line in read_metrics(metrics[0]) if "watched" in line]
    last = [line for line in read_metrics(metrics[-1]) if "watched" in line]
    shipped = [line for line in last if line["step"] == best_step]
    if not first or not shipped:
        path = metrics[-1] if first else metrics[0]
        problem = f"{path} has no validation metrics of the student that ships."
        raise DistilvecError(problem, "Start over: --restart.", key=KEY)
    numbers = {key.removeprefix("eval/"): value for key, value in shipped[-1].items() if key.startswith("eval/")}
    watched = watched_metric(shipped[-1])
    assert watched is not None
    if f"eval/{watched.name}" in first[0]:  # another method, in another stage, may watch another number
        numbers[f"untrained_{watched.name}"] = first[0][f"eval/{watched.name}"]
    return ShippedNumbers(numbers, watched)


def _line(entry: dict[str, Any]) -> str:
    rounded = dict(entry)
    for name, value in entry.items():
        if isinstance(value, float) and math.isfinite(value):
            rounded[name] = round(value, 8)
    return json.dumps(rounded) + "\n"
