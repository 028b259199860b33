"""Dataclasses as JSON: one function that reads, one that writes.

A field with its default value is not written. A key that no field names is not read. Some keys of JSON are no names of
Python (`from`, `class`, `overlap@10`): their fields have an alias.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from distilvec.core.errors import DistilvecError
from distilvec.core.files import read_json

T = TypeVar("T")


def from_json(kind: type[T], content: Any) -> T:
    """Return the value of plain data of this program, such as what evaluation/ measures."""
    value: T = _adapter(kind).validate_python(content)
    return value


def to_json(value: Any, defaults: bool = False) -> dict[str, Any]:
    """Return a dataclass as plain data; with `defaults` every field of it."""
    # no warnings: an int where a float is declared is as good
    content: dict[str, Any] = _adapter(type(value)).dump_python(
        value, mode="json", by_alias=True, exclude_defaults=not defaults, warnings="none"
    )
    return content


def read_value(kind: type[T], path: Path, fix: str, *, sealed: bool = True) -> T:
    """Read a dataclass from a JSON file. `fix` ends the message."""
    content = read_json(path, fix, sealed=sealed)
    try:
        # types are compared strictly, as JSON has them: a score "80" is damage, a list is fine for a tuple
        value: T = _adapter(kind).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        value_text = "" if first["type"] == "missing" else f"; found {str(first['input'])[:80]!r}"
        raise DistilvecError(f"{path}: {key}: {first['msg']}{value_text}.", fix, key=path.name) from None
    return value


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader and writer of a type; it takes a while to build."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
