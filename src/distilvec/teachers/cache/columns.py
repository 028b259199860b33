"""The columns of a table or index that hold texts, vectors, ids and roles: named by the recipe, or found by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.core.errors import DistilvecError, nearest

FINAL, PRE_DENSE = "teacher_embedding_final", "teacher_embedding_pre_dense"
KNOWN = {  # names that are looked for, the first found is taken
    "text": ("text", "content", "document", "page_content", "chunk", "body", "passage"),
    "embedding": (FINAL, "embedding", "vector", "embeddings", "vectors"),
    "id": ("id", "_id"),
    "role": ("role",),
}
REQUIRED = ("text", "embedding")


def find_columns(
    names: Sequence[str], given: Mapping[Any, str] | None, origin: str, key: str, required: Sequence[str] = REQUIRED
) -> dict[str, str]:
    """The names of the columns by KNOWN's keys: those of `given`, else the first known name among `names`.

    Errors: DistilvecError for a given column that is missing, and for a required one that is not found.
    """
    found = {}
    for part, candidates in KNOWN.items():
        name = (given or {}).get(part) or next((name for name in candidates if name in names), None)
        if name is not None and name not in names:
            hint = nearest(name, names) or "."
            raise DistilvecError(f"[{key}] {origin} has no column '{name}' ({', '.join(names)}){hint} Correct columns.")
        if name is not None:
            found[part] = name
    if lacking := [part for part in required if part not in found]:
        raise DistilvecError(
            f"[{key}] {origin} has the columns {', '.join(names) or 'none'}; expected 'text' and '{FINAL}' (or "
            f"'embedding'). Name {' and '.join(lacking)} with columns: {{{lacking[0]}: NAME}}."
        )
    return found
