"""The sources that vectors come from, told by their names alone: their kinds, and an index as a recipe's section.

Nothing is opened, and no torch is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import absolute_path
from distilvec.core.model_name import MODEL_FILES
from distilvec.teachers.indexes.stores import is_index, nothing_to_read, open_reader, read_address

Kind = Literal["model", "export", "table", "api"]

OPENAI = "openai:"
EXPORTS = (".onnx", ".xml")
NAMES: dict[Kind, str] = {
    "model": "a model",
    "export": "the file of an export",
    "table": "a table of vectors or an index",
    "api": "a model behind an API",
}


def source_kind(source: object) -> Kind:
    """Return the kind of a source: a path, id or address by its form, an object in memory is a model."""
    if not isinstance(source, (str, os.PathLike)):
        return "model"
    name = str(source)
    if name.startswith(OPENAI) or name.partition("://")[0] in ("http", "https"):
        return "api"
    if is_index(name):
        return "table"
    if Path(name).suffix in EXPORTS:
        return "export"
    return "model"


def check_source_kind(source: object) -> None:
    """Raise DistilvecError for a path to something that vectors do not come from: the files of other stores, texts."""
    if not isinstance(source, (str, os.PathLike)) or source_kind(source) != "model":
        return
    path = Path(source)
    if path.exists() and not any((path / name).exists() for name in MODEL_FILES):
        raise nothing_to_read(path, "a model, or vectors")


def source_name(source: object) -> str:
    """Return a source's name for messages: of an address without what may hold a password, of an object its kind."""
    if not isinstance(source, (str, os.PathLike)):
        return "the model"
    name = str(source)
    scheme, separator, rest = name.partition("://")
    if not separator:
        return name
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"


def index_keys(
    index: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    texts: str | Path | None = None,
    where: Mapping[str, Any] | None = None,
    limit: int | None = None,
    similarity: str | None = None,
    repeats: str | None = None,
) -> dict[str, Any]:
    """Return the recipe's keys of a table or index; paths are absolute.

    An address of no known kind, with a password in it, or a path that does not exist is refused.
    """
    name = str(index)
    address = read_address(index)
    if address.path is not None:
        if not address.path.exists():
            raise DistilvecError(f"{name} does not exist.", "Check the path.")
        name = str(absolute_path(address.path))
    keys: dict[str, Any] = {"vectors": name}
    if columns:
        keys["columns"] = dict(columns)
    if texts is not None:
        keys["texts"] = str(absolute_path(Path(texts)))
    if where:
        keys["where"] = dict(where)
    if limit is not None:
        keys["limit"] = limit
    if similarity is not None:
        keys["similarity"] = similarity
    if repeats is not None:
        keys["repeats"] = repeats
    return keys


def check_index(index: str, columns: Mapping[str, str], where: Mapping[str, Any] | None = None) -> None:
    """Refuse an address, a missing package, and where it takes no time a table, column or condition, before torch."""
    keys = index_keys(index, columns=columns, where=where)

    from distilvec.config.recipe import section_of  # not needed for a wrong path
    from distilvec.config.schema import TeacherSection

    section = section_of(TeacherSection, "teacher", keys)
    with about("teacher.vectors", index):
        reader = open_reader(section, read_address(index))
        if reader.opens_at_once:
            with reader:
                pass
