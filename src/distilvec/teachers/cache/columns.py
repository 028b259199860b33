"""The columns of a table or index that hold texts, vectors, ids and roles: named by the recipe, or found by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distilvec.core.errors import ColumnError, DistilvecError, nearest

FINAL, PRE_DENSE = "teacher_embedding_final", "teacher_embedding_pre_dense"
KNOWN = {  # names that are looked for, the first found is taken; FINAL is that of `distilvec cache export`
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
            problem = f"{origin} has no column '{name}' ({', '.join(names)}){hint}"
            raise ColumnError(key, problem, "Correct teacher.columns.", "Correct --column.")
        if name is not None:
            found[part] = name
    if lacking := [part for part in required if part not in found]:
        tried = "; ".join(f"{part}: {', '.join(name for name in KNOWN[part] if name != FINAL)}" for part in lacking)
        problem = (
            f"{origin} has the columns {', '.join(names) or 'none'}; none has a known name of {' and '.join(lacking)} "
            f"({tried})."
        )
        if not key.startswith("teacher."):
            raise DistilvecError(key, problem, "Rename the columns.")
        mapping = ", ".join(f"{part}: NAME" for part in lacking)
        options = " ".join(f"--column {part}=NAME" for part in lacking)
        raise ColumnError(key, problem, f"Name yours: teacher.columns='{{{mapping}}}'.", f"Name yours: {options}.")
    return found
