"""The recipe: one strict YAML file that names teacher, student, corpus, method, training and evaluation.

A recipe is complete by itself: no base files, no interpolation. The many teacher-student pairs of a paper's table are
`variants` of one file, each a mapping of dotted keys to values. Unknown keys are errors with the nearest right one.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from distilvec.errors import DistilvecError
from distilvec.schema import Recipe, Section


def load(path: Path, variant: str | None = None, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe file, apply a variant and `key=value` overrides, validate.

    Relative paths in the recipe are relative to the recipe's folder, except `output`, which is relative to where the
    command runs. Errors: DistilvecError that names the key and, for unknown ones, the nearest right key.
    """
    tree = read_tree(path)
    tree, variants = dict(tree), tree.get("variants") or {}
    tree.pop("variants", None)
    if variant is not None:
        if variant not in variants:
            raise DistilvecError(
                f"{path}: no variant '{variant}'{_nearest(variant, variants)}. Its variants: {', '.join(variants) or 'none'}."
            )
        for key, value in variants[variant].items():
            set_key(tree, key, value)
        tree["name"] = f"{tree.get('name', path.stem)}-{variant}"
    for text in overrides or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise DistilvecError(f"override '{text}' is not of the form key=value, for example train.epochs=3")
        set_key(tree, key.strip(), read_value(value, key))
    recipe = validate(tree, origin=str(path))
    return resolve_paths(recipe, path.parent.resolve())


def variants(path: Path) -> list[str]:
    """Names of a recipe file's variants, in order."""
    return list(read_tree(path).get("variants") or {})


def read_tree(path: Path) -> dict[str, Any]:
    """The recipe file as plain data; DistilvecError if it is missing, not UTF-8, not YAML or not a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DistilvecError(f"recipe not found: {path}. `distilvec recipes` lists the built-in ones.") from None
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise DistilvecError(f"{path} is not a UTF-8 text file ({error}); a recipe is a YAML file.") from None
    try:
        tree = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise DistilvecError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise DistilvecError(f"{path}: expected a mapping with keys {', '.join(Recipe.model_fields)}; found {type(tree).__name__}.")
    return tree


def read_value(text: str, key: str) -> Any:
    """One override's value, read as YAML."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise DistilvecError(f"[{key}] value {text!r} is not valid YAML: {error}") from None


def validate(tree: dict[str, Any], origin: str = "recipe") -> Recipe:
    """Plain data to a Recipe; every problem in one DistilvecError."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        problems = "\n".join(f"  {_explain(problem)}" for problem in error.errors())
        raise DistilvecError(f"{origin}: the recipe does not hold together.\n{problems}") from None


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML that `load` reads back."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def fingerprint(*parts: Any) -> str:
    """16 hexadecimal digits that change when any of the JSON-able parts changes."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class _Loader(yaml.SafeLoader):
    """Reads 1e-5 as a number (PyYAML follows YAML 1.1, where it is a string) and refuses repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key_node.value}' stands twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(  # type: ignore[no-untyped-call]
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?([0-9][0-9_]*(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def set_key(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key; list items are addressed by number. Parents that are missing are made.

    Errors: DistilvecError for a parent that holds a value, and for a number outside a list.
    """
    *parents, last = dotted.split(".")
    place: Any = tree
    try:
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
            if place is None or not isinstance(place, (dict, list)):
                raise DistilvecError(f"[{dotted}] cannot be set: '{name}' holds a value, not a section.")
        place[int(last) if isinstance(place, list) else last] = value
    except (IndexError, ValueError):
        raise DistilvecError(f"[{dotted}] cannot be set: items of a list are addressed by a number within it, from 0.") from None


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        found = "" if problem["type"] in ("missing", "value_error") else f"; found {problem['input']!r}"
        return f"[{where}] {problem['msg'].removeprefix('Value error, ')}{found}"
    known = _known_keys(problem["loc"][:-1])
    return f"[{where}] unknown key{_nearest(str(problem['loc'][-1]), known)}. Known here: {', '.join(known)}."


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    section: Any = Recipe
    for part in location:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            section = next(c for c in candidates if isinstance(c, type) and issubclass(c, Section))
    keys = list(section.model_fields)
    return [*keys, "variants"] if section is Recipe else keys


def _nearest(name: str, known: Any) -> str:
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def resolve_paths(recipe: Recipe, folder: Path) -> Recipe:
    """Make the recipe's relative paths absolute; model ids are touched only if they start with '.'."""

    def fix(path: Path | None) -> Path | None:
        return path if path is None else (folder / path.expanduser()).resolve()

    def fix_model(model: str | None) -> str | None:
        return str((folder / model).resolve()) if model and model.startswith(".") else model

    sources = [s.model_copy(update={"path": fix(s.path)}) for s in recipe.corpus.sources]
    return recipe.model_copy(
        update={
            "teacher": recipe.teacher.model_copy(update={"vectors": fix(recipe.teacher.vectors), "model": fix_model(recipe.teacher.model)}),
            "student": recipe.student.model_copy(
                update={"model": fix_model(recipe.student.model), "tokenizer": fix_model(recipe.student.tokenizer)}
            ),
            "corpus": recipe.corpus.model_copy(update={"sources": sources}),
            "cache": recipe.cache.model_copy(update={"path": fix(recipe.cache.path), "root": fix(recipe.cache.root)}),
            "evaluation": recipe.evaluation.model_copy(update={"suite": fix(recipe.evaluation.suite)}),
        }
    )
