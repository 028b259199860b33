"""Relative paths in recipes: they become absolute when a file or command line is read, before anything is merged.

Paths in a recipe file are relative to its folder, those typed on the command line to the current folder. Both end in
one tree, so they cannot wait for validation, which knows one folder only. Which keys hold paths is said by their
annotations: type Path, or a PathMark (config/base.py). A model's name, `models/small`, is a path if there is such a
folder, below the recipe's folder or the current one. A file in the place of a section, or of a list of sections,
becomes that section, so that a recipe has one form from here on: `sources: texts.txt` is a list of {path: ...}.
`$DISTILVEC_DATA/FILE` is a file of the data folder, which `distilvec data get` fills.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distilvec.config.base import Mark, PathMark, Section, child, excerpt, is_section, key_text, kinds, marks
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.files import absolute_path

DATA = "$DISTILVEC_DATA"  # begins the paths of public data in recipes and suites
WRITTEN = frozenset({"output", "cache"})  # keys of a recipe whose folders are not read, but written to


def resolve_tree(tree: Any, folder: Path, section: type[Section]) -> Any:
    """A recipe (or another section) as plain data, its relative paths and those of its variants below `folder`."""
    resolved = _resolve(tree, section, folder, "", section)
    if isinstance(resolved, dict) and isinstance(resolved.get("variants"), dict):
        variants = resolved["variants"].items()
        resolved["variants"] = {name: _resolve_changes(changes, folder, section) for name, changes in variants}
    return resolved


def resolve_key(dotted: str, value: Any, folder: Path, section: type[Section]) -> Any:
    """The value of a dotted key, its relative paths below `folder`."""
    return _resolve(value, _annotation_at(dotted, section), folder, dotted, section)


def input_names(values: Mapping[str, Any], section: type[Section]) -> Iterator[str | Path]:
    """Yield the paths that are read, of a section's values by dotted key; relative ones are of the current folder.

    Folders that are written to, for runs and stored work, are left out.
    """
    for dotted, value in values.items():
        if dotted.split(".")[0] not in WRITTEN:
            yield from _path_names(value, _annotation_at(dotted, section), section)


def absolute(text: str, folder: Path, key: str) -> str:
    """A path below `folder`; DistilvecError for an empty one, and for one that the system does not allow."""
    if not text.strip():
        raise DistilvecError("the path is empty.", "Give a file or a folder, or leave the key out.", key=key)
    try:
        if text.split("/")[0] == DATA:
            return str(absolute_path(data_folder() / text[len(DATA) + 1 :]))
        return str(absolute_path(folder / Path(text).expanduser()))
    except (OSError, RuntimeError, ValueError) as error:
        raise DistilvecError(f"{excerpt(text)} is not a valid path: {first_line(error)}.", key=key) from None


def data_folder() -> Path:
    """The folder of public data: $DISTILVEC_DATA, else `data` in the current folder."""
    return Path(os.environ.get("DISTILVEC_DATA") or "data").expanduser()


def _resolve(value: Any, annotation: Any, folder: Path, key: str, root: type[Section]) -> Any:
    """The value of a key with this annotation, its paths below `folder`; dotted keys inside begin at `root`."""
    value = _in_full(value, annotation)
    if isinstance(value, (str, Path)):
        for start in (folder, Path.cwd()):  # libraries look for a model in the current folder
            if _is_path(str(value), annotation, start):
                return absolute(str(value), start, key)
        return value
    if isinstance(value, list):
        return [
            _resolve(item, child(annotation, index), folder, f"{key}.{index}", root) for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    if Mark.CHANGES in marks(annotation):
        return _resolve_changes(value, folder, root)
    if Mark.GRID in marks(annotation):
        grid = {}
        for dotted, values in value.items():
            grid[dotted] = values
            if isinstance(values, list):
                grid[dotted] = [resolve_key(str(dotted), choice, folder, root) for choice in values]
        return grid
    resolved = {}
    for name, item in value.items():
        item_annotation = child(annotation, name)
        if _is_no_path_beside(value, item_annotation):
            resolved[name] = item
            continue
        item_key = f"{key}.{key_text(name)}".lstrip(".")
        resolved[name] = _resolve(item, item_annotation, folder, item_key, root)
    return resolved


def _path_names(value: Any, annotation: Any, root: type[Section]) -> Iterator[str | Path]:
    """Yield the texts of a value in the places of paths; dotted keys inside begin at `root`."""
    value = _in_full(value, annotation)
    if isinstance(value, (str, Path)):
        if _is_path(str(value), annotation, Path.cwd()):
            yield value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _path_names(item, child(annotation, index), root)
    elif isinstance(value, dict) and Mark.CHANGES in marks(annotation):
        yield from input_names(value, root)
    elif isinstance(value, dict):
        for name, item in value.items():
            item_annotation = child(annotation, name)
            if not _is_no_path_beside(value, item_annotation):
                yield from _path_names(item, item_annotation, root)


def _annotation_at(dotted: str, section: type[Section]) -> Any:
    """Return the annotation of a dotted key; None for one that the section does not have."""
    annotation: Any = section
    for part in dotted.split("."):
        is_index = part.isdecimal() and len(part) < 10
        annotation = child(annotation, int(part) if is_index else part)
    return annotation


def _in_full(value: Any, annotation: Any) -> Any:
    """Return a text in the place of a section, or of a list of sections, as that section or list."""
    if not isinstance(value, (str, Path)):
        return value
    if key := _text_key(annotation):
        return {key: str(value)}
    return [value] if _text_key(child(annotation, 0)) else value


def _text_key(annotation: Any) -> str | None:
    """Return the key that a text stands for in the place of a section; None for other annotations."""
    for kind in kinds(annotation):
        if is_section(kind):
            return kind.text_key
    return None


def _is_path(text: str, annotation: Any, folder: Path) -> bool:
    mark = _path_mark(annotation)
    return Path in kinds(annotation) if mark is None else mark.is_path(text, folder)


def _path_mark(annotation: Any) -> PathMark | None:
    return next((mark for mark in marks(annotation) if isinstance(mark, PathMark)), None)


def _is_no_path_beside(section: Mapping[str, Any], annotation: Any) -> bool:
    """Return whether another key of the section says that this one holds no path, as `api` beside `model`."""
    mark = _path_mark(annotation)
    return mark is not None and mark.unless is not None and section.get(mark.unless) is not None


def _resolve_changes(changes: Any, folder: Path, root: type[Section]) -> Any:
    """Values by dotted key, their paths below `folder`; anything else as it is, for validation to refuse."""
    if not isinstance(changes, dict):
        return changes
    return {dotted: resolve_key(str(dotted), value, folder, root) for dotted, value in changes.items()}
