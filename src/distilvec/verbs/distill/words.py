"""The words of a command line of `distill`, checked before anything heavy is imported."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from distilvec.cli.options import check_model_path
from distilvec.core.errors import DistilvecError, about, nearest

STANDARD_INPUT = "-"
BUILT_IN = "python-docstrings"  # texts that every machine has, for a first try
DATA_SET_ID = re.compile(r"[\w.-]+/[\w.-]+")  # OWNER/NAME of the hub
GLOB_CHARACTERS = frozenset("*?[")


class TextName(str):
    """A word of the command line that names texts. In a list a plain str is a text itself; an address is no Path."""

    __slots__ = ()


def is_pattern(name: str) -> bool:
    """Return whether a name is a glob."""
    return bool(GLOB_CHARACTERS & set(name))


def text_paths(names: Sequence[str]) -> list[str]:
    """Return the names, and the files that globs among them stand for."""
    paths = list(names)
    for name in names:
        if is_pattern(name):
            paths += matching_files(name)
    return paths


def matching_files(pattern: str) -> list[str]:
    """Return the files of a glob, sorted."""
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - an absolute pattern is no Path.glob


def check_texts(names: Sequence[str]) -> None:
    """Refuse paths that do not exist."""
    for name in names:
        if name != STANDARD_INPUT and "://" not in name and not is_pattern(name):
            check_texts_name(name)


def check_texts_name(name: str) -> None:
    """Refuse a name that is neither a path nor OWNER/NAME of a data set."""
    from distilvec.data.readers import READABLE

    path = Path(name)
    if path.exists() or name == BUILT_IN:
        return
    # "data/texts.txt" has the form of an id, but a data set has no file ending, and no owner is a folder here
    looks_like_file = path.name.lower().endswith(READABLE) or path.parent.is_dir()
    if DATA_SET_ID.fullmatch(name) and not (looks_like_file and str(path.parent) != "."):
        return
    hint = ""
    if path.parent.is_dir():
        hint = nearest(path.name, [entry.name for entry in path.parent.iterdir()]).removeprefix("; ")
    fix = f"{hint[:1].upper()}{hint[1:]}" if hint else "Check the path."
    raise DistilvecError(f"{name} does not exist.", fix)


def read_dims(text: str) -> list[int]:
    """Read numbers with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise DistilvecError(
            f"found {text!r}; expected numbers with commas.", "Give for example 384,128.", key="--dims"
        )
    return [int(part) for part in parts]


def check_teacher(name: str) -> None:
    """Refuse a model or an index that is a path and does not exist, and an address of no known kind."""
    from distilvec.teachers.sources import check_source_kind, index_keys, source_kind

    with about("teacher"):
        check_source_kind(name)
        if source_kind(name) == "table":
            index_keys(name)
            return
    check_model_path(name, "teacher")


def is_change(word: str) -> bool:
    """Return whether a word is KEY=VALUE, not a file: keys are dotted names, and a file that exists is a file."""
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace(".", "").replace("_", "").isalnum() and not Path(word).exists()
