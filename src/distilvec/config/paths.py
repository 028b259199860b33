"""Relative paths in recipes: every path key of the schema, absolute before the recipe is validated.

Paths in a recipe file are relative to its folder, those typed on the command line to the current folder. What is a path
is in the schema: fields of type Path, and the marks of config/base.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

from distilvec.config.base import (
    CHANGES,
    CODE,
    GRID,
    MODEL,
    WORKING,
    Section,
    child,
    excerpt,
    is_section,
    key_text,
    members,
)
from distilvec.core.errors import DistilvecError, first_line


def resolve_tree(tree: Any, folder: Path, section: type[Section]) -> Any:
    """A recipe (or another section) as plain data, its relative paths and those of its variants below `folder`."""
    found = _resolve_section(tree, folder, section, "", section)
    variants = found.get("variants") if isinstance(found, dict) else None
    if isinstance(variants, dict):
        found["variants"] = {name: _resolve_changes(changes, folder, section) for name, changes in variants.items()}
    return found


def resolve_key(dotted: str, value: Any, folder: Path, section: type[Section]) -> Any:
    """The value of a dotted key, its relative paths below `folder`."""
    inner: Any = section
    *parents, last = dotted.split(".")
    for part in parents:
        inner = child(inner, int(part) if part.isdecimal() and len(part) < 10 else part)
    for kind in members(inner):
        if is_section(kind):
            return _resolve_field(kind, last, value, folder, dotted, section)
    return _resolve(child(inner, 0), value, folder, dotted, section)


def absolute(text: str, folder: Path, key: str) -> str:
    """A path below `folder`; DistilvecError for one that is empty or that the system cannot have."""
    if not text.strip():
        raise DistilvecError(f"[{key}] the path is empty. Give a file or a folder, or leave the key out.")
    try:
        return str((folder / Path(text).expanduser()).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise DistilvecError(f"[{key}] {excerpt(text)} is no path: {first_line(error)}. Give another one.") from None


def _resolve_section(tree: Any, folder: Path, section: type[Section], key: str, root: type[Section]) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {
        name: _resolve_field(section, name, value, folder, f"{key}.{key_text(name)}".lstrip("."), root)
        for name, value in tree.items()
    }


def _resolve_field(section: type[Section], name: Any, value: Any, folder: Path, key: str, root: type[Section]) -> Any:
    field = section.model_fields.get(name)
    mark = field.json_schema_extra if field is not None else None
    if field is None or mark == WORKING:
        return value
    if mark == CHANGES:
        return _resolve_changes(value, folder, root)
    if mark == GRID and isinstance(value, dict):
        many = {name: values if isinstance(values, list) else [] for name, values in value.items()}
        return {
            **value,
            **{
                name: [resolve_key(str(name), one, folder, root) for one in values]
                for name, values in many.items()
                if values
            },
        }
    if isinstance(value, str) and (
        (mark == MODEL and value.startswith(".")) or (mark == CODE and value.endswith(".py"))
    ):
        return absolute(value, folder, key)
    return _resolve(field.annotation, value, folder, key, root)


def _resolve(annotation: Any, value: Any, folder: Path, key: str, root: type[Section]) -> Any:
    for kind in members(annotation):
        if kind is Path and isinstance(value, (str, Path)):
            return absolute(str(value), folder, key)
        if is_section(kind) and isinstance(value, dict):
            return _resolve_section(value, folder, kind, key, root)
        inner = get_args(kind)
        if get_origin(kind) is list and isinstance(value, list):
            return [_resolve(inner[0], item, folder, f"{key}.{place}", root) for place, item in enumerate(value)]
        if get_origin(kind) is dict and isinstance(value, dict):
            return {
                name: _resolve(inner[1], item, folder, f"{key}.{key_text(name)}", root) for name, item in value.items()
            }
    return value


def _resolve_changes(changes: Any, folder: Path, root: type[Section]) -> Any:
    """Dotted keys with values."""
    if not isinstance(changes, dict):
        return changes
    return {key: resolve_key(str(key), value, folder, root) for key, value in changes.items()}
