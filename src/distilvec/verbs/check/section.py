"""An index as a user names it, as the recipe's teacher section; shared by `check` and `distill`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import absolute_path
from distilvec.teachers.indexes.stores import read_address


def index_keys(
    index: str | Path,
    key: str,
    *,
    columns: Mapping[str, str] | None = None,
    texts: str | Path | None = None,
    limit: int | None = None,
    similarity: str | None = None,
    repeats: str | None = None,
) -> dict[str, Any]:
    """Return the recipe's keys of a table or index; paths are absolute.

    Errors: DistilvecError with `key` for an address of no known kind, with a password in it, or a path that does not
    exist.
    """
    name = str(index)
    with about(key):
        address = read_address(index)
    if address.path is not None:
        if not address.path.exists():
            raise DistilvecError(f"{name} does not exist.", "Check the path.", key=key)
        name = str(absolute_path(address.path))
    keys: dict[str, Any] = {"vectors": name}
    if columns:
        keys["columns"] = dict(columns)
    if texts is not None:
        keys["texts"] = str(absolute_path(Path(texts)))
    if limit is not None:
        keys["limit"] = limit
    if similarity is not None:
        keys["similarity"] = similarity
    if repeats is not None:
        keys["repeats"] = repeats
    return keys
