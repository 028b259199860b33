"""Relative paths in recipes: every path key of the schema, absolute before the recipe is validated.

Paths in a recipe file are relative to its folder, those typed on the command line to the current folder. Path keys are
fields of type Path, and those with a kind in `json_schema_extra` (config/base.py). `$DISTILVEC_DATA/FILE` is a file of
the data folder, which `distilvec data get` fills.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from distilvec.config.base import (
    CHANGES,
    CODE,
    GRID,
    INDEX,
    MODEL,
    WORKING,
    Section,
    child,
    excerpt,
    field_kind,
    key_text,
    kinds,
)
from distilvec.core.errors import DistilvecError, first_line

DATA = "$DISTILVEC_DATA"  # begins the paths of public data in recipes and suites
_BESIDE = Path(__file__).parents[4] / "shared" / "data"  # of a checkout


def resolve_tree(tree: Any, folder: Path, section: type[Section]) -> Any:
    """A recipe (or another section) as plain data, its relative paths and those of its variants below `folder`."""
    found = _resolve(section, None, tree, folder, "", section)
    if isinstance(found, dict) and isinstance(found.get("variants"), dict):
        named = found["variants"].items()
        found["variants"] = {name: _resolve(None, CHANGES, value, folder, "", section) for name, value in named}
    return found


def resolve_key(dotted: str, value: Any, folder: Path, section: type[Section]) -> Any:
    """The value of a dotted key, its relative paths below `folder`."""
    inner: Any = section
    *parents, last = (int(part) if part.isdecimal() and len(part) < 10 else part for part in dotted.split("."))
    for part in parents:
        inner = child(inner, part)
    return _resolve(child(inner, last), field_kind(inner, last), value, folder, dotted, section)


def absolute(text: str, folder: Path, key: str) -> str:
    """A path below `folder`; DistilvecError for one that is empty or that the system cannot have."""
    if not text.strip():
        raise DistilvecError(key, "the path is empty.", "Give a file or a folder, or leave the key out.")
    try:
        if text.split("/")[0] == DATA:
            return str(data_path(text[len(DATA) + 1 :]).resolve())
        return str((folder / Path(text).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise DistilvecError(key, f"{excerpt(text)} is no path: {first_line(error)}.", "Give another one.") from None


def data_folders() -> list[Path]:
    """The folders that public data is looked for in: $DISTILVEC_DATA alone, else `data` and the one near a checkout."""
    given = os.environ.get("DISTILVEC_DATA")
    return [Path(given).expanduser()] if given else [Path("data"), _BESIDE]


def data_path(name: str) -> Path:
    """A file or folder of the data folder: the first that exists, else its path in the first folder."""
    folders = data_folders()
    return next((folder / name for folder in folders if (folder / name).exists()), folders[0] / name)


def _resolve(annotation: Any, kind: Any, value: Any, folder: Path, key: str, root: type[Section]) -> Any:
    """A value of this annotation, and of this kind (config/base.py), with absolute paths."""
    if kind == WORKING:
        return value
    if isinstance(value, str) and kind in (MODEL, CODE):
        is_path = value.startswith(".") if kind == MODEL else value.endswith(".py")
        return absolute(value, folder, key) if is_path else value
    if isinstance(value, str) and kind == INDEX and "://" in value:
        return value
    if isinstance(value, (str, Path)):
        return absolute(str(value), folder, key) if Path in kinds(annotation) else value
    if isinstance(value, list):
        inner = [(child(annotation, number), item) for number, item in enumerate(value)]
        kind = kind if kind == MODEL else None
        return [_resolve(one, kind, item, folder, f"{key}.{n}", root) for n, (one, item) in enumerate(inner)]
    if not isinstance(value, dict):
        return value
    if kind == CHANGES:
        return {name: resolve_key(str(name), item, folder, root) for name, item in value.items()}
    if kind == GRID:
        return {name: _resolve_grid(str(name), items, folder, root) for name, items in value.items()}
    names = {name: f"{key}.{key_text(name)}".lstrip(".") for name in value}
    return {
        name: _resolve(child(annotation, name), field_kind(annotation, name), item, folder, names[name], root)
        for name, item in value.items()
    }


def _resolve_grid(name: str, items: Any, folder: Path, root: type[Section]) -> Any:
    return [resolve_key(name, item, folder, root) for item in items] if isinstance(items, list) else items
