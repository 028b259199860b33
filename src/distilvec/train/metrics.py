"""The run's record: one JSON line a logged step in metrics.jsonl, and the same to whatever tracker accelerate knows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator


class MetricsLog:
    """Appends to `metrics.jsonl`. A resumed run first drops the lines written after its checkpoint."""

    def __init__(self, path: Path, resume_step: int, accelerator: Accelerator) -> None:
        self.path, self.accelerator = path, accelerator
        kept = [line for line in read_metrics(path) if line["step"] <= resume_step] if resume_step else []
        self.warned = {line.get("kind", "collapse") for line in kept if "warning" in line}  # lines had no kind while there was one
        if not accelerator.is_main_process:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(_line(entry) for entry in kept), encoding="utf-8")

    def write(self, step: int, epoch: float, **values: float) -> None:
        """One line; names use '/' as trackers do (`train__loss` is written `train/loss`)."""
        entry = {"step": step, "epoch": round(epoch, 4)} | {name.replace("__", "/", 1): value for name, value in values.items()}
        self._append(entry)
        self.accelerator.log({k: v for k, v in entry.items() if k != "step"}, step=step)

    def warn(self, step: int, epoch: float, kind: str, text: str) -> None:
        """A line with a warning, which the report shows; trackers take numbers only. `kind` is what a resumed run's `warned` holds."""
        self._append({"step": step, "epoch": round(epoch, 4), "kind": kind, "warning": text})

    def _append(self, entry: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(entry))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file; a line torn by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


WATCHED = ("distance", "similarity_gap", "accuracy", "spearman")
SCORES = ("accuracy", "spearman")  # on a labelled task: the greater the better


def watched(line: Mapping[str, Any]) -> str | None:
    """The number to watch in a line of metrics.jsonl: "distance", "similarity_gap" where there is none, on a task the score.

    None for other lines.
    """
    return next((name for name in WATCHED if f"eval/{name}" in line), None)


def _line(entry: dict[str, Any]) -> str:
    clean = {k: (round(v, 8) if isinstance(v, float) and math.isfinite(v) else v) for k, v in entry.items()}
    return json.dumps(clean) + "\n"
