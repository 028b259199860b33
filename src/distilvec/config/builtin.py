"""The built-in recipes: their files, their text for another folder, and the JSON schema of recipes for editors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from distilvec.config.base import excerpt, unknown
from distilvec.config.paths import DATA, resolve_tree
from distilvec.config.recipe import read_tree
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError, about
from distilvec.core.run_folder import RunFolder

FURTHER = ("baselines", "sweeps")  # folders of recipes that papers and comparisons need
_PLAIN = re.compile(r"[\w/.~+-]+")  # a path that needs no quotes in YAML
_VARIANTS = {
    "description": "named changes of the recipe: dotted keys with their values, chosen by --variant; several combine",
    "type": ["object", "null"],
    "default": {},
    "additionalProperties": {"type": ["object", "null"], "additionalProperties": True},
}


def recipe_folder() -> Path:
    """The folder of the built-in recipes: inside the installed package, or next to `src/` in a checkout."""
    installed = Path(__file__).parents[1] / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[3] / "recipes"


def recipe_files(folders: Sequence[str] = (".", *FURTHER)) -> list[Path]:
    """The built-in recipes in these folders, sorted by name: first those of users, then baselines, then sweeps."""
    return [path for name in folders for path in sorted((recipe_folder() / name).glob("*.yaml"))]


def recipe_file(name: str) -> Path:
    """A recipe by path or built-in name; DistilvecError with the nearest name otherwise."""
    path = Path(name)
    with about("recipe", excerpt(name)):
        if name.endswith((".yaml", ".yml")) or path.is_file():
            builtin = recipe_folder().joinpath(*path.parts[1:])
            return builtin if not path.exists() and path.parts[0] == "recipes" and builtin.exists() else path
        recipes = {path.stem: path for path in recipe_files()}
        if name in recipes:
            return recipes[name]
        recipe_of_run = RunFolder(path).recipe
        if path.is_dir():
            is_run = recipe_of_run.is_file()
            problem = f"{excerpt(name)} is a {'run ' if is_run else ''}folder."
            fix = f"Name its recipe: {recipe_of_run}" if is_run else "Name a recipe file in it."
            raise DistilvecError(problem, fix, key="recipe")
    fix = "Give one of these, or a path ending in .yaml."
    raise DistilvecError(f"no recipe {excerpt(name)}{unknown(name, recipes)}", fix, key="recipe")


def moved_text(path: Path) -> str:
    """The text of a recipe file, to be stored in any folder; comments stay.

    A relative path becomes absolute if its file exists. If not, it stays, and a comment on its line reports it.
    """
    resolved = resolve_tree(read_tree(path), path.parent.resolve(), Recipe)
    text = path.read_text(encoding="utf-8-sig")
    changes: dict[tuple[int, int], str] = {}  # by start and end in the text
    for node, absolute in _paths(yaml.compose(text, Loader=yaml.SafeLoader), resolved):
        if Path(absolute).exists():
            new = absolute if _PLAIN.fullmatch(absolute) else json.dumps(absolute, ensure_ascii=False)
            changes[node.start_mark.index, node.end_mark.index] = new
        else:
            end = text.find("\n", node.end_mark.index) % (len(text) + 1)  # -1: the text ends without a line break
            fix = "`distilvec data list` has public data" if node.value.startswith(DATA) else "set your own path"
            changes[end, end] = f"  # not found; {fix}"
    for (start, end), new in sorted(changes.items(), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _paths(node: Any, value: Any) -> Iterator[tuple[yaml.ScalarNode, str]]:
    """Scalars that `resolve_tree` changed, each with its absolute path. Merged keys are found at their anchor."""
    if isinstance(node, yaml.MappingNode) and isinstance(value, dict):
        values = {str(key): inner for key, inner in value.items()}
        for key, inner in node.value:
            yield from _paths(inner, values.get(str(key.value)))
    elif isinstance(node, yaml.SequenceNode) and isinstance(value, list):
        for inner, item in zip(node.value, value, strict=True):
            yield from _paths(inner, item)
    elif isinstance(node, yaml.ScalarNode):
        while isinstance(value, (list, dict)):  # a file in the place of sources
            (value,) = value if isinstance(value, list) else value.values()
        if isinstance(value, str) and value != node.value:
            yield node, value


def recipe_schema() -> dict[str, Any]:
    """The JSON schema of a recipe file: sections, types, ranges, defaults, descriptions, and the key `variants`."""
    schema = Recipe.model_json_schema()
    schema["properties"]["variants"] = _VARIANTS
    sources = schema["$defs"]["CorpusSection"]["properties"]["sources"]  # a file is short for {path: file}
    source = sources.pop("items")
    sources["items"] = {"anyOf": [source, {"type": "string"}]}
    schema["$defs"]["CorpusSection"]["properties"]["sources"] = {"anyOf": [sources, {"type": "string"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
