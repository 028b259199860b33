"""Kinds of sources that vectors come from, told from their names alone: nothing is opened, and no torch is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from distilvec.teachers.indexes.address import is_index

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
    if name.startswith(OPENAI) or urlsplit(name).scheme in ("http", "https"):
        return "api"
    if is_index(name):
        return "table"
    if Path(name).suffix in EXPORTS:
        return "export"
    return "model"
