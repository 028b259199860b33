"""The texts that a user names, as the sources of a recipe: files, folders, globs, data sets of the hub, `-`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from distilvec.config.recipe import section_of
from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, about, set_by, user_error
from distilvec.core.files import absolute_path
from distilvec.data.sources import read_source
from distilvec.pipeline.inputs import Texts, source_keys
from distilvec.verbs.distill.words import (
    BUILT_IN,
    LONG_TEXT,
    PIECE,
    STANDARD_INPUT,
    TextName,
    check_texts_name,
    is_pattern,
    matching_files,
)

LONG_SHARE = 0.05  # of a source's first texts: where fewer are long, pieces would change little
SAMPLE = 1000


def text_sources(texts: Texts | Sequence[Path], root: Path, *, role: str, language: str | None) -> list[dict[str, Any]]:
    """Return the recipe's sources for texts that a user names.

    A str or a Path is a file, folder, glob, address (s3://...), id of a data set, "python-docstrings", or "-", standard
    input with one text a line. A list of Path or TextName is several of them. A list of str is the texts themselves.

    Args:
        root: the cache's folder, in which texts that are in no file are stored
        role: "document" or "query"

    Errors are about `texts`, or `queries`.
    """
    sources: list[dict[str, Any]] = []
    names = _source_names(texts)
    argument = "queries" if role == "query" else "texts"
    with set_by({"texts": argument, "corpus.sources": argument}):
        for name in names:
            sources += _named_source(name, root)
        if not names:
            sources = source_keys(cast(Texts, texts), root)
        for source in sources:
            source["role"] = role
            if language is not None:
                source["language"] = language
            section_of(SourceSection, "corpus.sources", source)
    return sources


def with_pieces(sources: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources, and after each one with long texts a second source with its texts in pieces.

    A student that has only seen whole documents is far from its teacher on their paragraphs. Short texts are the same
    in both sources, and a corpus keeps only one of two equal texts.
    """
    result: list[dict[str, Any]] = []
    for source in sources:
        result.append(source)
        if _has_long_texts(source):
            name = SourceSection.model_validate(source).label
            result.append({**source, "name": f"{name[:50]}_pieces", "pieces": PIECE})
    return result


def with_column(sources: Sequence[dict[str, Any]], column: str, where_there: bool = False) -> list[dict[str, Any]]:
    """Return the sources with the column of their texts; `where_there`: only files that have the column get it."""
    return [
        {**source, "column": column} if not where_there or _has_column(source, column) else source for source in sources
    ]


def _has_column(source: dict[str, Any], column: str) -> bool:
    """Return whether the texts of a local file or folder can be read from a column."""
    if "path" not in source:
        return False
    section = SourceSection.model_validate({**source, "column": column})
    return next(_first_texts(section), None) is not None


def _source_names(texts: Texts | Sequence[Path]) -> list[str]:
    """Return the names of files, folders and data sets; empty for texts that are given as objects."""
    if isinstance(texts, (str, Path)):
        return [str(texts)]
    if isinstance(texts, (list, tuple)) and texts and all(isinstance(item, (Path, TextName)) for item in texts):
        return [str(item) for item in texts]
    return []


def _named_source(name: str, root: Path) -> list[dict[str, Any]]:
    """Return the sources of one name; a glob may have several."""
    if name == STANDARD_INPUT:
        # As in a .txt file: Python leaves the byte order mark and the line ends of other systems in the text
        content = io.StringIO(sys.stdin.read().removeprefix("\ufeff"), newline=None)
        lines = [line.rstrip("\n") for line in content]
        if not any(line.strip() for line in lines):
            raise DistilvecError("standard input has no text.", "Send one text a line.", key="texts")
        return source_keys(lines, root)
    if "://" in name:
        return [{"url": name}]
    if Path(name).exists():
        return [{"path": str(absolute_path(Path(name)))}]
    if name == BUILT_IN:
        return [{"builtin": BUILT_IN}]
    if is_pattern(name):
        files = matching_files(name)
        if not files:
            raise DistilvecError(f"no file matches {name}.", "Check the pattern, and put it in quotes.", key="texts")
        return [{"path": str(absolute_path(Path(file)))} for file in files]
    with about("texts"):
        check_texts_name(name)
    return [{"dataset": name}]


def _has_long_texts(source: dict[str, Any]) -> bool:
    """Return whether many of a local source's first texts are long; data sets and addresses are not read ahead."""
    if "path" not in source or "pieces" in source:
        return False
    section = SourceSection.model_validate(source)
    lengths = [len(text) for text in islice(_first_texts(section), SAMPLE)]
    long_texts = sum(length > LONG_TEXT for length in lengths)
    return bool(lengths) and long_texts >= LONG_SHARE * len(lengths)


def _first_texts(section: SourceSection) -> Iterator[str]:
    """Read a source; one that cannot be read has no texts here, since the corpus reports the problem with its line."""
    try:
        yield from read_source(section, 0)
    except Exception as error:
        if user_error(error) is None:
            raise
