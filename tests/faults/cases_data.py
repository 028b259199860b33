"""Teacher caches and corpora: damaged ones, foreign files in and beside them, paths that cannot be written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from faults.harness import World, case


def patched(world: World, owner: object, name: str, value: object) -> None:
    """Replace an attribute until the case has ended."""
    before = getattr(owner, name)
    world.undo.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def filled(world: World, **changes: object) -> tuple[Path, str]:
    """A filled cache and its recipe."""
    recipe = world.recipe(cache__path=str(world.root / "vectors"), **changes)
    world.run("cache", recipe)
    return world.root / "vectors", recipe


# -- the teacher cache -------------------------------------------------------------------------------------------------


@case("cache-vectors-flipped", key="cache.path")
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    flip(cache / "00002.embedding.npy")
    return ["cache", "export", recipe, "--out", "out.parquet"]


@case("cache-vectors-flipped-run", key="cache.path")
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    flip(cache / "00000.embedding.npy")
    return ["run", recipe, "--out", "run"]


@case("cache-keys-flipped", key="cache.path")
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    flip(cache / "00001.keys.npy")
    return ["cache", recipe]


@case("cache-shard-gone", key="cache.path")
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    (cache / "00001.embedding.npy").unlink()
    return ["cache", recipe]


@case("cache-journal-damaged", key="cache.path")
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    (cache / "shards.jsonl").write_text("{nonsense}\n" + (cache / "shards.jsonl").read_text())
    return ["cache", recipe]


@case("cache-manifest-changed", key="cache.path")
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    content = json.loads((cache / "manifest.json").read_text())
    content["manifest"]["weights"] = "0" * 32
    (cache / "manifest.json").write_text(json.dumps(content))
    return ["cache", "export", recipe, "--out", "out.parquet"]


@case("cache-manifest-is-a-list", key="cache.path")
def _(world: World) -> list[str]:
    cache, _ = filled(world)
    (cache / "manifest.json").write_text("[]")
    return ["cache", "inspect", str(cache)]


@case("cache-verify-finds-damage", key="cache.path")
def _(world: World) -> list[str]:
    cache, _ = filled(world)
    flip(cache / "00003.embedding.npy")
    return ["cache", "verify", str(cache)]


@case("cache-verify-of-another-folder", key="cache.path")
def _(world: World) -> list[str]:
    world.file("notes/notes.txt")
    return ["cache", "verify", "notes"]


@case("cache-path-is-a-file", key="cache.path")
def _(world: World) -> list[str]:
    return ["cache", world.recipe(cache__path=world.file("vectors"))]


@case("cache-path-below-a-file", key="cache.path")
def _(world: World) -> list[str]:
    world.file("notes")
    return ["cache", world.recipe(cache__path=str(world.root / "notes" / "vectors"))]


@case("cache-path-holds-other-files", key="cache.path")
def _(world: World) -> list[str]:
    world.file("vectors/lock", "my own lock")
    return ["cache", world.recipe(cache__path=str(world.root / "vectors"))]


@case("cache-path-holds-another-teacher", key="cache.path")
def _(world: World) -> list[str]:
    filled(world)
    return ["cache", world.recipe(cache__path=str(world.root / "vectors"), teacher__max_length=16)]


@case("foreign-files-in-a-cache-stay", key=None)
def _(world: World) -> list[str]:
    cache, recipe = filled(world)
    for path in [*cache.glob("*.npy"), cache / "shards.jsonl"]:  # an empty cache
        path.unlink()
    for name in ("12345.mine.npy", "00009.embedding.npy.tmp", "notes.tmp", ".tmp.notes", "a.partial", "00001.mine.npy"):
        world.file(f"vectors/{name}")
    return ["cache", recipe]


@case("foreign-files-in-the-cache-root-stay", key=None)
def _(world: World) -> list[str]:
    world.run("cache", world.recipe())
    for folder in [path for path in (world.root / "cache").rglob("*") if path.is_dir()]:
        for name in ("notes.tmp", ".partial", "mine.new", f".{folder.name}.partial"):
            world.file(str((folder / name).relative_to(world.root)))
    return ["cache", world.recipe("other.yaml", corpus__seed=1, teacher__max_length=16)]


@case("cache-disk-full", key="cache.path")
def _(world: World) -> list[str]:
    from distilvec.teachers.cache import journal

    patched(world, journal, "write_synced", _full)
    return ["cache", world.recipe()]


def _full(*arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- the cache's root --------------------------------------------------------------------------------------------------


@case("cache-root-is-a-file", key="cache.root")
def _(world: World) -> list[str]:
    return ["cache", world.recipe(cache__root=world.file("root"))]


@case("corpus-disk-full", key="cache.root")
def _(world: World) -> list[str]:
    from distilvec.core.artifacts import Column

    patched(world, Column, "append", _full)
    return ["cache", world.recipe()]


@case("corpus-no-permission", key="cache.root")
def _(world: World) -> list[str]:
    make = Path.mkdir

    def refused(path: Path, *arguments: object, **options: object) -> None:
        if "corpora" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        make(path, *arguments, **options)

    patched(world, Path, "mkdir", refused)
    return ["cache", world.recipe()]


# -- Parquet out and in ------------------------------------------------------------------------------------------------


@case("export-out-is-a-folder", key="--out")
def _(world: World) -> list[str]:
    world.file("out.parquet/notes.txt")
    return ["cache", "export", world.recipe(), "--out", "out.parquet"]


@case("export-out-below-a-file", key="--out")
def _(world: World) -> list[str]:
    world.file("notes")
    return ["cache", "export", world.recipe(), "--out", "notes/out.parquet"]


@case("export-keeps-what-is-beside-it", key=None)
def _(world: World) -> list[str]:
    world.file("out.parquet.tmp")
    return ["cache", "export", world.recipe(), "--out", "out.parquet"]
