"""The columns of a table or index: texts, vectors, ids, roles, documents; named by the recipe, or by a usual name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.log import log_once
from distilvec.data.origins import COLUMNS
from distilvec.data.readers import VECTOR_COLUMNS

Part = Literal["text", "embedding", "id", "role", "origin"]

FINAL = "teacher_embedding_final"
PRE_DENSE = "teacher_embedding_pre_dense"
USUAL_NAMES: dict[Part, tuple[str, ...]] = {  # by preference; FINAL is the name that `distilvec cache export` writes
    "text": ("text", "content", "document", "page_content", "chunk", "body", "passage"),
    "embedding": (FINAL, *VECTOR_COLUMNS),
    "id": ("id", "_id"),
    "role": ("role",),
    "origin": (*COLUMNS, *(f"metadata.{name}" for name in COLUMNS)),
}
ROLE_VALUES = ("query", "document")
REQUIRED: tuple[Part, ...] = ("text", "embedding")
_CONTENTS: dict[Part, str] = {"text": "texts", "embedding": "vectors"}


def find_columns(
    names: Sequence[str],
    choices: Mapping[Part, str] | None,
    origin: str,
    required: Sequence[Part] = REQUIRED,
) -> dict[Part, str]:
    """Return the column of each part: the one that `choices` names, else the first usual name among `names`.

    Further columns with a usual name of texts or vectors are logged, since they may be the ones that are meant.

    Errors: DistilvecError for a chosen column that is missing, and for a required one under no usual name.
    """
    columns: dict[Part, str] = {}
    for part, usual_names in USUAL_NAMES.items():
        candidates = [name for name in usual_names if name in names]
        choice = choices.get(part) if choices else None
        if choice:
            check_column(choice, names, origin, "teacher.columns")
            columns[part] = choice
        elif candidates:
            columns[part] = candidates[0]
            log_others(part, candidates, origin)

    missing = [part for part in required if part not in columns]
    if missing:
        raise _no_usual_name(missing, names, origin)
    return columns


def check_column(name: str, names: Sequence[str], origin: str, key: str) -> None:
    """DistilvecError for the name of a column that is not among those of `origin`."""
    if name not in names:
        hint = nearest(name, names) or "."
        raise DistilvecError(
            f"{origin} has no column '{name}' ({', '.join(names)}){hint}", "Correct the name.", key=key
        )


def log_others(part: Part, candidates: Sequence[str], origin: str) -> None:
    """Log that texts or vectors are read from the first of several columns with a usual name."""
    if part in _CONTENTS and len(candidates) > 1:
        contents = _CONTENTS[part]
        log_once(
            f"{origin}: {contents} are read from '{candidates[0]}'; {', '.join(candidates[1:])} may hold {contents} as "
            f"well. A command's --column {part}=NAME, or teacher.columns, names another one."
        )


def _no_usual_name(missing: Sequence[Part], names: Sequence[str], origin: str) -> DistilvecError:
    tried = []
    for part in missing:
        usual_names = [name for name in USUAL_NAMES[part] if name != FINAL]
        tried.append(f"{part}: {', '.join(usual_names)}")
    problem = (
        f"{origin} has the columns {', '.join(names) or 'none'}; none has a usual name for {' and '.join(missing)} "
        f"({'; '.join(tried)})."
    )
    names = ", ".join(f"{part}=NAME" for part in missing)
    return DistilvecError(problem, f"Name yours, as in {names}, or rename the columns.", key="teacher.columns")
