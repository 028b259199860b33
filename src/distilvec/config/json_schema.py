"""The JSON schema of a recipe file, for editors."""

from __future__ import annotations

from typing import Any

from distilvec.config.schema import Recipe

_MARKS = {"path": str, "labels": bool}  # keywords of our own, from `json_schema_extra`; see config/base.py
_VARIANTS = {
    "description": "named changes of the recipe: dotted keys with their values, chosen by --variant",
    "type": ["object", "null"],
    "default": {},
    "additionalProperties": {"type": ["object", "null"], "additionalProperties": True},
}


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe file: sections, types, ranges, defaults, descriptions, and the key `variants`."""
    found = _without_marks(Recipe.model_json_schema())
    found["properties"]["variants"] = _VARIANTS
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _without_marks(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_marks(value) for key, value in tree.items() if not isinstance(value, _MARKS.get(key, ()))}
    return [_without_marks(item) for item in tree] if isinstance(tree, list) else tree
