"""Files of a cache: whole .npy files that appear at once, and a journal with the ones that count."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

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
from distilvec.core.hashing import checksum_once
from distilvec.teachers.cache.signals import Array

JOURNAL, LOCK = "shards.jsonl", "lock"
KEY_NAME = "cache.path"  # the recipe's key, for messages


@dataclass
class Shard:
    """One line of the journal: `rows` texts. `files` maps signals to the [bytes, checksum] of their files."""

    number: int
    rows: int
    files: dict[str, tuple[int, str]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def path(self, folder: Path, name: str) -> Path:
        """The file of a signal."""
        return folder / f"{self.number:05}.{name}.npy"

    def to_line(self) -> bytes:
        """The journal's line."""
        content = {"shard": self.number, "rows": self.rows, "files": self.files, **self.notes}
        return (json.dumps(content) + "\n").encode()

    def problems(self, folder: Path, names: Iterable[str], checksum: Callable[[Path], str] | None) -> list[str]:
        """One line for each file that is missing, has another size or, if `checksum` is given, other content."""
        found = []
        for name in names:
            path, (expected, digest) = self.path(folder, name), self.files[name]
            if not path.is_file():
                found.append(f"shard {self.number}: {path.name} is missing")
            elif (size := path.stat().st_size) != expected:
                kind = "truncated" if size < expected else "too long"
                found.append(f"shard {self.number}: {path.name} is {kind}: found {size:,} bytes, expected {expected:,}")
            elif checksum is not None and checksum(path) != digest:
                found.append(f"shard {self.number}: {path.name} is damaged: its content does not match its checksum")
        return found

    def verify(self, folder: Path, name: str) -> Path:
        """A signal's file, compared with its checksum if this process has not read the file before.

        Errors: DistilvecError for a file that is damaged or cannot be read.
        """
        path = self.path(folder, name)
        with explained(KEY_NAME, path):
            if problems := self.problems(folder, [name], checksum_once):
                raise damaged(folder, problems[0])
        return path


def damaged(folder: Path, problem: str) -> DistilvecError:
    """The error for damage in a cache."""
    return DistilvecError(
        KEY_NAME,
        f"teacher cache {folder}: {problem}. `distilvec cache verify {folder} --repair` drops the damaged shards; "
        "filling the cache computes them again.",
    )


def read_journal(folder: Path, strict: bool = True) -> tuple[list[Shard], int, int]:
    """Shards of a cache in order, bytes of the journal's whole lines, number of damaged lines.

    A torn last line is dropped; a later line about the same shard adds files to it. Errors: DistilvecError for a
    damaged line if `strict`.
    """
    path = folder / JOURNAL
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    shards: dict[int, Shard] = {}
    broken = 0
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            files = {name: (int(size), str(digest)) for name, (size, digest) in record.pop("files").items()}
            shard = Shard(int(record.pop("shard")), int(record.pop("rows")), files, record)
        except (ValueError, KeyError, TypeError, AttributeError):
            if strict:
                raise damaged(folder, f"line {number} is damaged in {JOURNAL}") from None
            broken += 1
            continue
        shards.setdefault(shard.number, shard).files.update(files)
    return list(shards.values()), len(whole), broken


def write_shard(folder: Path, shard: Shard, arrays: dict[str, Array], whole: int) -> int:
    """Write arrays and then the journal's line after its first `whole` bytes; return the new number of whole bytes.

    Each array gets a scratch name, is synced and renamed. A failure leaves the journal as it was.
    """
    for name, array in arrays.items():
        new = scratch(shard.path(folder, name))
        with new.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            write_synced(file, array.view(np.uint8).reshape(-1).data)
        shard.files[name] = (new.stat().st_size, checksum_once(new))
    for name in arrays:
        scratch(shard.path(folder, name)).replace(shard.path(folder, name))
    return _add_line(folder, shard, whole)


def adopt_shard(folder: Path, shard: Shard, source: Path, number: int, whole: int) -> tuple[Shard, int]:
    """Link or copy the files of another cache's shard under `number`, then write the line, as `write_shard`.

    Errors: DistilvecError for a file that does not match its checksum.
    """
    new = Shard(number, shard.rows, shard.files, shard.notes)
    for name in shard.files:
        found, target = shard.verify(source, name), new.path(folder, name)
        target.unlink(missing_ok=True)
        try:
            os.link(found, target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(found, scratch(target))
            with scratch(target).open("rb") as file:
                os.fsync(file.fileno())
            scratch(target).replace(target)
    return new, _add_line(folder, new, whole)


def _add_line(folder: Path, shard: Shard, whole: int) -> int:
    """Write a shard's line after the journal's first `whole` bytes; return the new number of whole bytes."""
    sync_folder(folder)
    line, journal = shard.to_line(), folder / JOURNAL
    with journal.open("r+b" if journal.exists() else "wb") as file:
        file.truncate(whole)
        file.seek(whole)
        try:
            write_synced(file, line)
        except OSError:
            file.truncate(whole)
            raise
    sync_folder(folder)
    return whole + len(line)


def write_synced(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write and wait until the content is on the disk."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def remove_leftovers(folder: Path, shards: list[Shard], names: Iterable[str]) -> None:
    """Remove files of killed writers: scratch files, and files of the signals `names` that are not in the journal.

    The caller holds the lock. Files with other names stay.
    """
    remove_scratch(folder)
    ours = re.compile(rf"[0-9]{{5,}}\.({'|'.join(map(re.escape, names))})\.npy")
    known = {shard.path(folder, name).name for shard in shards for name in shard.files}
    for path in folder.iterdir():
        if path.name not in known and ours.fullmatch(path.name):
            path.unlink()


def write_errors(folder: Path, needed: int) -> AbstractContextManager[None]:
    """Failures to write `needed` bytes to a cache become a DistilvecError."""
    return full_disk_explained(KEY_NAME, folder, needed, "The shards written so far are kept.")


def lock(folder: Path, wait: bool = True) -> AbstractContextManager[None]:
    """Hold the cache for writing; the system frees the lock when the process ends.

    Errors: DistilvecError if another process holds the lock, unless `wait`.
    """
    return locked(folder / LOCK, KEY_NAME, f"to the teacher cache {folder}", wait)


def begin(manifest: Path, content: str) -> None:
    """Write the manifest of a cache in a new or empty folder, unless another process was faster.

    Errors: DistilvecError for a folder with other files in it, or one that cannot be made.
    """
    folder = manifest.parent
    with explained(KEY_NAME, folder):
        if folder.exists() and not folder.is_dir():  # in this order: another process may make the folder in between
            found: Iterable[Path] = [folder]
        else:
            found = folder.iterdir() if folder.is_dir() else ()
        if any(not is_scratch(path) and not _is_lock(path) for path in found) and not manifest.exists():
            raise DistilvecError(KEY_NAME, f"{folder} is not a teacher cache.", "Choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if not manifest.exists():
            write_file(manifest, content, KEY_NAME)


def _is_lock(path: Path) -> bool:
    """True for the lock of a cache: it holds a process id, or nothing yet."""
    if path.name != LOCK or not path.is_file() or path.stat().st_size >= 20:
        return False
    return (path.read_bytes().strip() or b"0").isdigit()
