"""Sweeps: one recipe, many members, each run in a folder of its own below one.

    sweep:
      grid: {train.batch_size: [16, 32], student.pooling: [mean, cls]}
      variants: [short, long]
      seeds: [0, 1, 2]

The members are the product of all three. A seed sets `train.seed` only, so members of one group see the same data.
Corpus, tokens and teacher vectors are kept by content (run.py), so members that need the same ones share them.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from distilvec.config import recipe as recipes
from distilvec.config.base import MOST_NAME_BYTES, check_name, key_text
from distilvec.config.messages import explain, invalid
from distilvec.config.paths import resolve_tree
from distilvec.config.schema import Recipe
from distilvec.config.sweep import SweepSection
from distilvec.core.errors import Busy, DistilvecError, Stopped
from distilvec.core.files import read_json, write_json
from distilvec.core.log import log
from distilvec.pipeline.run_dir import SWEEP_FILE, own_folder, refuse_foreign

_PLAIN_NAMES = {"name", "path", "model", "limit"}  # say little without the section they stand in
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")  # in the name of a folder
_LONGEST_VALUE, _LONGEST_NAME = 48, 180  # characters; file systems allow 255 bytes

Runner = Callable[[Recipe, Path], Any]
Progress = Callable[[str, int, int], None]  # (member's name, members done, all members)


@dataclass(frozen=True)
class Member:
    """One run of a sweep. `name` is its folder's; `group` is the name without the seed, equal in runs that differ by seed only."""

    name: str
    group: str
    recipe: Recipe


def has_sweep(path: Path, overrides: Sequence[str] = ()) -> bool:
    """Whether a recipe file, or one of the `key=value` overrides, names a sweep."""
    named = any(text.partition("=")[0].strip().split(".")[0] == "sweep" for text in overrides)
    return named or recipes.read_tree(path).get("sweep") is not None


def expand(source: Path | Mapping[str, Any], overrides: Sequence[str] = (), variant: str | None = None) -> list[Member]:
    """The members of a recipe's sweep, in the order variants, grid (last key fastest), seeds.

    `source` is a recipe file, or its tree (relative paths then start where the command runs). `overrides` are
    `key=value` texts that hold for every member; `sweep.seeds=[0,1]` changes the sweep itself. `variant` replaces the
    sweep's variants by one. Errors: DistilvecError for no sweep, a member that is no valid recipe (the key is named,
    with the nearest right one), an override of a key that the grid varies.
    """
    if isinstance(source, Path):
        origin, tree, folder = str(source), recipes.read_tree(source), source.parent.resolve()
    else:
        origin, tree, folder = "the recipe", copy.deepcopy(dict(source)), Path.cwd()
    tree = resolve_tree(tree, folder, Recipe)
    known = recipes.take_variants(tree, origin)
    changes = recipes.read_overrides(overrides)
    for key, value in changes.items():
        if key.split(".")[0] == "sweep":
            recipes.set_key(tree, key, value)
    section = _read_section(tree.pop("sweep", None), origin)
    changes = {key: value for key, value in changes.items() if key.split(".")[0] != "sweep"}
    _refuse_fixed_keys(section, changes)
    names, named_by = ([variant], "variant") if variant is not None else (section.variants or [], "sweep.variants")
    found = {name: recipes.find_variant(known, name, named_by, origin) for name in names}
    base = _base_name(
        changes.pop("name", tree.pop("name", None)), source.stem if isinstance(source, Path) else "sweep", origin
    )
    groups = _groups(section, names)
    labels = _distinct([_label(parts) for parts, _, _ in groups])
    seeds: list[int | None] = [*(section.seeds or [])] or [None]
    members = []
    for label, (_, chosen, point) in zip(labels, groups, strict=True):
        settings = {**(found[chosen] if chosen is not None else {}), **changes, **point}
        for seed in seeds:
            name = ",".join(part for part in (label, f"seed={seed}" if seed is not None else "") if part)
            seeded = {"name": _short(f"{base}-{name}"), **settings, **({} if seed is None else {"train.seed": seed})}
            members.append(Member(name, label or base, _member_recipe(tree, seeded, f"{origin}, member {name}")))
    return members


def run_sweep(
    members: Sequence[Member],
    out: Path,
    runner: Runner | None = None,
    progress: Progress | None = None,
    restart: bool = False,
) -> list[dict[str, Any]]:
    """Run every member in `out/<its name>` and keep `out/sweep.json`; gives that file's members.

    `runner` (default: `Run(recipe, folder).execute()`) is called for finished members as well: a Run finds by its
    fingerprints that nothing is left to do. So a sweep that was killed goes on where it stopped; with `restart` it is moved
    aside. A member that fails with a DistilvecError does not stop the others; all failures are named in one DistilvecError
    at the end. Several processes may work on one sweep, each with members of its own.
    """
    from distilvec.core.device import processes

    refuse_run(out)
    main = not members or processes(members[0].recipe.train.device).is_main_process
    if main:
        own_folder(out, restart)
    earlier = {entry["name"]: entry for entry in _earlier(out) if entry["state"] == "finished"}
    entries = [
        {"name": m.name, "group": m.group, "folder": m.name, "state": "finished" if m.name in earlier else "pending"}
        for m in members
    ]
    others = [entry for name, entry in earlier.items() if name not in {m.name for m in members}]
    runner = runner or _run_member

    def note(place: int, **values: str) -> None:
        entries[place] = {**{key: value for key, value in entries[place].items() if key != "message"}, **values}
        if main:
            _write_sweep(out, entries + others)

    for place, member in enumerate(members):
        if progress is not None:
            progress(member.name, place, len(members))
        note(place, state="running")
        try:
            runner(member.recipe, out / member.name)
        except (Stopped, Busy):
            raise
        except DistilvecError as error:
            note(place, state="failed", message=str(error))
        else:
            note(place, state="finished")
        gc.collect()
    if progress is not None and members:
        progress(members[-1].name, len(members), len(members))
    if failed := [entry for entry in entries if entry["state"] == "failed"]:
        listed = "\n".join(f"  {entry['name']}: {entry['message']}" for entry in failed)
        raise DistilvecError(
            f"[sweep] {len(failed)} of {len(entries)} members failed. Repair the causes and run it again.\n{listed}"
        )
    return entries


def _earlier(out: Path) -> list[dict[str, Any]]:
    """What an earlier sweep in the folder left; nothing where its file is damaged: finished members are found by their folders."""
    try:
        return read_sweep(out) or []
    except DistilvecError as error:
        log(f"{error} Its finished runs are kept.")
        return []


def refuse_run(out: Path) -> None:
    """DistilvecError for a folder that is not ours, or that holds a single run."""
    refuse_foreign(out)
    if (out / "recipe.yaml").exists():
        raise DistilvecError(
            f"[--out] {out} holds a single run; a sweep needs a folder of its own. Choose another folder."
        )


def read_sweep(folder: Path) -> list[dict[str, Any]] | None:
    """The members that `folder/sweep.json` lists (name, group, folder, state), None if there is none."""
    path = folder / SWEEP_FILE
    if not path.is_file():
        return None
    fix = "Run the sweep again: it writes the file again."
    try:
        members = read_json(path, fix)["members"]
        return [
            {**entry, **{key: str(entry[key]) for key in ("name", "group", "folder", "state")}} for entry in members
        ]
    except (KeyError, TypeError) as error:
        raise DistilvecError(f"[{path.name}] {path} is damaged: {error!r}. {fix}") from None


def _run_member(recipe: Recipe, folder: Path) -> Any:
    from distilvec.pipeline.run import Run

    return Run(recipe, folder).execute()


def _write_sweep(out: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    write_json(out / SWEEP_FILE, {"format": 1, "members": list(entries)}, key="--out")


# -- from the section to recipes -------------------------------------------------------------------------------------


def _read_section(tree: Any, origin: str) -> SweepSection:
    if tree is None:
        example = "sweep: {grid: {train.batch_size: [16, 32]}, seeds: [0, 1, 2]}"
        raise DistilvecError(f"[sweep] {origin} names no sweep. Add one ({example}).")
    try:
        return SweepSection.model_validate(tree)
    except ValidationError as error:
        raise invalid("sweep", origin, explain(error, SweepSection, "sweep")) from None


def _refuse_fixed_keys(section: SweepSection, changes: Mapping[str, Any]) -> None:
    """An override that the grid or the seeds would undo is a mistake."""
    varied = [*section.grid, *(["train.seed"] if section.seeds else [])]
    for fixed, key in itertools.product(changes, varied):
        if f"{fixed}.".startswith(f"{key}.") or f"{key}.".startswith(f"{fixed}."):
            raise DistilvecError(
                f"[{key_text(fixed)}] is set for all members, but the sweep varies {key_text(key)}. Remove one of the two."
            )


def _groups(
    section: SweepSection, variants: Sequence[str]
) -> list[tuple[list[tuple[str, str]], str | None, dict[str, Any]]]:
    """Every group as (parts of its name, variant, values by key)."""
    short = _short_names(section.grid)
    found: list[tuple[list[tuple[str, str]], str | None, dict[str, Any]]] = []
    chosen_variants: list[str | None] = [*variants] or [None]
    for chosen in chosen_variants:
        for places in itertools.product(*(range(len(values)) for values in section.grid.values())):
            point = {key: values[place] for (key, values), place in zip(section.grid.items(), places, strict=True)}
            parts = [
                (short[key], _value(value, place)) for (key, value), place in zip(point.items(), places, strict=True)
            ]
            found.append(([("", _safe(chosen)), *parts] if chosen is not None else parts, chosen, point))
    return found


def _member_recipe(tree: Mapping[str, Any], settings: Mapping[str, Any], origin: str) -> Recipe:
    changed = copy.deepcopy(dict(tree))
    for key, value in settings.items():
        recipes.set_key(changed, key, copy.deepcopy(value))
    return recipes.validate(changed, origin)


# -- names -----------------------------------------------------------------------------------------------------------


def _short_names(keys: Mapping[str, Any]) -> dict[str, str]:
    """Every dotted key by its shortest ending that is its own and says something: batch_size, schedule.name."""
    found = {}
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            ending = parts[-count:]
            plain = ending[0].isdigit() or (count == 1 and ending[0] in _PLAIN_NAMES)
            shared = any(other != key and other.split(".")[-count:] == ending for other in keys)
            if not plain and not shared:
                break
        found[key] = ".".join(ending)
    return found


def _value(value: Any, place: int) -> str:
    """A value as part of a name; what is too rich for one is named by its place in the list."""
    if isinstance(value, list) and value and all(isinstance(item, (str, int, float)) for item in value):
        return _safe("-".join(str(item) for item in value))
    if isinstance(value, (list, dict)):
        return f"option{place + 1}"
    return _safe(value if isinstance(value, str) else json.dumps(value, default=str))


def _base_name(name: Any, otherwise: str, origin: str) -> str:
    """The recipe's own name, with which those of its members begin."""
    try:
        return otherwise if name is None else check_name(name)
    except ValueError as error:
        raise DistilvecError(f"[name] {error}. In {origin}.") from None


def _short(name: str) -> str:
    """A recipe's name that may name files."""
    raw = name.encode("utf-8", "surrogatepass")
    return (
        name
        if len(raw) <= MOST_NAME_BYTES
        else f"{raw[: MOST_NAME_BYTES - 17].decode(errors='ignore')}-{recipes.fingerprint(name)}"
    )


def _label(parts: Sequence[tuple[str, str]]) -> str:
    text = ",".join(f"{_UNSAFE.sub('-', key)}={value}" if key else value for key, value in parts)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 17]}-{recipes.fingerprint(text)}"


def _safe(text: str) -> str:
    """Letters, digits and . _ + - only, not too long."""
    safe = _UNSAFE.sub("-", text).strip("-.") or recipes.fingerprint(text)
    return safe if len(safe) <= _LONGEST_VALUE else f"{safe[: _LONGEST_VALUE - 17]}-{recipes.fingerprint(text)}"


def _distinct(labels: Sequence[str]) -> list[str]:
    """The labels, a number added where two are equal but for upper and lower case."""
    taken: set[str] = set()
    found = []
    for label in labels:
        free = next(
            text
            for text in itertools.chain([label], (f"{label}-{n}" for n in itertools.count(2)))
            if text.casefold() not in taken
        )
        taken.add(free.casefold())
        found.append(free)
    return found
