"""How arrays of the corpus lie on disk: flat .npy columns that grow while they are written, in folders that appear whole."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError

META = "meta.json"  # written last: a folder that has it is complete


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(OSError):  # the disk may be full: the first error is the one to tell
            self._file.close()

    def _write_header(self) -> int:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)  # type: ignore[arg-type]
        return self._file.tell()


def open_column(path: Path) -> Any:
    """A .npy file as a read-only array on a memory map. ValueError or OSError if it is damaged or missing."""
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))  # a plain array: np.memmap is slow to index


def read_meta(folder: Path, fingerprint: str) -> dict[str, Any] | None:
    """The folder's meta.json if the folder is complete and has this fingerprint, else None."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return meta if isinstance(meta, dict) and meta.get("fingerprint") == fingerprint else None


@contextlib.contextmanager
def new_folder(folder: Path, needed: int, what: str) -> Iterator[Path]:
    """A temporary sibling to fill; it becomes `folder` when the block ends well and is removed when it does not.

    `needed` is an estimate in bytes, for the message when the disk is full; `what` names the content. An older folder of
    ours is replaced; one that holds something else is refused. What a killed process left behind is cleared first.
    Errors: DistilvecError if the folder is not ours, cannot be made, or the disk is full.
    """
    if folder.exists() and not (folder / META).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise DistilvecError(f"{folder} exists and is not a {what} folder: it has no {META}. Move it away or choose another output folder.")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        yield partial
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(next(parent for parent in folder.absolute().parents if parent.exists())).free
            shutil.rmtree(partial, ignore_errors=True)
            raise DistilvecError(
                f"no space left on the disk of {folder} while writing the {what}: about {_megabytes(needed)} needed, "
                f"{_megabytes(free)} were free at the end. What was written is removed. Free space or choose another output folder."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DistilvecError(f"the {what} cannot be written to {folder}: {error}. Choose another output folder.") from None
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
