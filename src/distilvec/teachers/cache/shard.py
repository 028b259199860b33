"""The files of a cache: whole .npy files that appear at once, and a journal that says which of them count."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError, explained
from distilvec.core.files import (
    full_disk_explained,
    is_scratch,
    locked,
    remove_scratch,
    scratch,
    sync_folder,
    write_file,
)
from distilvec.core.hashing import checksum, checksum_once

JOURNAL = "shards.jsonl"
LOCK = "lock"
CACHE_PATH = "cache.path"  # what messages name


@dataclass(frozen=True)
class Stored:
    """A file as the journal records it."""

    bytes: int
    blake2b: str


@dataclass
class Shard:
    """One line of the journal: `rows` texts whose signals lie in `files` (signal name to file)."""

    number: int
    rows: int
    files: dict[str, Stored] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def path(self, folder: Path, name: str) -> Path:
        """Where a signal's file lies."""
        return shard_path(folder, self.number, name)

    def to_line(self) -> bytes:
        """The journal's line."""
        files = {name: [stored.bytes, stored.blake2b] for name, stored in self.files.items()}
        return (json.dumps({"shard": self.number, "rows": self.rows, "files": files, **self.notes}) + "\n").encode()

    def problems(self, folder: Path, checksums: bool) -> list[str]:
        """One line for each file that is missing, has another size or, if asked for, other content."""
        found = []
        for name, stored in self.files.items():
            path = self.path(folder, name)
            size = path.stat().st_size if path.is_file() else None
            if size is None:
                found.append(f"shard {self.number}: {path.name} is missing")
            elif size != stored.bytes:
                kind = "cut short" if size < stored.bytes else "too long"
                found.append(
                    f"shard {self.number}: {path.name} is {kind}: {size:,} bytes found, {stored.bytes:,} expected"
                )
            elif checksums and checksum(path) != stored.blake2b:
                found.append(f"shard {self.number}: {path.name} {_DAMAGED}")
        return found

    def verify(self, folder: Path, name: str) -> Path:
        """A signal's file, whose content is compared with its checksum where this process has not read it yet.

        Errors: DistilvecError for a file that is damaged or cannot be read.
        """
        path = self.path(folder, name)
        with explained(CACHE_PATH, path):
            found = checksum_once(path)
        if found != self.files[name].blake2b:
            raise DistilvecError(
                f"[{CACHE_PATH}] teacher cache {folder}: shard {self.number}: {path.name} {_DAMAGED}. {how_to_repair(folder)}"
            )
        return path


_DAMAGED = "is damaged: its content does not match its checksum"


def shard_path(folder: Path, number: int, name: str) -> Path:
    """The file of a shard's signal."""
    return folder / f"{number:05}.{name}.npy"


@dataclass(frozen=True)
class Journal:
    """What the journal says: shards in order, the bytes of its whole lines, and how many lines cannot be read."""

    shards: list[Shard]
    whole: int
    damaged: int = 0


def read_journal(folder: Path, strict: bool = True) -> Journal:
    """The journal of a cache. A torn last line is dropped; a later line about the same shard adds files to it.

    Errors: DistilvecError for a damaged line, unless not `strict`: then it is counted and left out.
    """
    path = folder / JOURNAL
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    shards: dict[int, Shard] = {}
    damaged = 0
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            files = {name: Stored(int(size), str(digest)) for name, (size, digest) in record.pop("files").items()}
            shard = Shard(int(record.pop("shard")), int(record.pop("rows")), files, record)
        except (ValueError, KeyError, TypeError, AttributeError):
            if strict:
                raise DistilvecError(
                    f"[{CACHE_PATH}] {path}: line {number} is damaged. {how_to_repair(folder)}"
                ) from None
            damaged += 1
            continue
        shards.setdefault(shard.number, shard).files.update(files)
    return Journal(list(shards.values()), len(whole), damaged)


def append_journal(folder: Path, shard: Shard, whole: int) -> int:
    """Write a line behind the first `whole` bytes, synced; the new count of whole bytes. Nothing is left if it fails."""
    line = shard.to_line()
    with (folder / JOURNAL).open("r+b" if (folder / JOURNAL).exists() else "wb") as file:
        file.truncate(whole)
        file.seek(whole)
        try:
            write_synced(file, line)
        except OSError:
            file.truncate(whole)
            raise
    sync_folder(folder)
    return whole + len(line)


def write_shard(folder: Path, shard: Shard, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write each array to a scratch name, sync, rename, and record it in `shard.files`."""
    for name, array in arrays.items():
        new = scratch(shard.path(folder, name))
        with new.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))  # type: ignore[no-untyped-call]
            write_synced(file, array.view(np.uint8).reshape(-1).data)
        shard.files[name] = Stored(new.stat().st_size, checksum_once(new))
    for name in arrays:
        scratch(shard.path(folder, name)).replace(shard.path(folder, name))
    sync_folder(folder)


def write_synced(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write and wait until it is on the disk."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def remove_leftovers(folder: Path, shards: list[Shard], names: Iterable[str]) -> None:
    """Remove what killed writers left: scratch files, and files of the signals `names` that no shard of the journal has.

    The caller holds the lock. Files with other names are not ours and stay.
    """
    remove_scratch(folder)
    ours = re.compile(rf"[0-9]{{5,}}\.({'|'.join(map(re.escape, names))})\.npy")
    known = {shard.path(folder, name).name for shard in shards for name in shard.files}
    for path in folder.iterdir():
        if path.name not in known and ours.fullmatch(path.name):
            path.unlink()


def write_errors(folder: Path, needed: int) -> AbstractContextManager[None]:
    """Failures to write `needed` bytes to a cache become a DistilvecError."""
    return full_disk_explained(CACHE_PATH, folder, needed, "The shards written so far are kept.")


def lock(folder: Path, wait: bool = True) -> AbstractContextManager[None]:
    """Hold the cache for writing; the system frees it when the process ends. Without `wait`, DistilvecError if another holds it."""
    return locked(folder / LOCK, CACHE_PATH, f"to the teacher cache {folder}", wait)


def begin(manifest: Path, content: str) -> None:
    """Write the manifest of a cache in a new or empty folder, unless another process has done so meanwhile.

    Errors: DistilvecError for a folder with anything else in it, or one that cannot be made.
    """
    folder = manifest.parent
    _refuse_foreign(manifest)
    with explained(CACHE_PATH, folder):
        folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if not manifest.exists():
            _refuse_foreign(manifest)
            write_file(manifest, content, CACHE_PATH)


def _refuse_foreign(manifest: Path) -> None:
    """DistilvecError for a folder with anything in it but what a process leaves that has just begun a cache."""
    folder = manifest.parent
    with explained(CACHE_PATH, folder):
        found = [folder] if folder.exists() and not folder.is_dir() else [*folder.iterdir()] if folder.exists() else []
        foreign = [path for path in found if not is_scratch(path) and not _is_lock(path)]
    if foreign and not manifest.exists():  # another process may have written it meanwhile
        raise DistilvecError(
            f"[{CACHE_PATH}] {folder} exists and is not a teacher cache: it has no {manifest.name}. Choose another folder."
        )


def _is_lock(path: Path) -> bool:
    """Whether a file is the lock of a cache: it holds a process id, or nothing yet."""
    return (
        path.name == LOCK
        and path.is_file()
        and path.stat().st_size < 20
        and (path.read_bytes().strip() or b"0").isdigit()
    )


def how_to_repair(folder: Path) -> str:
    """What to do about damage."""
    return (
        f"`distilvec cache verify {folder} --repair` drops the damaged shards; filling the cache computes them again."
    )
