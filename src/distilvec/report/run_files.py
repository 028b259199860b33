"""The JSON files of a run's folder, checked when they are read: sealed, complete, of the shape that readers rely on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, FiniteFloat, ValidationError, create_model

from distilvec.core.errors import DistilvecError
from distilvec.core.files import read_json

RECORD, REPORT = "distillation.json", "report.json"
RECORD_FORMAT, REPORT_FORMAT = 2, 3
RUN_AGAIN = "Delete it and run the same recipe again: it is made again, training is kept."


def _shape(required: Mapping[str, Any], **optional: Any) -> Any:
    """A model of an object with these keys; optional keys may be null, other keys are allowed."""
    fields = {key: (kind, ...) for key, kind in required.items()} | {
        key: (kind | None, None) for key, kind in optional.items()
    }
    config = ConfigDict(strict=True, extra="allow")
    return create_model("Shape", __config__=config, **fields)  # type: ignore[call-overload]


def _list(kind: Any) -> GenericAlias:
    return GenericAlias(list, (kind,))


_SCORE = _shape({"task": str, "type": str, "metric": str, "value": FiniteFloat})
_SCORES = GenericAlias(dict, (str, _list(_SCORE)))
_COSTS = dict.fromkeys(("minutes", "texts", "steps", "distance"), FiniteFloat)
_PART = _shape({}, name=str, fingerprint=str, parameters=int, seed=int, **_COSTS)
_PARTS = dict.fromkeys(("teacher", "student", "data", "method", "training", "metrics"), _PART)
_RECORD = _shape({}, name=str, scores=_SCORES, more_teachers=_list(_PART), **_PARTS)
_TIMING, _MODEL = _shape({"texts_per_second": FiniteFloat}, median_ms=FiniteFloat), _shape({}, megabytes=FiniteFloat)
_SPEED = _shape({}, rows=_list(_TIMING), models=GenericAlias(dict, (str, _MODEL)))
_SHAPES = {
    RECORD: _RECORD,
    REPORT: _shape({}, scores=_SCORES, failures=list[dict[str, Any]], speed=_SPEED, record=_RECORD),
}


def read_run_file(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of a run's file (RECORD, REPORT); None where there is no file.

    Errors: DistilvecError for a file that is damaged, was changed by hand, or lacks a required key.
    """
    path = folder / name
    if not path.exists():
        return None
    content = read_json(path, RUN_AGAIN)
    try:
        _SHAPES[name].model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        found = "" if first["type"] == "missing" else f"; found {str(first['input'])[:80]!r}"
        raise DistilvecError(name, f"{path}: {key}: {first['msg']}{found}.", RUN_AGAIN) from None
    return content
