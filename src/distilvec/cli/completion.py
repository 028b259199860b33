"""Shell completion: names of recipes and variants, keys of recipes and their values. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from distilvec.core.errors import DistilvecError

_LONGEST_HELP = 60  # characters: typer wraps longer ones, which fish takes for completions of their own
Completions = list[tuple[str, str]]  # (text to insert, its description)


def recipe_names() -> Completions:
    """The built-in recipes; where none fits, the shell completes files."""
    from distilvec.config.builtin import recipe_files
    from distilvec.config.recipe import read_tree

    return [(path.stem, _short(str(read_tree(path).get("description", "")))) for path in recipe_files()]


def data_names() -> Completions:
    """The sets of public data."""
    from distilvec.data.public.table import data_sets

    return [(name, _short(entry.about)) for name, entry in data_sets().items()]


def variant_names(ctx: Any) -> list[str]:
    """The variants of the recipe on the command line; none without one."""
    from distilvec.config.builtin import recipe_file
    from distilvec.config.recipe import variants

    name = ctx.params.get("recipe") or next(iter(ctx.args), "")  # in args while an option has no value yet
    try:
        return variants(recipe_file(name))
    except DistilvecError:
        return []


def recipe_keys(ctx: Any, incomplete: str) -> Completions:
    """KEY= for every key of the schema; KEY=VALUE for a key that is complete and has a list of values.

    Bash splits words at "=": of train.device=c the key and "=" are words of their own, before the one to complete.
    """
    from distilvec.config.schema import Recipe

    keys = {key: (annotation, text) for key, annotation, text in _keys(Recipe, "")}
    words = [word for word in ctx.params.get("overrides") or [] if word != "="]
    if words and words[-1] in keys:
        return [(value, "") for value in _values(keys[words[-1]][0])]
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [(f"{key}={value}", "") for value in _values(keys[key][0])] if key in keys else []
    return [(f"{name}=", _short(text)) for name, (_, text) in keys.items()]


def _keys(section: Any, before: str) -> Iterator[tuple[str, Any, str]]:
    """Every dotted key of a section with its annotation and description; of a list of sections, those of item 0."""
    from distilvec.config.base import child, is_section, kinds

    for name, field in section.model_fields.items():
        inner = {"": kinds(field.annotation), "0.": kinds(child(field.annotation, 0))}
        sections = [(kind, part) for part, found in inner.items() for kind in found if is_section(kind)]
        if not sections:
            yield before + name, field.annotation, field.description or ""
        for kind, part in sections:
            yield from _keys(kind, f"{before}{name}.{part}")


def _values(annotation: Any) -> list[str]:
    """The values that an annotation lists, and true and false for a boolean."""
    from distilvec.config.base import kinds

    allowed = kinds(annotation)
    listed = [str(value) for kind in allowed if get_origin(kind) is Literal for value in get_args(kind)]
    return [*(("true", "false") if bool in allowed else ()), *listed]


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("[", "(").replace("]", ")")  # typer takes [brackets] for markup
    return line if len(line) <= _LONGEST_HELP else f"{line[: _LONGEST_HELP - 1]}…"
