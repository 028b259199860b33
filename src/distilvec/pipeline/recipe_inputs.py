"""The files and folders that a recipe reads, which no output may replace and no restart may move."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.config.base import Section
from distilvec.config.paths import input_names
from distilvec.config.schema import Recipe
from distilvec.core.files import existing_paths
from distilvec.evaluation.suite import SUITE_ENDINGS, suite_paths


def recipe_inputs(recipe: Section) -> set[Path]:
    """Return the existing files and folders that a recipe names, and the data of its suite; resolved."""
    return changed_inputs(recipe.model_dump(), type(recipe))


def changed_inputs(changes: Mapping[str, Any], section: type[Section] = Recipe) -> set[Path]:
    """Return the same of some of a recipe's values, by dotted key."""
    paths = existing_paths(input_names(changes, section))
    for path in tuple(paths):
        if path.suffix.lower() in SUITE_ENDINGS:
            paths |= existing_paths(suite_paths(path))
    return paths
