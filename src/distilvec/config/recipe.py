"""The recipe: one strict YAML file that names teacher, student, corpus, method, training and evaluation.

A recipe is complete by itself: no base files, no interpolation but `{task}` in a teacher's model. The data sets,
teachers and students of a paper's tables are `variants` of one file, each a mapping of dotted keys to values;
"patent+bge-m3" is both. So are the stages of training (`stages`), which change keys under `method` and `train` only.
Unknown keys are errors with the nearest right one.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from distilvec.config.base import Section, excerpt, explain, invalid, key_text, unknown
from distilvec.config.paths import absolute, resolve_key, resolve_tree
from distilvec.config.schema import MethodSection, Recipe
from distilvec.config.training import StageSection, TrainSection
from distilvec.config.yaml_dialect import dump_yaml, load_yaml, read_yaml
from distilvec.core.errors import DistilvecError, about, nearest
from distilvec.core.log import log

SectionType = TypeVar("SectionType", bound=Section)
CUTS = ("layers", "reinitialize", "intermediate_size")  # keys of `student` that depend on the layers of its model
SIZED = ("layers", "intermediate_size", "vocabulary", "embedding")  # keys of `student` that its `size` decides on


def load(path: Path, variant: str | None = None, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe file, apply a variant and `key=value` overrides, validate.

    Relative paths in the recipe are relative to the recipe's folder, those of the overrides to the current folder, and
    so is `output`. Errors: DistilvecError that names the key and, for unknown ones, the nearest right key.
    """
    return validate(resolved_tree(path, variant, overrides), origin=str(path))


def resolved_tree(
    path: Path, variant: str | None = None, overrides: list[str] | None = None, section: type[Section] = Recipe
) -> dict[str, Any]:
    """A recipe file as plain data, a variant and overrides applied and paths absolute; not validated."""
    return changed_tree(read_tree(path), path, variant, overrides, section)


def changed_tree(
    tree: dict[str, Any],
    path: Path,
    variant: str | None = None,
    overrides: Sequence[str] | None = None,
    section: type[Section] = Recipe,
) -> dict[str, Any]:
    """The content of a recipe file, read from `path`, as `resolved_tree` returns it."""
    tree = resolve_tree(tree, path.parent.resolve(), section)
    known_variants = take_variants(tree, str(path))
    changes = read_overrides(overrides or [], section)
    if variant is not None:
        with about("variant"):
            variant_changes = find_variant(known_variants, variant, str(path))
        for key, value in variant_changes.items():
            set_key(tree, key, value)
        name = tree.get("name", path.stem)
        tree["name"] = f"{name}-{variant}" if isinstance(name, str) else name
    override(tree, changes)
    return tree


def recipe_from(tree: dict[str, Any], overrides: Mapping[str, Any] | None, origin: str) -> Recipe:
    """Return the recipe of a tree that a function or a command has made, with values by dotted key applied.

    Relative paths start at the current folder. Errors: DistilvecError that names the `origin` and every wrong key.
    """
    changes = {key: resolve_key(key, value, Path.cwd(), Recipe) for key, value in (overrides or {}).items()}
    tree = resolve_tree(tree, Path.cwd(), Recipe)
    override(tree, changes)
    return validate(tree, origin)


def variants(path: Path) -> list[str]:
    """Names of a recipe file's variants, in order."""
    return list(take_variants(read_tree(path), str(path)))


def take_variants(tree: dict[str, Any], origin: str) -> dict[str, dict[str, Any]]:
    """Remove the variants from a recipe's tree: dotted keys with values by the variant's name."""
    variants_tree = tree.pop("variants", None) or {}
    expected = f"a mapping of dotted keys to values. In {origin}."
    if not isinstance(variants_tree, dict):
        raise DistilvecError(f"found {excerpt(variants_tree)}; expected names, each with {expected}", key="variants")
    for name, changes in variants_tree.items():
        if not isinstance(changes or {}, dict) or any(not isinstance(key, str) for key in changes or {}):
            raise DistilvecError(f"found {excerpt(changes)}; expected {expected}", key=f"variants.{key_text(name)}")
    return {str(name): changes or {} for name, changes in variants_tree.items()}


def find_variant(variants_by_name: Mapping[str, dict[str, Any]], name: str, origin: str) -> dict[str, Any]:
    """A variant's changes, or those of several ("first+second"), later ones last."""
    changes: dict[str, Any] = {}
    for part in [name] if name in variants_by_name else name.split("+"):
        if part not in variants_by_name:
            raise DistilvecError(f"no variant {excerpt(part)}{unknown(part, variants_by_name)} In {origin}.")
        for changed_key, value in variants_by_name[part].items():
            changes.pop(changed_key, None)  # the later one is set last
            changes[changed_key] = value
    return changes


def read_tree(path: Path) -> dict[str, Any]:
    """The recipe file as plain data; DistilvecError if it is missing, not UTF-8, not YAML or not a mapping."""
    tree = read_yaml(path, "recipe", "A recipe is a YAML file; `distilvec recipes` lists the built-in ones.")
    if not isinstance(tree, dict):
        keys = ", ".join(Recipe.model_fields)
        raise DistilvecError(f"{path}: expected a mapping with keys {keys}; found {type(tree).__name__}.", key="recipe")
    return tree


def read_overrides(overrides: Sequence[str], section: type[Section] = Recipe) -> dict[str, Any]:
    """`key=value` texts as values by dotted key, each read as YAML; relative paths start at the current folder.

    A section may be given first, and further keys of it after that. Errors: DistilvecError for a key that is set twice,
    by itself or with the section around it: one would be lost.
    """
    changes: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise DistilvecError(f"{excerpt(text)} is not key=value. An example: train.epochs=3.", key="override")
        for earlier, earlier_value in changes.items():
            if _is_within(earlier, key) or (_is_within(key, earlier) and _has_key(earlier_value, key, earlier)):
                raise DistilvecError(f"is set twice, also by {excerpt(earlier)}.", "Set it once.", key=key_text(key))
        with about(key_text(key)):
            content = load_yaml(value, f"value {excerpt(value)}")
        changes[key] = resolve_key(key, content, Path.cwd(), section)
    return changes


def _has_key(value: Any, key: str, section: str) -> bool:
    """Whether the value of a section states a dotted key inside it."""
    try:
        for name in key[len(section) + 1 :].split("."):
            value = value[_index(name) if isinstance(value, list) else name]
    except (LookupError, TypeError, ValueError):
        return False
    return value is not None


def stated_sizes(changes: Mapping[str, Any]) -> list[str]:
    """The keys of overrides that state what a student's size would decide on; null states nothing."""
    keys = []
    for key, value in changes.items():
        if value is not None and any(_is_within(key, f"student.{name}") for name in SIZED):
            keys.append(key)
    return keys


def check_stated_once(keys: Mapping[str, str], values: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """DistilvecError for an argument whose key of the recipe, or the section around it, is changed as well.

    Args:
        keys: the recipe's key by the argument's name
        values: the arguments by name; None is a value that the user has not stated
        changes: values by dotted key
    """
    for name, key in keys.items():
        for change in changes:
            if values.get(name) is not None and _is_within(key, change):
                raise DistilvecError(f"{key_text(change)} is set as well.", "Give one of the two.", key=name)


def _is_within(key: str, section: str) -> bool:
    """Whether a dotted key is `section`, or below it."""
    return key == section or key.startswith(f"{section}.")


def override(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set the keys of overrides; a named student stays whole, and what is stated replaces what would contradict it.

    What a recipe cuts from the teacher (`student.model: teacher`) does not apply to another model that an override
    names in its place. Such keys are left out, with a line in the log, unless the overrides set them, too. So is the
    recipe's `student.size` where an override states what the size would decide on, and `evaluation.builtin` where it
    states a suite.
    """
    student = tree.get("student")
    if isinstance(student, dict):
        new_model = changes.get("student.model")
        if student.get("model") == "teacher" and new_model not in (None, "teacher"):
            for key in CUTS:
                is_stated = any(_is_within(change, f"student.{key}") for change in changes)
                if student.get(key) is not None and not is_stated:
                    log(f"student.{key}={student.pop(key)} cuts the teacher's own layers: {new_model} stays whole")
        sizes = stated_sizes(changes)
        if sizes and student.get("size") is not None and "student.size" not in changes:
            del student["size"]
            log(f"student.size is left out: {sizes[0]} is stated")

    evaluation = tree.get("evaluation")
    is_suite_stated = changes.get("evaluation.suite") is not None and "evaluation.builtin" not in changes
    if is_suite_stated and isinstance(evaluation, dict) and evaluation.get("builtin") is not None:
        del evaluation["builtin"]
        log("evaluation.builtin is left out: evaluation.suite is stated")

    for key, value in changes.items():
        set_key(tree, key, value)


def validate(tree: dict[str, Any], origin: str | None = None) -> Recipe:
    """Plain data to a Recipe, its stages tried as well; every problem in one DistilvecError."""
    recipe, problems = _try(_with_earlier_student(tree))
    if recipe is not None:
        problems = [problem for stage in recipe.stages for problem in _try_stage(recipe, stage)[1]]
    if recipe is None or problems:
        raise invalid("recipe", origin, problems)
    return recipe


def _with_earlier_student(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree; with `after`, student.model is the absolute folder that the earlier run makes.

    A relative name is taken for an id of the hub until its folder exists. The recipe would be another one then, and a
    run that was killed would not go on.
    """
    student = tree.get("student")
    if not tree.get("after") or not isinstance(student, dict):
        return tree
    model = student.get("model")
    if not isinstance(model, str) or model == "teacher":
        return tree
    return {**tree, "student": {**student, "model": absolute(model, Path.cwd(), "student.model")}}


def stage_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """Every stage of training by its name, as the recipe that holds in it; empty for a recipe without stages."""
    recipes = {}
    for stage in recipe.stages:
        resolved, problems = _try_stage(recipe, stage)
        if resolved is None:
            raise invalid("stages", None, problems)
        recipes[stage.name] = resolved
    return recipes


def section_of(section: type[SectionType], key: str, values: dict[str, Any]) -> SectionType:
    """A section from its values, None left out; every problem in one DistilvecError, with `key` before each key."""
    try:
        return section.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise invalid(key, None, explain(error, section, key)) from None


def dump(recipe: Section) -> str:
    """The resolved recipe as YAML that `load` reads back."""
    return dump_yaml(recipe.model_dump(mode="json"))


def fingerprint(*parts: Any) -> str:
    """16 hexadecimal digits that change when any of the JSON-able parts changes."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def set_key(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted key; list items are addressed by number. Parents that are missing or null are made.

    Errors: DistilvecError for a parent that holds a value, and for a number outside a list.
    """
    *parents, last = dotted.split(".")
    parent: Any = tree
    try:
        for name in parents:
            if isinstance(parent, dict) and parent.get(name) is None:
                parent[name] = {}
            parent = parent[_index(name)] if isinstance(parent, list) else parent[name]
            if not isinstance(parent, (dict, list)):
                key = key_text(dotted)
                raise DistilvecError(f"cannot be set: '{key_text(name)}' holds a value, not a section.", key=key)
        parent[_index(last) if isinstance(parent, list) else last] = value
    except (IndexError, ValueError):
        problem = "cannot be set: items of a list are addressed by a number within it, from 0."
        raise DistilvecError(problem, key=key_text(dotted)) from None


def _index(text: str) -> int:
    """An index of a list; ValueError for other text, negative numbers too."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _try(tree: dict[str, Any], before: str = "") -> tuple[Recipe | None, list[DistilvecError]]:
    """The recipe, or its problems; `before` precedes every key."""
    try:
        return Recipe.model_validate(tree), []
    except ValidationError as error:
        return None, explain(error, Recipe, before)


def _try_stage(recipe: Recipe, stage: StageSection) -> tuple[Recipe | None, list[DistilvecError]]:
    """The recipe as it is in a stage, or the stage's problems. Students are saved in the last one only."""
    before, last = f"stages.{stage.name}.", stage.name == recipe.stages[-1].name
    tree = recipe.model_dump(mode="json", exclude={"stages", "sweep"})
    if not last:
        tree["train"]["keep_students"] = None
    problems = []
    for key, value in stage.set.items():
        if refusal := _refuse_in_stage(key, last):
            problems.append(DistilvecError(refusal, key=f"{before}{key_text(key)}"))
            continue
        try:
            set_key(tree, key, copy.deepcopy(value))
        except DistilvecError as error:
            problems.append(DistilvecError(error.problem, error.fix, key=f"{before}{error.key}"))
    return (None, problems) if problems else _try(tree, before)


def _refuse_in_stage(key: str, last: bool) -> str | None:
    """Why a stage may not set this key, None if it may."""
    sections: dict[str, type[Section]] = {"method": MethodSection, "train": TrainSection}
    if "." not in key or key.split(".")[0] not in sections:
        keys = []
        for name, section in sections.items():
            keys += [f"{name}.{field}" for field in section.model_fields]
        hint = nearest(key[:100], keys) or "."
        return f"a stage sets dotted keys under method and train only{hint} Set others in the recipe."
    if key in ("train.device", "train.shard"):
        return f"all stages run on one device, whole or in shards. Set {key} in the recipe."
    if key == "train.keep_students" and not last:
        return "students are saved in the last stage only. Set it there, or in the recipe."
    return None
