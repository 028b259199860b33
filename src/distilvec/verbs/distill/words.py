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
FEWEST_TEXTS = 20
# Texts that a model reads only in part are trained on in pieces as well. Both numbers are characters: a token
# has about four in English, so that a long text fills the 256 tokens that many small models read.
LONG_TEXT = 1000
PIECE = 400
ENOUGH_TEXTS = 1000
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


def check_content(names: Sequence[str], column: str | None) -> int:
    """Read the first texts of local files: a wrong column, an unreadable file and too few texts are refused at once.

    Return their number, at most ENOUGH_TEXTS. What is elsewhere, and standard input, is read later, and is enough.
    """
    from distilvec.config.schema import SourceSection
    from distilvec.data.sources import read_source

    texts: set[str] = set()
    pieces = 0
    for position, name in enumerate(names):
        if name in (STANDARD_INPUT, BUILT_IN) or is_pattern(name) or not Path(name).exists():
            return ENOUGH_TEXTS
        source = SourceSection(path=Path(name), column=column)
        for text in read_source(source, position):
            texts |= {text.strip()} - {""}
            if len(text) > LONG_TEXT:
                pieces += len(text) // PIECE
            if len(texts) + pieces >= ENOUGH_TEXTS:
                return ENOUGH_TEXTS
    if len(texts) + pieces >= FEWEST_TEXTS:
        return len(texts) + pieces
    raise DistilvecError(
        f"found {len(texts)} different texts; a student needs {FEWEST_TEXTS}, and is of use from {ENOUGH_TEXTS:,} on.",
        "Give more texts like those that the student will read.",
        key="texts",
    )


def check_first_rows(names: Sequence[str]) -> None:
    """Read the first text of local files: a wrong column and an unreadable file are refused at once."""
    from distilvec.config.schema import SourceSection
    from distilvec.data.sources import read_source

    for position, name in enumerate(names):
        if name not in (STANDARD_INPUT, BUILT_IN) and not is_pattern(name) and Path(name).exists():
            next(iter(read_source(SourceSection(path=Path(name)), position)), None)


def check_has_texts(teacher: object, texts: object) -> None:
    """Refuse a teacher without stored texts where none are named."""
    if texts is None:
        example = teacher if isinstance(teacher, str) else "TEACHER"
        raise DistilvecError(
            "no texts to train on.",
            f"Name a file or folder of texts like those that the student will read: distilvec distill {example} TEXTS.",
            key="texts",
        )


def read_dims(text: str) -> list[int]:
    """Read numbers with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise DistilvecError(
            f"found {text!r}; expected numbers with commas.", "Give for example 384,128.", key="--dims"
        )
    return [int(part) for part in parts]


def check_teacher(name: str, texts: Sequence[str] = ()) -> None:
    """Refuse a model or an index that is a path and does not exist, an address of no known kind, and texts."""
    from distilvec.data.readers import READABLE
    from distilvec.teachers.indexes.stores import read_address
    from distilvec.teachers.sources import check_source_kind, index_keys, source_kind

    with about("teacher"):
        if source_kind(name) == "model" and "://" in name:
            read_address(name)  # says which addresses there are
        if source_kind(name) == "model" and name.lower().endswith(READABLE) and Path(name).is_file():
            model = texts[0] if len(texts) == 1 and not Path(texts[0]).is_file() else "all-MiniLM-L6-v2"
            problem = f"{name} is a file of texts, and the teacher comes first."
            raise DistilvecError(problem, f"Give: distilvec distill {model} {name}.")
        check_source_kind(name)
        if source_kind(name) == "table":
            index_keys(name)
            return
    check_model_path(name, "teacher")


def is_change(word: str) -> bool:
    """Return whether a word is KEY=VALUE, not a file: keys are dotted names, and a file that exists is a file."""
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace(".", "").replace("_", "").isalnum() and not Path(word).exists()
