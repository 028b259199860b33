"""Stored arrays: .npy columns that grow while they are written, in folders that are complete and verified."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import (
    acquire_lock,
    disk_space_needed,
    is_scratch,
    is_sealed,
    read_json,
    remove,
    scratch,
    sync,
    write_json,
)
from distilvec.core.hashing import checksum_once
from distilvec.core.log import log

META = "meta.json"  # written last: a folder that has it is complete
FINGERPRINT, CHECKSUMS = "fingerprint", "checksums"  # keys of META: of the folder's sources, and of every other file
KEY = "cache.root"  # the key in messages: these folders are stored below it

Content = TypeVar("Content")


class Column:
    """Writes a one-dimensional .npy file piece by piece; the header gets its length when the file is closed.

    Pieces are written, not mapped: a full disk raises OSError instead of killing the process.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self._file = path.open("wb")
        self._dtype = np.dtype(dtype)
        self._length = 0
        self._data_start = self._write_header()

    def append(self, piece: npt.NDArray[Any]) -> None:
        """Add a one-dimensional array, cast to the column's type."""
        self._file.write(np.ascontiguousarray(piece, dtype=self._dtype).tobytes())
        self._length += len(piece)

    def close(self) -> None:
        """Write the length and close the file."""
        self._file.seek(0)
        start = self._write_header()  # numpy leaves room for a longer number
        assert start == self._data_start, (start, self._data_start)
        self._file.close()

    def __enter__(self) -> Column:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        with contextlib.suppress(OSError):  # the disk may be full: the first error is reported
            self._file.close()

    def _write_header(self) -> int:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)
        return self._file.tell()


def open_column(path: Path) -> Any:
    """A .npy file as a read-only array on a memory map. ValueError or OSError if it is damaged or missing."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))  # a plain array: np.memmap is slow to index


# -- folders -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArtifactStore:
    """Content-addressed folders below one root, `root/kind/name`: complete or absent, checked when they are opened."""

    root: Path

    def folder(self, kind: str, name: str) -> Path:
        """Path of an artifact, whether it exists or not."""
        return self.root / kind / name


def read_stored(path: Path, what: str) -> dict[str, Any] | None:
    """Return the content of a JSON file that `store_json` wrote; None if there is none, or a damaged one (logged)."""
    if not path.exists():
        return None
    try:
        return read_json(path, "Delete it.")
    except DistilvecError as error:
        log(f"{what} {path} is damaged ({error.problem}); it is made again")
        return None


def store_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file for `read_stored`, whole or not at all."""
    with about(KEY, path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content, sealed=True)


def open_or_build(
    folder: Path,
    fingerprint: str,
    what: str,
    needed: int,
    build: Callable[[Path], dict[str, Any]],
    load: Callable[[Path], Content],
    meta: str = META,
) -> Content:
    """Return `load(folder)` if the folder is complete, undamaged and has this fingerprint; else build it first.

    `build(scratch)` fills an empty folder and gives the content of the file `meta`. Checksums are compared once a
    process. Processes that build the same folder wait for each other. Other files in the folder stay.

    Args:
        what: Name of the content, for messages.
        needed: Estimated bytes, for the message when the disk is full.

    Errors: DistilvecError if the folder is not ours, cannot be made, or the disk is full.
    """
    content = open_stored(folder, fingerprint, what, load, meta)
    if content is not None:
        return content
    with about(KEY, folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder.with_name(f".{folder.name}.lock"), f"the {what} {folder}", wait=True)
    with lock:
        content = open_stored(folder, fingerprint, what, load, meta)  # another process may have built it meanwhile
        if content is not None:
            return content
        with _new_folder(folder, needed, what, meta) as new:
            content_of_meta = {FINGERPRINT: fingerprint, **build(new)}
            content_of_meta[CHECKSUMS] = {str(path.relative_to(new)): checksum_once(path) for path in _files(new)}
            sync(new)
            write_json(new / meta, content_of_meta, sealed=True)
    return load(folder)


def open_stored(
    folder: Path, fingerprint: str, what: str, load: Callable[[Path], Content], meta: str = META
) -> Content | None:
    """The content of a folder; None if it is absent, of another fingerprint, or damaged (which is logged)."""
    try:
        if not (folder / meta).exists():
            return None
        content = json.loads((folder / meta).read_text(encoding="utf-8"))
        if content[FINGERPRINT] != fingerprint:
            return None
        if not is_sealed(content):
            raise ValueError(f"the content of {meta} does not match its checksum")
        for name, expected in content[CHECKSUMS].items():
            if checksum_once(folder / name) != expected:
                raise ValueError(f"{name} does not match its checksum")
        return load(folder)
    except (DistilvecError, MemoryError):
        raise
    except Exception as error:  # libraries raise any kind
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            with about(KEY, folder):
                raise
        log(f"{what} {folder} is damaged ({first_line(error)}); it is built again")
        return None


@contextlib.contextmanager
def _new_folder(folder: Path, needed: int, what: str, meta: str) -> Iterator[Path]:
    """A scratch folder to fill, whose files replace those of `folder` at the end. The caller holds the lock."""
    if folder.exists() and not (folder / meta).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise DistilvecError(
            f"{folder} exists and is not a {what} folder: it has no {meta}.",
            "Move it away or choose another folder.",
            key=KEY,
        )
    for path in folder.parent.iterdir():  # of killed processes: whoever builds this folder holds the lock
        if is_scratch(path) and path.name.startswith(f".{folder.name}.distilvec-"):
            remove(path)
    new = scratch(folder)
    try:
        with about(KEY, folder), disk_space_needed(folder, needed, "Nothing is kept."):
            new.mkdir()
            yield new
            _publish(new, folder, meta)
    finally:
        remove(new)


def _publish(new: Path, folder: Path, meta: str) -> None:
    """Move built files to their folder, `meta` last: until then its fingerprint fits nothing."""
    if not folder.exists():
        new.rename(folder)
        return
    write_json(folder / meta, {FINGERPRINT: ""})
    for path in sorted(_files(new), key=lambda path: path == new / meta):
        target = folder / path.relative_to(new)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
