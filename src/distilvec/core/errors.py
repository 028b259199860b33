"""Exceptions for users, and a sentence for each failure of system and libraries."""

from __future__ import annotations

import difflib
import errno
import os
import pickle
import signal
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST_LINE = 200
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FIXES = {
    errno.ENOENT: ("does not exist", "Check the path."),
    errno.ENOTDIR: ("is below something that is no folder", "Check the path."),
    errno.EISDIR: ("is a folder", "Give a file."),
    errno.EEXIST: ("exists already", "Choose another path."),
    errno.EACCES: ("may not be opened (permission denied)", "Change its permissions or choose another path."),
    errno.EPERM: ("may not be changed (operation not permitted)", "Change its permissions or choose another path."),
    errno.EROFS: ("is on a read-only file system", "Choose another path."),
    errno.ELOOP: ("is a link that leads to itself", "Remove the link or choose another path."),
    errno.ENAMETOOLONG: ("has too long a name", "Choose a shorter one."),
    errno.EMFILE: ("cannot be opened: too many files are open", "Raise the limit (ulimit -n) and run it again."),
    errno.EIO: ("cannot be read or written: the disk reports an error", "Check the disk."),
    errno.EXDEV: ("cannot be moved to another file system", "Choose a path on the same file system."),
}


class DistilvecError(Exception):
    """A problem in what the user gave us (recipe, files, vectors, machine), never a bug of ours: "[key] problem. Fix."

    The command line prints its message without a traceback and exits with status 2.
    """


class Stopped(DistilvecError):
    """Work that a signal (Ctrl-C, SIGTERM) ended after everything was saved. The exit status is 128 + `number`."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = int(number)


class ProcessLost(DistilvecError):
    """Another process of the same run ended. The exit status is 3, so that the other one's counts."""


class Busy(DistilvecError):
    """Another process holds the lock."""


class Interrupted(BaseException):
    """A signal (Ctrl-C, SIGTERM) outside of the training loop. Not KeyboardInterrupt, which typer keeps to itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint "; did you mean '...'?" with the known name most like `name`; empty where none is like it."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened; its type where it has none."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"


def explain(error: BaseException, key: str | None = None, path: Path | None = None) -> str | None:
    """An expected failure of the system or a library as "[key] problem. Fix."; None for one that is not expected.

    `path` names the file where the error itself does not. Expected are the file system, full disks, too little memory
    and text that is not Unicode.
    """
    if path is None and isinstance(getattr(error, "filename", None), (str, bytes)):
        path = Path(os.fsdecode(error.filename))  # type: ignore[attr-defined]
    if disk_is_full(error):
        room = f"no space left on the disk{f' for {path}' if path is not None else ''}"
        return f"[{key or 'disk'}] {room}. Free space and run the same command again, or choose another path."
    if isinstance(error, OSError) and error.errno is not None:
        other = (f"cannot be used: {error.strerror or first_line(error)}", "Check the path.")
        problem, fix = _FIXES.get(error.errno, other)
        return f"[{key or 'path'}] {path if path is not None else 'a file'} {problem}. {fix}"
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        fix = "Lower batch sizes or the length of texts, or free memory."
        return f"[{key or 'memory'}] not enough memory: {first_line(error)}. {fix}"
    if isinstance(error, UnicodeError):
        file = f"{path}: " if path is not None else ""
        return f"[{key or 'text'}] {file}text that is not valid Unicode: {first_line(error)}. Convert it to UTF-8."
    return None


@contextmanager
def explained(key: str, path: Path | None = None) -> Iterator[None]:
    """Expected failures inside become a DistilvecError with this key; see `explain`."""
    try:
        yield
    except DistilvecError:
        raise
    except Exception as error:
        message = explain(error, key, path)
        if message is None:
            raise
        raise DistilvecError(message) from error


def disk_is_full(error: BaseException) -> bool:
    """Return whether an error of the system or of a library (safetensors, pyarrow) is about a full disk."""
    return (isinstance(error, OSError) and error.errno in _FULL) or "No space left" in str(error)


# Errors of libraries for model files that are damaged, missing, or of another kind than their name.
UNREADABLE = (
    OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError, RuntimeError, EOFError,
    RecursionError, pickle.UnpicklingError, zipfile.BadZipFile,
)  # fmt: skip
