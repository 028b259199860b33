"""Sweeps: one recipe, several runs, each in a folder of its own.

    sweep:
      grid: {train.batch_size: [16, 32], student.pooling: [mean, cls]}
      variants: [short, long]
      seeds: [0, 1, 2]

The runs are the product of all three. A seed sets `train.seed` only, so runs of one group see the same data. Corpus,
tokens and teacher vectors are stored by content, so runs share them.
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

_PLAIN_NAMES = {"name", "path", "model", "limit"}  # unclear without their section
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")  # in the name of a folder
_LONGEST_VALUE, _LONGEST_NAME = 48, 180  # characters; file systems allow 255 bytes

Runner = Callable[[Recipe, Path], Any]
Progress = Callable[[str, int, int], None]  # (name of a run, finished runs, all runs)
Group = tuple[str, str | None, dict[str, Any]]  # (label, variant, values by key)


@dataclass(frozen=True)
class Member:
    """One run of a sweep. `name` is its folder's; `group` is the name without the seed."""

    name: str
    group: str
    recipe: Recipe


def has_sweep(path: Path, overrides: Sequence[str] = ()) -> bool:
    """Whether a recipe file, or one of the `key=value` overrides, has a sweep."""
    named = any(text.partition("=")[0].strip().split(".")[0] == "sweep" for text in overrides)
    return named or recipes.read_tree(path).get("sweep") is not None


def expand(source: Path | Mapping[str, Any], overrides: Sequence[str] = (), variant: str | None = None) -> list[Member]:
    """Return the runs of a recipe's sweep, in the order variants, grid (last key fastest), seeds.

    `source` is a recipe file, or its tree (relative paths then start in the current folder). `overrides` are
    `key=value` texts for every run; `sweep.seeds=[0,1]` changes the sweep itself. `variant` replaces the sweep's
    variants by one.
    Errors: DistilvecError for no sweep, an invalid recipe, or an override of a key that the grid varies.
    """
    if isinstance(source, Path):
        origin, tree, folder = str(source), recipes.read_tree(source), source.parent.resolve()
    else:
        origin, tree, folder = "the recipe", copy.deepcopy(dict(source)), Path.cwd()
    tree = resolve_tree(tree, folder, Recipe)
    known, changes = recipes.take_variants(tree, origin), recipes.read_overrides(overrides)
    for key in [key for key in changes if key.split(".")[0] == "sweep"]:
        recipes.set_key(tree, key, changes.pop(key))
    section = _read_section(tree.pop("sweep", None), origin)
    _refuse_fixed_keys(section, changes)
    names, key = ([variant], "variant") if variant is not None else (section.variants or [], "sweep.variants")
    found = {name: recipes.find_variant(known, name, key, origin) for name in names}
    stem = source.stem if isinstance(source, Path) else "sweep"
    base = _base_name(changes.pop("name", tree.pop("name", None)), stem, origin)
    seeds: list[int | None] = [*(section.seeds or [])] or [None]
    members = []
    for label, chosen, point in _groups(section, names):
        settings = {**(found[chosen] if chosen is not None else {}), **changes, **point}
        for seed in seeds:
            name = ",".join(part for part in (label, f"seed={seed}" if seed is not None else "") if part)
            seeded = {} if seed is None else {"train.seed": seed}
            own = {"name": _shortened(f"{base}-{name}", MOST_NAME_BYTES), **settings, **seeded}
            members.append(Member(name, label or base, _member_recipe(tree, own, f"{origin}, run {name}")))
    return members


def run_sweep(
    members: Sequence[Member],
    out: Path,
    runner: Runner | None = None,
    progress: Progress | None = None,
    restart: bool = False,
) -> list[dict[str, Any]]:
    """Train every run in `out/<its name>` and keep `out/sweep.json`; return that file's entries.

    `runner` (default: `pipeline.run.run`) is called for finished runs as well and finds that nothing is left to do, so
    a killed sweep continues. With `restart` an earlier sweep is moved aside. A run that fails with a DistilvecError
    does not stop the others; one DistilvecError at the end lists all failures. Several processes may work on one sweep.
    """
    from distilvec.core.device import processes
    from distilvec.pipeline.run import run

    refuse_run(out)
    main = not members or processes(members[0].recipe.train.device).is_main_process
    if main:
        own_folder(out, restart)
    earlier = {entry["name"]: entry for entry in _earlier(out) if entry["state"] == "finished"}
    entries = [
        {"name": m.name, "group": m.group, "folder": m.name, "state": "finished" if m.name in earlier else "pending"}
        for m in members
    ]
    others = [entry for name, entry in earlier.items() if name not in {member.name for member in members}]

    def note(number: int, **values: str) -> None:
        entries[number] = {**{key: value for key, value in entries[number].items() if key != "message"}, **values}
        if main:
            write_json(out / SWEEP_FILE, {"format": 1, "members": entries + others}, key="--out")

    for number, member in enumerate(members):
        if progress is not None:
            progress(member.name, number, len(members))
        note(number, state="running")
        try:
            (runner or run)(member.recipe, out / member.name)
        except (Stopped, Busy):
            raise
        except DistilvecError as error:
            note(number, state="failed", message=str(error))
        else:
            note(number, state="finished")
        gc.collect()
    if progress is not None and members:
        progress(members[-1].name, len(members), len(members))
    if failed := [entry for entry in entries if entry["state"] == "failed"]:
        listed = "\n".join(f"  {entry['name']}: {entry['message']}" for entry in failed)
        raise DistilvecError(
            f"[sweep] {len(failed)} of {len(entries)} runs failed. Fix the errors below and run the same command "
            "again; "
            f"finished runs are skipped.\n{listed}"
        )
    return entries


def _earlier(out: Path) -> list[dict[str, Any]]:
    """Return the entries of an earlier sweep; none if its file is damaged, since finished runs are found by their
    folders.
    """
    try:
        return read_sweep(out) or []
    except DistilvecError as error:
        log(f"{error} Its finished runs are kept.")
        return []


def refuse_run(out: Path) -> None:
    """DistilvecError for a foreign folder, or one that holds a single run."""
    refuse_foreign(out)
    if (out / "recipe.yaml").exists():
        raise DistilvecError(f"[--out] {out} holds a single run; a sweep needs its own folder. Choose another folder.")


def read_sweep(folder: Path) -> list[dict[str, Any]] | None:
    """Return the runs that `folder/sweep.json` lists (name, group, folder, state), None if there is no such file."""
    path = folder / SWEEP_FILE
    if not path.is_file():
        return None
    fix = "Run the sweep again: it writes the file again."
    try:
        entries = read_json(path, fix)["members"]
        return [{**e, **{key: str(e[key]) for key in ("name", "group", "folder", "state")}} for e in entries]
    except (KeyError, TypeError) as error:
        raise DistilvecError(f"[{path.name}] {path} is damaged: {error!r}. {fix}") from None


# -- from the section to recipes -------------------------------------------------------------------------------------


def _read_section(tree: Any, origin: str) -> SweepSection:
    if tree is None:
        example = "sweep: {grid: {train.batch_size: [16, 32]}, seeds: [0, 1, 2]}"
        raise DistilvecError(f"[sweep] {origin} has no sweep. Add one ({example}).")
    try:
        return SweepSection.model_validate(tree)
    except ValidationError as error:
        raise invalid("sweep", origin, explain(error, SweepSection, "sweep")) from None


def _refuse_fixed_keys(section: SweepSection, changes: Mapping[str, Any]) -> None:
    """DistilvecError for an override that the grid or the seeds would undo."""
    varied = [*section.grid, *(["train.seed"] if section.seeds else [])]
    for fixed, key in itertools.product(changes, varied):
        if f"{fixed}.".startswith(f"{key}.") or f"{key}.".startswith(f"{fixed}."):
            raise DistilvecError(
                f"[{key_text(fixed)}] is set for all runs, but the sweep varies {key_text(key)}. Remove one of the two."
            )


def _groups(section: SweepSection, variants: Sequence[str]) -> list[Group]:
    """Return every group of runs that differ by their seed only; labels are distinct, also without case."""
    short, found, taken = _short_names(section.grid), list[Group](), set[str]()
    chosen_variants: list[str | None] = [*variants] or [None]
    points = itertools.product(*(list(enumerate(values)) for values in section.grid.values()))
    for chosen, point in itertools.product(chosen_variants, list(points)):
        named = zip(section.grid, point, strict=True)
        parts = [f"{_UNSAFE.sub('-', short[key])}={_value(value, number)}" for key, (number, value) in named]
        text = _shortened(",".join([*([_safe(chosen)] if chosen is not None else []), *parts]), _LONGEST_NAME)
        numbered = itertools.chain([text], (f"{text}-{n}" for n in itertools.count(2)))
        label = next(free for free in numbered if free.casefold() not in taken)
        taken.add(label.casefold())
        found.append((label, chosen, {key: v for key, (_, v) in zip(section.grid, point, strict=True)}))
    return found


def _member_recipe(tree: Mapping[str, Any], settings: Mapping[str, Any], origin: str) -> Recipe:
    changed = copy.deepcopy(dict(tree))
    for key, value in settings.items():
        recipes.set_key(changed, key, copy.deepcopy(value))
    return recipes.validate(changed, origin)


# -- names -----------------------------------------------------------------------------------------------------------


def _short_names(keys: Mapping[str, Any]) -> dict[str, str]:
    """Return the shortest clear and unique ending of every dotted key: batch_size, schedule.name."""
    found = {}
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            ending = parts[-count:]
            plain = ending[0].isdigit() or (count == 1 and ending[0] in _PLAIN_NAMES)
            if not plain and not any(other != key and other.split(".")[-count:] == ending for other in keys):
                break
        found[key] = ".".join(ending)
    return found


def _value(value: Any, number: int) -> str:
    """Return a value as part of a name; lists of lists and mappings go by their number in the grid."""
    if isinstance(value, list) and value and all(isinstance(item, (str, int, float)) for item in value):
        return _safe("-".join(str(item) for item in value))
    if isinstance(value, (list, dict)):
        return f"option{number + 1}"
    return _safe(value if isinstance(value, str) else json.dumps(value, default=str))


def _base_name(name: Any, otherwise: str, origin: str) -> str:
    """Return the recipe's own name, with which the names of its runs begin."""
    try:
        return otherwise if name is None else check_name(name)
    except ValueError as error:
        raise DistilvecError(f"[name] {error}. In {origin}.") from None


def _safe(text: str) -> str:
    """Keep letters, digits and . _ + - only; shorten long texts."""
    safe = _UNSAFE.sub("-", text).strip("-.") or recipes.fingerprint(text)
    return safe if len(safe) <= _LONGEST_VALUE else f"{safe[: _LONGEST_VALUE - 17]}-{recipes.fingerprint(text)}"


def _shortened(text: str, most: int) -> str:
    """Cut a text to `most` bytes; its end becomes a fingerprint."""
    raw = text.encode("utf-8", "surrogatepass")
    return text if len(raw) <= most else f"{raw[: most - 17].decode(errors='ignore')}-{recipes.fingerprint(text)}"
