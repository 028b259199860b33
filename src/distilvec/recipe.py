"""The recipe: one strict YAML file that names teacher, student, corpus, method, training and evaluation.

A recipe is complete by itself: no base files, no interpolation. The many teacher-student pairs of a paper's table are
`variants` of one file, each a mapping of dotted keys to values. So are the stages of training (`stages`), which change
keys under `method` and `train` only. Unknown keys are errors with the nearest right one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from distilvec.errors import DistilvecError, nearest
from distilvec.schema import MethodSection, Recipe, TeacherSection
from distilvec.schema_train import StageSection, TrainSection
from distilvec.section import Section

SectionType = TypeVar("SectionType", bound=Section)


def load(path: Path, variant: str | None = None, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe file, apply a variant and `key=value` overrides, validate.

    Relative paths in the recipe are relative to the recipe's folder, except `output`, which is relative to where the
    command runs. Errors: DistilvecError that names the key and, for unknown ones, the nearest right key.
    """
    recipe = validate(resolved_tree(path, variant, overrides), origin=str(path))
    return resolve_paths(recipe, path.parent.resolve())


def resolved_tree(path: Path, variant: str | None = None, overrides: list[str] | None = None) -> dict[str, Any]:
    """A recipe file as plain data, with a variant and `key=value` overrides applied; not validated."""
    tree = read_tree(path)
    tree, variants = dict(tree), tree.get("variants") or {}
    tree.pop("variants", None)
    if variant is not None:
        if variant not in variants:
            raise DistilvecError(
                f"{path}: no variant '{variant}'{nearest(variant, variants)}. Its variants: {', '.join(variants) or 'none'}."
            )
        for key, value in variants[variant].items():
            set_key(tree, key, value)
        tree["name"] = f"{tree.get('name', path.stem)}-{variant}"
    for key, value in read_overrides(overrides or []).items():
        set_key(tree, key, value)
    return tree


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


def read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as values by dotted key, each value read as YAML."""
    found = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise DistilvecError(f"override '{text}' is not of the form key=value, for example train.epochs=3")
        try:
            found[key.strip()] = yaml.load(value, Loader=_Loader)
        except yaml.YAMLError as error:
            raise DistilvecError(f"[{key}] value {value!r} is not valid YAML: {error}") from None
    return found


def validate(tree: dict[str, Any], origin: str = "recipe") -> Recipe:
    """Plain data to a Recipe, its stages tried as well; every problem in one DistilvecError."""
    recipe, problems = _try(tree)
    if recipe is not None:
        problems = [problem for stage in recipe.stages for problem in _try_stage(recipe, stage)[1]]
    if recipe is None or problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise DistilvecError(f"{origin}: the recipe does not hold together.\n{listed}")
    return recipe


def stage_recipes(recipe: Recipe) -> dict[str, Recipe]:
    """Every stage of training by its name, as the recipe that holds in it; empty for a recipe without stages."""
    found = {}
    for stage in recipe.stages:
        resolved, problems = _try_stage(recipe, stage)
        if resolved is None:
            raise DistilvecError("\n".join(problems))
        found[stage.name] = resolved
    return found


def dump(recipe: Section) -> str:
    """The resolved recipe as YAML that `load` reads back."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def fingerprint(*parts: Any) -> str:
    """16 hexadecimal digits that change when any of the JSON-able parts changes."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml, where it is there, is faster
    """YAML 1.2 where PyYAML follows 1.1: 1e-5 is a number, on, off, yes and no are words. Repeated keys are refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key_node.value}' stands twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(  # type: ignore[no-untyped-call]
    _BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
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


def _try(tree: dict[str, Any], where: str = "") -> tuple[Recipe | None, list[str]]:
    """The recipe, or what is wrong with it; `where` stands before every key."""
    try:
        return Recipe.model_validate(tree), []
    except ValidationError as error:
        return None, explain(error, where)


def _try_stage(recipe: Recipe, stage: StageSection) -> tuple[Recipe | None, list[str]]:
    """The recipe as it is in a stage, or what is wrong with the stage. Students are kept in the last one only."""
    where, last = f"stages.{stage.name}.", stage.name == recipe.stages[-1].name
    tree = recipe.model_dump(mode="json", exclude={"stages", "sweep"})
    if not last:
        tree["train"]["keep_students"] = None
    problems = []
    for key, value in stage.set.items():
        if refusal := _refuse_in_stage(key, last):
            problems.append(f"[{where}{key}] {refusal}")
            continue
        try:
            set_key(tree, key, copy.deepcopy(value))
        except DistilvecError as error:
            problems.append(f"[{where}{str(error).removeprefix('[')}")
    return (None, problems) if problems else _try(tree, where)


def _refuse_in_stage(key: str, last: bool) -> str | None:
    """Why a stage may not set this key, None if it may."""
    sections: dict[str, type[Section]] = {"method": MethodSection, "train": TrainSection}
    known = [f"{name}.{field}" for name, section in sections.items() for field in section.model_fields]
    if "." not in key or key.split(".")[0] not in sections:
        return f"a stage sets dotted keys under method and train only{nearest(key, known)}. Set it in the recipe, for all stages."
    if key == "train.device":
        return "all stages run on one device. Set train.device in the recipe."
    if key == "train.keep_students" and not last:
        return "students are kept in the last stage only. Set it there, or in the recipe."
    return None


def section_of(section: type[SectionType], where: str, keys: dict[str, Any]) -> SectionType:
    """A section from its keys, those that are None left out; every problem in one DistilvecError, with `where` before the key."""
    try:
        return section.model_validate({name: value for name, value in keys.items() if value is not None})
    except ValidationError as error:
        raise DistilvecError("\n".join(explain(error, f"{where}.", section))) from None


def explain(error: ValidationError, before: str = "", section: type[Section] = Recipe) -> list[str]:
    """Every problem that pydantic found in a recipe, or in a `section` of it; `before` stands before every key."""
    return [_explain(problem, before, section) for problem in error.errors()]


def _explain(problem: Any, before: str, section: type[Section]) -> str:
    where = (before + ".".join(str(part) for part in problem["loc"])).rstrip(".")
    if problem["type"] != "extra_forbidden":
        found = "" if problem["type"] in ("missing", "value_error") else f"; found {problem['input']!r}"
        return f"[{where}] {problem['msg'].removeprefix('Value error, ')}{found}"
    known = _known_keys(problem["loc"][:-1], section)
    return f"[{where}] unknown key{nearest(str(problem['loc'][-1]), known)}. Known here: {', '.join(known)}."


def _known_keys(location: tuple[Any, ...], section: Any) -> list[str]:
    for part in location:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            candidates = [annotation, *getattr(annotation, "__args__", ())]
            section = next(c for c in candidates if isinstance(c, type) and issubclass(c, Section))
    keys = list(section.model_fields)
    return [*keys, "variants"] if section is Recipe else keys


def resolve_paths(recipe: Recipe, folder: Path) -> Recipe:
    """Make the recipe's relative paths absolute; model ids are touched only if they start with '.'."""

    def fix(path: Path | None) -> Path | None:
        return path if path is None else (folder / path.expanduser()).resolve()

    def fix_model(model: str | None) -> str | None:
        return str((folder / model).resolve()) if model and model.startswith(".") else model

    def fix_teacher(teacher: TeacherSection) -> TeacherSection:
        return teacher.model_copy(update={"vectors": fix(teacher.vectors), "model": fix_model(teacher.model)})

    corpus, task = recipe.corpus, recipe.task
    if corpus is not None:
        corpus = corpus.model_copy(update={"sources": [s.model_copy(update={"path": fix(s.path)}) for s in corpus.sources]})
    return recipe.model_copy(
        update={
            "teacher": fix_teacher(recipe.teacher),
            "more_teachers": [fix_teacher(teacher) for teacher in recipe.more_teachers],
            "student": recipe.student.model_copy(
                update={"model": fix_model(recipe.student.model), "tokenizer": fix_model(recipe.student.tokenizer)}
            ),
            "corpus": corpus,
            "task": task and task.model_copy(update={"path": fix(task.path)}),
            "cache": recipe.cache.model_copy(update={"path": fix(recipe.cache.path), "root": fix(recipe.cache.root)}),
            "evaluation": recipe.evaluation.model_copy(update={"suite": fix(recipe.evaluation.suite)}),
        }
    )
