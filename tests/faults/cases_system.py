"""Full disks, read-only file systems, missing permissions, a clock that jumps: real ones, wherever they can be made."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.harness import World, case
from faults.system import fill, forbid, read_only, small_disk

SUITE = "- {name: mini, type: sts, path: sts.csv}\n"
STS = "sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n"


def suite(world: World) -> str:
    """A suite of one task."""
    world.file("sts.csv", STS)
    return world.file("suite.yaml", SUITE)


# The verbs that write somewhere, with the option that says where.
Line = Callable[[World, Path], list[Any]]


def _align(world: World, place: Path) -> list[Any]:
    return [
        "align",
        "--teacher",
        world.model,
        "--student",
        world.model,
        "--texts",
        world.texts,
        "--json",
        place / "out.json",
    ]


def _transplant(world: World, place: Path) -> list[Any]:
    return ["transplant", world.model, "--texts", f"en={world.texts}", "--out", place / "model"]


WRITERS: dict[str, tuple[str, Line]] = {
    "run": ("--out", lambda world, place: ["run", world.recipe(), "--out", f"{place}/run"]),
    "evaluate": (
        "--json",
        lambda world, place: ["evaluate", world.model, "--suite", suite(world), "--json", f"{place}/out.json"],
    ),
    "transplant": ("--out", _transplant),
    "export": ("--out", lambda world, place: ["export", world.model, "--out", f"{place}/model.onnx"]),
    "cache-export": (
        "--out",
        lambda world, place: ["cache", "export", world.recipe(), "--out", f"{place}/vectors.parquet"],
    ),
    "speed": (
        "--json",
        lambda world, place: ["speed", world.model, "--seconds", "0.01", "--json", f"{place}/speed.json"],
    ),
    "align": ("--json", _align),
}


def _writer(verb: str) -> None:
    option, line = WRITERS[verb]

    @case(f"{verb}-to-a-read-only-file-system", key=option)
    def _(world: World) -> list[str]:
        place = world.root / "place"
        world.file("place/kept.txt")
        found = line(world, place)
        read_only(world, place)
        return found

    @case(f"{verb}-to-a-folder-without-permission", key=option)
    def _(world: World) -> list[str]:
        place = world.root / "place"
        world.file("place/kept.txt")
        found = line(world, place)
        forbid(world, place, 0o555)
        return found


for _verb in WRITERS:
    _writer(_verb)


def _full(verb: str) -> None:
    option, line = WRITERS[verb]
    key = "disk" if verb == "run" else option  # the message has the file

    @case(f"{verb}-to-a-full-disk", key=key)
    def _(world: World) -> list[str]:
        place = small_disk(world, "place", 256)
        world.file("place/kept.txt")
        found = line(world, place)
        fill(place)
        return found


for _verb in ("evaluate", "transplant", "export", "cache-export", "run"):
    _full(_verb)


def _full_cache(kilobytes: int, key: str) -> None:
    @case(f"a-cache-root-with-{kilobytes}-kilobytes", key=key)
    def _(world: World) -> list[str]:
        place = small_disk(world, "small", 4096)
        world.file("small/kept.txt")
        recipe = world.recipe(cache__root=str(place / "cache"))
        fill(place, leave=kilobytes << 10)
        return ["run", recipe, "--out", "run"]


_full_cache(8, "cache.root")  # no room for a description
_full_cache(64, "cache.root")  # for the corpus, not for its tokens


@case("no-room-for-vectors", key="cache.path")
def _(world: World) -> list[str]:
    place = small_disk(world, "small", 64)
    world.file("small/kept.txt")
    recipe = world.recipe(cache__path=str(place / "vectors"))
    fill(place, leave=12 << 10)
    return ["cache", recipe]


@case("no-room-for-a-checkpoint", key="checkpoint")
def _(world: World) -> list[str]:
    place = small_disk(world, "small", 4096)
    world.file("small/kept.txt")
    recipe = world.recipe(train__checkpoint_steps=2)
    fill(place, leave=400 << 10)  # room for the student as it starts
    return ["run", recipe, "--out", place / "run"]


@case("no-room-for-the-student", key="student")
def _(world: World) -> list[str]:
    recipe = world.recipe(train__max_steps=2)
    place = small_disk(world, "small", 4096)
    world.file("small/kept.txt")
    from distilvec.train.trainer import Trainer

    save = Trainer._checkpoint

    def then_full(loop: object) -> None:
        save(loop)  # type: ignore[arg-type]
        fill(place, leave=16 << 10)

    Trainer._checkpoint = then_full  # type: ignore[method-assign,assignment]
    world.undo.append(lambda: setattr(Trainer, "_checkpoint", save))
    world.moved.append("small/ballast")
    return ["run", recipe, "--out", place / "run"]


@case("a-warm-read-only-cache-is-read", key=None)
def _(world: World) -> list[str]:
    root = world.root / "shared"
    recipe = world.recipe(cache__root=str(root))
    world.run("run", recipe, "--out", "first")
    read_only(world, root)
    return ["run", recipe, "--out", "second"]


@case("a-cold-read-only-cache", key="cache.root")
def _(world: World) -> list[str]:
    root = world.root / "shared"
    world.file("shared/kept.txt")
    read_only(world, root)
    return ["run", world.recipe(cache__root=str(root)), "--out", "run"]


@case("the-cache-root-is-a-file", key="cache.root")
def _(world: World) -> list[str]:
    return ["run", world.recipe(cache__root=world.file("shared")), "--out", "run"]


def _unreadable(name: str, key: str) -> None:
    @case(f"{name}-without-permission", key=key)
    def _(world: World) -> list[str]:
        recipe = world.recipe()
        line = ["run", recipe, "--out", "run"]
        if name == "recipe":
            forbid(world, Path(recipe))
        elif name == "texts":
            forbid(world, world.texts)
        elif name == "teacher-weights":
            forbid(world, world.model / "model.safetensors")
        elif name == "teacher-folder":
            forbid(world, world.model)
        elif name == "suite":
            path = suite(world)
            forbid(world, Path(path))
            line = ["evaluate", str(world.model), "--suite", path]
        elif name == "suite-data":
            path = suite(world)
            forbid(world, world.root / "sts.csv")
            line = ["evaluate", str(world.model), "--suite", path]
        return line


_unreadable("recipe", "recipe")
_unreadable("texts", "corpus.sources.0.path")
_unreadable("teacher-weights", "teacher.model")
_unreadable("teacher-folder", "teacher.model")
_unreadable("suite", "--suite")


@case("a-run-folder-without-permission", key="--out")
def _(world: World) -> list[str]:
    world.finished_run()
    forbid(world, world.root / "run", 0o555)
    return ["run", "tiny.yaml", "train.learning_rate=0.01", "--out", "run", "--restart"]


@case("the-clock-jumps-back-and-forth", key=None)
def _(world: World) -> list[str]:
    jumps = itertools.cycle((0.0, -86_400.0, 86_400.0, -3e8))
    real = time.time
    time.time = lambda: real() + next(jumps)  # type: ignore[assignment]
    world.undo.append(lambda: setattr(time, "time", real))
    recipe = world.recipe()
    world.run("run", recipe, "--out", "first")
    os.utime(world.texts, (1, 1))
    os.utime(world.model / "model.safetensors", (4e9, 4e9))
    return ["run", recipe, "--out", "first"]


@case("two-restarts-within-a-second", key=None)
def _(world: World) -> list[str]:
    real = time.strftime
    time.strftime = lambda *given: "20260101-000000"  # type: ignore[assignment]
    world.undo.append(lambda: setattr(time, "strftime", real))
    world.finished_run()
    world.file("run/first.txt")
    world.run("run", "tiny.yaml", "--out", "run", "--restart")
    world.file("run/second.txt")
    world.checks.append(lambda found: _both_kept(world))
    world.moved.append("run/")
    return ["run", "tiny.yaml", "--out", "run", "--restart"]


def _both_kept(world: World) -> None:
    names = [path.parent.name for name in ("first", "second") for path in world.root.glob(f"run.old-*/{name}.txt")]
    assert names == ["run.old-20260101-000000", "run.old-20260101-000000-2"], names
