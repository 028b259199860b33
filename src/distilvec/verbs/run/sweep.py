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
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from distilvec.config import recipe as recipes
from distilvec.config.base import MOST_NAME_BYTES, check_name, invalid, key_text
from distilvec.config.base import explain as explain_invalid
from distilvec.config.paths import resolve_tree
from distilvec.config.schema import Recipe, SweepSection
from distilvec.core.errors import Busy, DistilvecError, ProcessLost, Stopped, about, first_line, user_error
from distilvec.core.files import acquire_lock, read_json, write_json
from distilvec.core.log import log
from distilvec.core.run_folder import DETAILS, RunFolder
from distilvec.pipeline.claim import own_folder, recipe_inputs, refuse_foreign, refuse_inputs_inside

_UNCLEAR = {"name", "path", "model", "limit"}  # keys that need their section's name
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")  # in the name of a folder
_LONGEST_VALUE, _LONGEST_NAME = 48, 180  # bytes; file systems allow 255
_EXAMPLE = "sweep: {grid: {train.batch_size: [16, 32]}, seeds: [0, 1, 2]}"


@dataclass(frozen=True)
class Member:
    """One run of a sweep. `name` is its folder's; `group` is the name without the seed."""

    name: str
    group: str
    recipe: Recipe


@dataclass(frozen=True)
class Runs:
    """The runs of a recipe: those of its sweep, or a single one."""

    members: list[Member]
    is_sweep: bool

    @property
    def first(self) -> Member:
        """The first run, or the only one."""
        return self.members[0]


def load_runs(path: Path, overrides: Sequence[str] = (), variant: str | None = None) -> Runs:
    """Read a recipe file once and return its runs, at least one; sweep=null leaves a single one.

    Errors as `expand_sweep` and `config.recipe.load`.
    """
    tree = recipes.read_tree(path)
    scratch = copy.deepcopy(tree)
    chosen = _chosen_variant(recipes.take_variants(scratch, str(path)), variant, str(path))
    if _take_sweep(scratch, chosen, recipes.read_overrides(overrides)) is not None:
        return Runs(_expand_file(tree, path, overrides, variant), is_sweep=True)
    recipe = recipes.validate(recipes.changed_tree(tree, path, variant, overrides), str(path))
    return Runs([Member(recipe.name, recipe.name, recipe)], is_sweep=False)


def expand_sweep(
    source: Path | Mapping[str, Any], overrides: Sequence[str] = (), variant: str | None = None
) -> list[Member]:
    """Return the runs of a recipe's sweep, in the order variants, grid (last key fastest), seeds.

    `source` is a recipe file, or its tree (relative paths then start in the current folder). `overrides` are
    `key=value` texts for every run; `sweep.seeds=[0,1]` changes the sweep itself. `variant` replaces the sweep's
    variants by one; its keys of the sweep count before those of the overrides.
    """
    if isinstance(source, Path):
        return _expand_file(recipes.read_tree(source), source, overrides, variant)
    tree = copy.deepcopy(dict(source))
    return _expand_sweep(resolve_tree(tree, Path.cwd(), Recipe), "the recipe", "sweep", overrides, variant)


def _expand_file(tree: dict[str, Any], path: Path, overrides: Sequence[str], variant: str | None) -> list[Member]:
    tree = resolve_tree(tree, path.parent.resolve(), Recipe)
    return _expand_sweep(tree, str(path), path.stem, overrides, variant)


def _expand_sweep(
    tree: dict[str, Any], origin: str, stem: str, overrides: Sequence[str], variant: str | None
) -> list[Member]:
    known_variants = recipes.take_variants(tree, origin)
    changes = recipes.read_overrides(overrides)
    chosen = _chosen_variant(known_variants, variant, origin)
    sweep = _take_sweep(tree, chosen, changes)
    changes = _without_sweep(changes)
    section = _sweep_section(sweep, origin, changes)
    base_name = changes.pop("name", tree.pop("name", None))  # that the names of the runs begin with
    if base_name is None:
        base_name = stem
    try:
        check_name(base_name)
    except ValueError as error:
        raise DistilvecError(f"{error}. In {origin}.", key="name") from None

    if variant is not None:
        variants = {variant: chosen}
    else:
        names = section.variants or []
        with about("sweep.variants"):
            variants = {name: recipes.find_variant(known_variants, name, origin) for name in names}
        _refuse_sweeps(variants)
        _refuse_undone(variants, changes, section)

    members = []
    seeds: list[int | None] = [*(section.seeds or [])] or [None]
    for (label, variant_name, point), seed in itertools.product(_sweep_groups(section, list(variants)), seeds):
        name = label
        if seed is not None:
            name = f"{label},seed={seed}".lstrip(",")
        changed = copy.deepcopy(tree)
        changed["name"] = _shortened(f"{base_name}-{name}", MOST_NAME_BYTES)
        # A variant first, then what holds for all runs, then what this sweep varies: the later one counts
        for key, value in _without_sweep(variants.get(variant_name or "", {})).items():
            recipes.set_key(changed, key, copy.deepcopy(value))
        recipes.override(changed, copy.deepcopy(changes))
        for key, value in point.items():
            recipes.set_key(changed, key, copy.deepcopy(value))
        if seed is not None:
            recipes.set_key(changed, "train.seed", seed)
        members.append(Member(name, label or base_name, recipes.validate(changed, f"{origin}, run {name}")))
    return members


def _chosen_variant(variants: Mapping[str, dict[str, Any]], variant: str | None, origin: str) -> dict[str, Any]:
    """Return the changes of the variant that a command names; DistilvecError if they list variants of the sweep."""
    if variant is None:
        return {}
    with about("variant"):
        changes = recipes.find_variant(variants, variant, origin)
    sweep = _take_sweep({}, changes)
    if isinstance(sweep, dict) and sweep.get("variants"):
        problem = f"is set by variant {variant}, which itself takes the place of the sweep's variants."
        raise DistilvecError(problem, "Remove it from the variant.", key="sweep.variants")
    return changes


def _take_sweep(tree: dict[str, Any], *changes: Mapping[str, Any]) -> Any:
    """Remove the sweep from a recipe's tree and return it, with the changes' keys of it set, later ones last."""
    for mapping in changes:
        for key, value in mapping.items():
            if _is_of_sweep(key):
                recipes.set_key(tree, key, copy.deepcopy(value))
    return tree.pop("sweep", None)


def _is_of_sweep(key: str) -> bool:
    return key.split(".")[0] == "sweep"


def _without_sweep(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if not _is_of_sweep(key)}


def _refuse_sweeps(variants: Mapping[str, Mapping[str, Any]]) -> None:
    """DistilvecError for a variant that a sweep lists and that has keys of a sweep itself: it is a single run."""
    for name, changes in variants.items():
        for key in changes:
            if _is_of_sweep(key):
                problem = f"is set by variant {name}, which is a run of the sweep."
                raise DistilvecError(
                    problem, f"Remove it from the variant, or give --variant {name}.", key=key_text(key)
                )


def _refuse_undone(
    variants: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Any], section: SweepSection
) -> None:
    """DistilvecError for a key of a listed variant that would be set again: its run would not be what its name says.

    A change for all runs may replace what the only variant sets: there is no other run that it would resemble.
    """
    for key in changes:
        for name, variant_changes in variants.items():
            if len(variants) > 1 and _states(variant_changes, key):
                problem = f"is set for all runs, but variant {name} of the sweep sets it, too."
                raise DistilvecError(problem, f"Remove one of the two, or list {name} alone.", key=key_text(key))
    for key in section.grid:  # not the seeds: a variant's own seed is for its run alone
        for name, variant_changes in variants.items():
            if _states(variant_changes, key):
                problem = f"is set by variant {name}, but the sweep varies it."
                raise DistilvecError(problem, "Remove one of the two.", key=key_text(key))


def _states(changes: Mapping[str, Any], key: str) -> bool:
    """Whether changes by dotted key set this key, a key within it, or a section with it."""
    for changed_key, value in changes.items():
        if f"{changed_key}.".startswith(f"{key}."):
            return True
        if key.startswith(f"{changed_key}."):
            for name in key.removeprefix(f"{changed_key}.").split("."):
                if not isinstance(value, dict) or name not in value:
                    break
                value = value[name]
            else:
                return True
    return False


def check_methods(members: Sequence[Member]) -> None:
    """DistilvecError for a method of any run that cannot be loaded, or options that it does not take.

    It is called before the first run starts, which may take hours.
    """
    from distilvec.core.registry import checked_method

    for member in members:
        for stage, recipe in (recipes.stage_recipes(member.recipe) or {"": member.recipe}).items():
            try:
                checked_method(recipe.method.name, recipe.method.options)
            except DistilvecError as error:
                places = [f"run {member.name}"] if len(members) > 1 else []
                if stage:
                    places += [f"stage {stage}"]
                raise DistilvecError(": ".join([*places, error.problem]), error.fix, key=error.key) from error


def run_sweep(
    members: Sequence[Member],
    out: Path,
    runner: Callable[[Recipe, Path], Any] | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
    restart: bool = False,
) -> list[dict[str, Any]]:
    """Train every run in `out/<its name>` and keep their list in the sweep's folder; return its entries.

    `runner` (default: `pipeline.run.run`) is called for finished runs as well and finds that nothing is left to do, so
    a killed sweep continues. `progress` gets a run's name, the finished runs and all runs. With `restart` earlier
    runs of these names are moved aside; other runs in the folder stay. Several processes may work on one sweep.
    A run that fails is logged and does not stop the others; one DistilvecError at the end lists all failures. Its cause
    is the last error that is a bug. Among several processes such an error ends the sweep, since the others may wait for
    this one.
    """
    from distilvec.core.processes import is_main, join_processes, main_first, world_size
    from distilvec.pipeline.run import run

    if members:
        join_processes(members[0].recipe.train.device)
    with main_first():
        refuse_foreign(RunFolder(out))
        if RunFolder(out).recipe.exists():
            fix = "Choose another folder."
            raise DistilvecError(f"{out} holds a single run; a sweep needs its own folder.", fix, key="--out")
        main = is_main()
        if main:
            if restart:  # all folders are tried before the first is moved
                inputs = {path for member in members for path in recipe_inputs(member.recipe)}
                for member in members:
                    refuse_inputs_inside(RunFolder(out / member.name), inputs)
            own_folder(RunFolder(out))
            for member in members:
                if restart and (out / member.name).exists():
                    own_folder(RunFolder(out / member.name), restart)
    finished = {entry["name"]: entry for entry in _entries(out) if entry["state"] == "finished"}
    entries = {}
    for member in members:
        state = "finished" if member.name in finished and not restart else "pending"
        entries[member.name] = {"name": member.name, "group": member.group, "folder": member.name, "state": state}

    def note(name: str, **values: str) -> None:
        """Change a member's entry in the file, which other commands may write at the same time."""
        entries[name] = {key: value for key, value in entries[name].items() if key != "message"} | values
        if not main:
            return
        lock = RunFolder(out).sweep.with_suffix(".lock")
        with about("--out", out), acquire_lock(lock, f"sweep {out.name}", wait=True):
            others = []
            for entry in _entries(out):
                if entry["name"] not in entries and entry["state"] in ("finished", "running"):
                    others.append(entry)
            content = {"format": 1, "members": [*entries.values(), *others]}
            write_json(RunFolder(out).sweep, content)

    bug: Exception | None = None
    for number, member in enumerate(members):
        progress(member.name, number, len(members))
        note(member.name, state="running")
        try:
            (runner or run)(member.recipe, out / member.name)
        except (Stopped, Busy, ProcessLost, BrokenPipeError):
            raise
        except Exception as error:
            if world_size() > 1:  # the other processes are in the middle of this run: none can go on with the next
                note(member.name, state="failed", message=str(error))
                raise
            failure = user_error(error)
            if failure is None:
                bug = error
                problem = f"unexpected {type(error).__name__}: {first_line(error)}."
                failure = DistilvecError(
                    problem, "Please report this bug in distilvec (--debug shows it).", key="internal"
                )
            note(member.name, state="failed", message=str(failure))
            log(f"{member.name} failed: {failure}")
        else:
            note(member.name, state="finished")
        gc.collect()
    if members:
        progress(members[-1].name, len(members), len(members))
    failed = [f"\n  {name}: {entry['message']}" for name, entry in entries.items() if entry["state"] == "failed"]
    if failed:
        others = ""
        if len(failed) < len(entries):
            others = f" The others so far: {shlex.join(['distilvec', 'compare', str(out)])}"
        raise DistilvecError(
            f"{len(failed)} of {len(entries)} runs failed.",
            f"Fix the errors below and run the command again: finished runs are skipped.{others}{''.join(failed)}",
            key="sweep",
        ) from bug
    return list(entries.values())


def read_sweep(folder: Path) -> list[dict[str, Any]] | None:
    """Return the runs of a sweep (name, group, folder, state), None for a folder that is no sweep's."""
    run = RunFolder(folder)
    path = run.sweep
    fix = "Run the sweep again: it writes the file again."
    run.check_format()
    if not path.is_file():
        return None
    try:
        entries: list[dict[str, Any]] = read_json(path, fix, sealed=False)["members"]
        for entry in entries:
            for key in ("name", "group", "folder", "state"):
                entry[key] = str(entry[key])
        return entries
    except (KeyError, TypeError) as error:
        raise DistilvecError(f"{path} is damaged: {error!r}.", fix, key=path.name) from None


def _entries(out: Path) -> list[dict[str, Any]]:
    """Return the entries of an earlier sweep; none if its file is damaged: finished runs are found by their folders."""
    try:
        return read_sweep(out) or []
    except Exception as error:
        problem = user_error(error)
        if problem is None:
            raise
        log(f"{problem} Its finished runs are kept.")
        return []


def _sweep_section(tree: Any, origin: str, changes: Mapping[str, Any]) -> SweepSection:
    """Validate the section; DistilvecError also for an override that the grid or the seeds would undo."""
    if tree is None:
        raise DistilvecError(f"{origin} has no sweep.", f"Add one ({_EXAMPLE}).", key="sweep")
    try:
        section = SweepSection.model_validate(tree)
    except ValidationError as error:
        raise invalid("sweep", origin, explain_invalid(error, SweepSection, "sweep")) from None
    for fixed, key in itertools.product(changes, [*section.grid, *(["train.seed"] if section.seeds else [])]):
        if f"{fixed}.".startswith(f"{key}.") or f"{key}.".startswith(f"{fixed}."):
            raise DistilvecError(
                f"is set for all runs, but the sweep varies {key_text(key)}.",
                "Remove one of the two.",
                key=key_text(fixed),
            )
    return section


# -- names -----------------------------------------------------------------------------------------------------------


def _sweep_groups(section: SweepSection, variants: Sequence[str]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Yield label, variant and values by key of all runs that differ by their seed only; labels differ without case."""
    short = [_UNSAFE.sub("-", name) for name in _short_names(list(section.grid))]
    taken = {DETAILS}  # the sweep's own folder, beside those of its runs
    points = list(itertools.product(*(enumerate(values) for values in section.grid.values())))
    choices: list[str | None] = [*variants] or [None]
    for chosen, point in itertools.product(choices, points):
        parts = [f"{key}={_value(value, number)}" for key, (number, value) in zip(short, point, strict=True)]
        text = _shortened(",".join([*([] if chosen is None else [_value(chosen)]), *parts]), _LONGEST_NAME)
        numbered = itertools.chain([text], (f"{text}-{n}" for n in itertools.count(2)))
        label = next(free for free in numbered if free.casefold() not in taken)
        taken.add(label.casefold())
        yield label, chosen, dict(zip(section.grid, (value for _, value in point), strict=True))


def _short_names(keys: list[str]) -> list[str]:
    """Return the shortest clear and unique ending of every dotted key: batch_size, schedule.name."""

    def clear(ending: str, key: str) -> bool:
        repeated = any(other_key != key and f".{other_key}".endswith(f".{ending}") for other_key in keys)
        return ending == key or not (repeated or ending in _UNCLEAR or ending.split(".")[0].isdigit())

    names = []
    for key in keys:
        *before, ending = key.split(".")
        while not clear(ending, key):
            ending = f"{before.pop()}.{ending}"
        names.append(ending)
    return names


def _value(value: Any, number: int = 0) -> str:
    """Return a value as part of a name; lists of lists and mappings go by their number in the grid."""
    if isinstance(value, list) and value and all(isinstance(item, (str, int, float)) for item in value):
        value = "-".join(str(item) for item in value)
    elif isinstance(value, (list, dict)):
        return f"option{number + 1}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return _shortened(_UNSAFE.sub("-", text).strip("-.") or recipes.fingerprint(text), _LONGEST_VALUE, text)


def _shortened(text: str, most: int, origin: str | None = None) -> str:
    """Cut a text to `most` bytes; its end becomes the fingerprint of `origin` (default: of the text)."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= most:
        return text
    return f"{raw[: most - 17].decode(errors='ignore')}-{recipes.fingerprint(text if origin is None else origin)}"
