"""Files of a cache: whole .npy files that appear at once, and a journal with the ones that count.

A shard is written in this order, which must stay: its files under scratch names, each synced; their renaming; the sync
of the folder; the shard's line in the journal, synced. So a line never names a file that is not whole on the disk, and
a kill or a full disk leaves at most files without a line, which the next writer removes (`remove_leftovers`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import (
    acquire_lock,
    disk_space_needed,
    is_scratch,
    remove_scratch,
    scratch,
    sync_folder,
    write_file,
)
from distilvec.core.hashing import checksum_once, remember
from distilvec.teachers.cache.signals import Array

JOURNAL = "shards.jsonl"
LOCK = "lock"
KEY_NAME = "cache.path"  # the recipe's key, for messages


@dataclass
class Shard:
    """One line of the journal: `rows` texts. `files` maps signals to the [bytes, checksum] of their files.

    `notes` are the line's other fields, which are written back as they were read.
    """

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
        lines = []
        for name in names:
            path = self.path(folder, name)
            expected_size, expected_checksum = self.files[name]
            prefix = f"shard {self.number}: {path.name} is"
            if not path.is_file():
                lines.append(f"{prefix} missing")
                continue
            size = path.stat().st_size
            if size != expected_size:
                kind = "truncated" if size < expected_size else "too long"
                lines.append(f"{prefix} {kind}: found {size:,} bytes, expected {expected_size:,}")
            elif checksum is not None and checksum(path) != expected_checksum:
                lines.append(f"{prefix} damaged: its content does not match its checksum")
        return lines

    def verify(self, folder: Path, name: str) -> Path:
        """A signal's file, compared with its checksum if this process has not read the file before.

        Errors: DistilvecError for a damaged file.
        """
        path = self.path(folder, name)
        with about(KEY_NAME, path):
            problems = self.problems(folder, [name], checksum_once)
        if problems:
            raise damaged(folder, problems[0])
        return path


@dataclass
class Journal:
    """What the journal of a cache says. `size`: bytes of its whole lines, behind which a writer goes on."""

    shards: list[Shard]
    size: int
    damaged_lines: int


def damaged(folder: Path, problem: str) -> DistilvecError:
    """The error for damage in a cache."""
    command = shlex.join(["distilvec", "cache", "verify", str(folder), "--repair"])
    return DistilvecError(
        f"teacher cache {folder}: {problem}. `{command}` drops the damaged shards; "
        "filling the cache computes them again.",
        key=KEY_NAME,
    )


def read_journal(folder: Path, strict: bool = True) -> Journal:
    """The shards of a cache, in the order of their lines.

    A torn last line is dropped; a later line about the same shard adds files to it. Errors: DistilvecError for a
    damaged line if `strict`.
    """
    path = folder / JOURNAL
    content = path.read_bytes() if path.exists() else b""
    size = content.rfind(b"\n") + 1
    shards: dict[int, Shard] = {}
    damaged_lines = 0
    for number, line in enumerate(content[:size].split(b"\n")[:-1], 1):
        try:
            shard = _parse_line(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            if strict:
                raise damaged(folder, f"line {number} is damaged in {JOURNAL}") from None
            damaged_lines += 1
        else:
            shards.setdefault(shard.number, shard).files.update(shard.files)
    return Journal(list(shards.values()), size, damaged_lines)


def _parse_line(line: bytes) -> Shard:
    fields = json.loads(line)
    files = {name: (int(size), str(checksum)) for name, (size, checksum) in fields.pop("files").items()}
    return Shard(int(fields.pop("shard")), int(fields.pop("rows")), files, notes=fields)


def write_journal(folder: Path, shards: Iterable[Shard]) -> None:
    """Replace the journal by one with these shards."""
    write_file(folder / JOURNAL, b"".join(shard.to_line() for shard in shards))


def write_shard(folder: Path, shard: Shard, arrays: dict[str, Array], journal_size: int) -> int:
    """Write arrays and then the journal's line behind its first `journal_size` bytes; return the journal's new size.

    A failure leaves the journal as it was.
    """
    for name, array in arrays.items():
        new = scratch(shard.path(folder, name))
        with new.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            write_synced(file, array.view(np.uint8).reshape(-1).data)
        shard.files[name] = (new.stat().st_size, checksum_once(new))
    # Every file is on the disk before the first one gets its name: a full disk leaves nothing but scratch files.
    for name in arrays:
        path = shard.path(folder, name)
        scratch(path).replace(path)
        remember(path, shard.files[name][1])
    return _add_line(folder, shard, journal_size)


def adopt_shard(folder: Path, shard: Shard, source: Path, number: int, journal_size: int) -> tuple[Shard, int]:
    """Link or copy the files of another cache's shard under `number`, then write the line; see `write_shard`.

    Errors: DistilvecError for a file that does not match its checksum.
    """
    adopted = replace(shard, number=number)
    for name in shard.files:
        path = shard.verify(source, name)
        target = adopted.path(folder, name)
        target.unlink(missing_ok=True)  # of a merge that was killed
        try:
            os.link(path, target)  # one content under two names: a shard's files are never changed in place
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, scratch(target))
            with scratch(target).open("rb") as file:
                os.fsync(file.fileno())
            scratch(target).replace(target)
    return adopted, _add_line(folder, adopted, journal_size)


def _add_line(folder: Path, shard: Shard, journal_size: int) -> int:
    """Write a shard's line behind the journal's first `journal_size` bytes; return the journal's new size."""
    sync_folder(folder)  # the renamed files must be on the disk before a line names them
    line = shard.to_line()
    path = folder / JOURNAL
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(journal_size)  # a killed writer may have left a part of a line
        file.seek(journal_size)
        try:
            write_synced(file, line)
        except OSError:
            file.truncate(journal_size)
            raise
    sync_folder(folder)
    return journal_size + len(line)


def write_synced(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write and wait until the content is on the disk."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def remove_leftovers(folder: Path, shards: list[Shard], names: Iterable[str]) -> None:
    """Remove files of killed writers: scratch files, and files of the signals `names` that are not in the journal.

    The caller must hold the lock: without it these are the files of a writer that is about to add its line.
    Files with other names stay.
    """
    remove_scratch(folder)
    signals = "|".join(re.escape(name) for name in names)
    shard_file = re.compile(rf"[0-9]{{5,}}\.({signals})\.npy")
    in_journal: set[str] = set()
    for shard in shards:
        in_journal.update(shard.path(folder, name).name for name in shard.files)
    for path in folder.iterdir():
        if shard_file.fullmatch(path.name) and path.name not in in_journal:
            path.unlink()


@contextmanager
def write_errors(folder: Path, needed: int) -> Iterator[None]:
    """Failures to write `needed` bytes to a cache become a DistilvecError."""
    with about("cache.path"), disk_space_needed(folder, needed, "The shards written so far are kept."):
        yield


def lock(folder: Path, wait: bool = True) -> AbstractContextManager[object]:
    """Hold the cache for writing; the system frees the lock when the process ends.

    The lock's file must stay: if it were removed, a process that has opened it and one that makes it anew would both
    write. Errors: DistilvecError if another process holds the lock, unless `wait`.
    """
    with about(KEY_NAME, folder):
        return acquire_lock(folder / LOCK, f"to the teacher cache {folder}", wait)


def begin(manifest: Path, content: str) -> None:
    """Write the manifest of a cache in a new or empty folder, unless another process was faster.

    Errors: DistilvecError for a folder with other files in it.
    """
    folder = manifest.parent
    with about(KEY_NAME, folder):
        # The manifest is looked for after the files: another process may begin the cache in between.
        if _has_other_files(folder) and not manifest.exists():
            raise DistilvecError(f"{folder} is not a teacher cache.", "Choose another folder.", key=KEY_NAME)
        folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if not manifest.exists():  # else another process held the lock first, and wrote it
            write_file(manifest, content)


def _has_other_files(folder: Path) -> bool:
    """Whether `folder` is a file, or holds more than the beginning of a cache."""
    if folder.exists() and not folder.is_dir():  # in this order: another process may make the folder in between
        return True
    if not folder.is_dir():
        return False
    return any(not is_scratch(path) and not _is_lock(path) for path in folder.iterdir())


def _is_lock(path: Path) -> bool:
    """Whether a file is the lock of a cache: it holds a process id, or nothing yet."""
    if path.name != LOCK or not path.is_file() or path.stat().st_size >= 20:
        return False
    content = path.read_bytes().strip()
    return not content or content.isdigit()
