"""The files of a cache: whole .npy files that appear at once, and a journal that says which of them count."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError
from distilvec.hashing import checksum

JOURNAL = "shards.jsonl"
LOCK = "lock"
TEMPORARY = ".tmp"


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
                found.append(f"shard {self.number}: {path.name} is {kind}: {size:,} bytes found, {stored.bytes:,} expected")
            elif checksums and checksum(path) != stored.blake2b:
                found.append(f"shard {self.number}: {path.name} is damaged: its content does not match its checksum")
        return found


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
                raise DistilvecError(f"{path}: line {number} is damaged. {how_to_repair(folder)}") from None
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


def replace_file(path: Path, content: bytes) -> None:
    """Put a whole small file in place at once."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        write_synced(file, content)
    temporary.replace(path)
    sync_folder(path.parent)


def write_shard(folder: Path, shard: Shard, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write each array to a temporary name, sync, rename, and record it in `shard.files`."""
    for name, array in arrays.items():
        temporary = shard.path(folder, name + TEMPORARY)
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))  # type: ignore[no-untyped-call]
            write_synced(file, array.view(np.uint8).reshape(-1).data)
        shard.files[name] = Stored(temporary.stat().st_size, checksum(temporary))
    for name in arrays:
        shard.path(folder, name + TEMPORARY).replace(shard.path(folder, name))
    sync_folder(folder)


def write_synced(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write and wait until it is on the disk."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the folder's names are on the disk (no such thing on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_leftovers(folder: Path, shards: list[Shard]) -> None:
    """Remove what a killed writer left: temporary files, and shard files that the journal does not know."""
    known = {shard.path(folder, name).name for shard in shards for name in shard.files}
    for path in folder.iterdir():
        shard_file = path.name.endswith(".npy") and path.name.partition(".")[0].isdigit()
        if TEMPORARY in path.name or (shard_file and path.name not in known):
            path.unlink()


@contextmanager
def telling_disk_full(folder: Path, needed: int) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written into a DistilvecError; `needed` in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(folder).free
            raise DistilvecError(
                f"[cache.path] no space left for a shard of the teacher cache {folder}: {needed / 1e6:,.1f} MB needed, "
                f"{free / 1e6:,.1f} MB free. The shards written so far are kept; free space and run the same command again, "
                "or choose another folder."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DistilvecError(f"[cache.path] the teacher cache {folder} cannot be written: {error}. Choose another folder.") from None
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system frees when the process ends; refused if another holds it."""
    with telling_disk_full(folder, 0), (folder / LOCK).open("a+") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise DistilvecError(
                    f"[cache.path] process {file.read().strip()} is writing to the teacher cache {folder}. "
                    "Wait until it has ended and run the same command again."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def how_to_repair(folder: Path) -> str:
    """What to do about damage."""
    return f"`distilvec cache verify {folder} --repair` drops the damaged shards; filling the cache computes them again."
