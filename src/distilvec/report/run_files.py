"""The JSON files of a run's folder, checked when they are read: sealed, whole, and of the shape that comparisons and pages use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, ValidationError

from distilvec.core.errors import DistilvecError
from distilvec.core.files import read_json

RECORD, REPORT, SHARPNESS = "distillation.json", "report.json", "sharpness.json"
RUN_AGAIN = "Delete it and run the same recipe again: it is made again, training is kept."
MEASURE_AGAIN = "Delete it and measure again: distilvec sharpness."


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Score(_Part):
    task: str
    type: str
    metric: str
    value: FiniteFloat


class _Named(_Part):
    name: str | None = None
    fingerprint: str | None = None


class _Student(_Part):
    parameters: int | None = None


class _Training(_Part):
    minutes: FiniteFloat | None = None
    texts: FiniteFloat | None = None
    steps: FiniteFloat | None = None
    seed: int | None = None


class _Metrics(_Part):
    distance: FiniteFloat | None = None


class _Record(_Part):
    name: str | None = None
    teacher: _Named | None = None
    more_teachers: list[_Named] = []
    student: _Student | None = None
    data: _Named | None = None
    method: _Named | None = None
    training: _Training | None = None
    metrics: _Metrics | None = None
    scores: dict[str, list[_Score]] | None = None


class _Timing(_Part):
    texts_per_second: FiniteFloat


class _Speed(_Part):
    rows: list[_Timing] | None = None


class _Report(_Part):
    scores: dict[str, list[_Score]] | None = None
    failures: list[dict[str, Any]] | None = None
    speed: _Speed | None = None
    record: _Record | None = None


class _Point(_Part):
    step: int
    epoch: FiniteFloat | None
    loss: FiniteFloat
    lambda_max: FiniteFloat
    sam: FiniteFloat
    asam: FiniteFloat
    trace: FiniteFloat | None = None
    trace_error: FiniteFloat | None = None


class _Sharpness(_Part):
    points: list[_Point]


_SHAPES: dict[str, tuple[type[_Part], str]] = {
    RECORD: (_Record, RUN_AGAIN),
    REPORT: (_Report, RUN_AGAIN),
    SHARPNESS: (_Sharpness, MEASURE_AGAIN),
}


def read_run_file(folder: Path, name: str) -> dict[str, Any] | None:
    """One of a run's files (RECORD, REPORT, SHARPNESS); None where there is none.

    Errors: DistilvecError for a file that is damaged, was changed by hand, or lacks what it should hold.
    """
    path, (shape, fix) = folder / name, _SHAPES[name]
    if not path.exists():
        return None
    content = read_json(path, fix)
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        found = "" if first["type"] == "missing" else f"; found {str(first['input'])[:80]!r}"
        raise DistilvecError(f"[{name}] {path}: {place}: {first['msg']}{found}. {fix}") from None
    return content
