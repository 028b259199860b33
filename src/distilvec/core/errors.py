"""Errors that users can fix, and plain sentences for expected failures of the system and of libraries."""

from __future__ import annotations

import difflib
import errno
import os
import signal
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from distilvec.core.secrets import hidden

Item = TypeVar("Item")
_KEY = "distilvec_key"  # attributes of another library's error: the key that it is about, and what the key names
_NAME = "distilvec_name"
_SET_BY = "distilvec_set_by"  # an attribute of any error: which argument or option set which key
_PACKAGE = Path(__file__).parents[1]
_MISTAKES = (TypeError, AttributeError, NameError, LookupError, AssertionError, ArithmeticError, NotImplementedError)
_LONGEST_LINE = 200
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DistilvecError(Exception):
    """A problem that the user can fix: in a recipe, files, vectors or the machine. Printed as "[key] problem. Fix."

    The command line prints that line without a traceback and exits with status 2. Bugs raise other exceptions.

    Args:
        problem: one sentence or several, with the value that was found and the one that was expected
        fix: what to do about it; may be empty
        key: the recipe key, option or argument that is wrong: "teacher.model", "--suite". A relative key (".column")
            is added to the key of the next `about` around, "..pooling" stands beside that key; without a key the error
            takes the key of that `about`.
    """

    def __init__(self, problem: str, fix: str = "", key: str | None = None) -> None:
        # Exception.__init__ is not called: it would replace `args`, with which pickle calls a subclass again.
        self.problem = problem
        self.fix = fix
        self.key = key or ""

    def __str__(self) -> str:
        key = self.key.removeprefix(".")
        line = f"[{key}] {self.problem}" if key else self.problem
        return f"{line} {self.fix}" if self.fix else line

    def look_up(self, names: Mapping[str, str]) -> None:
        """Take the name of the argument or option that set the key, in the place of the key; see `set_by`."""
        self.key = looked_up(self.key, names)


class about:  # a class, as contextlib.suppress: it stands around single rows
    """Note on an exception that leaves the block which key it is about; the exception is raised on as it is.

    The innermost note stays: an error that has a key keeps it, a relative key (".column") is added to this one. `name`
    is what the key names, a file or a model, for the sentence about an exception of another library (`user_error`). An
    empty key notes the name alone.
    It stands where a section, an option or an argument is read: in the generator, thread or process that reads, never
    around a `yield`. The note is an attribute, so it survives pickling.
    """

    __slots__ = ("key", "name")

    def __init__(self, key: str, name: str | Path = "") -> None:
        self.key = key
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception):
            return
        noted = noted_key(error)
        if not noted:
            _note(error, self.key)
        elif noted.startswith(".") and self.key:
            _note(error, _joined(self.key, noted))
        if self.name and not hasattr(error, _NAME):
            _set(error, _NAME, str(self.name))


@contextmanager
def set_by(names: Mapping[str, str]) -> Iterator[None]:
    """Note on an exception that leaves the block which argument or option set which key of the recipe.

    It stands where arguments become a recipe, or decorates such a function: `@set_by({"student.size": "size"})`. The
    boundary looks an error's key up: an exact entry, else the longest dotted one that the key is below; so "texts" for
    corpus.sources.0.path by {"corpus.sources.0": "texts"}. Inner notes are looked up first. A command notes its own
    parameters by itself (cli/layout.py): `size` is printed as --size. The recipe's keys of a command's options are
    declared with them (`option(..., key=)`, `names_by_key` in cli/options.py).
    """
    try:
        yield
    except Exception as error:
        notes = (*getattr(error, _SET_BY, ()), dict(names))
        _set(error, _SET_BY, notes)
        raise


def looked_up(key: str, names: Mapping[str, str]) -> str:
    """Return the name of a key: its own, or that of the longest dotted key around it; the key itself without one."""
    section = key
    while section not in names:
        section = section.rpartition(".")[0]
        if "." not in section:  # a word alone is the name of an argument, not of the section of a recipe
            return key
    return names[section]


def _joined(key: str, relative: str) -> str:
    """Add a relative key: ".column" is below the key, "..pooling" beside it; the key itself where it has no section."""
    if not relative.startswith(".."):
        return key + relative
    section, dot, _ = key.rpartition(".")
    return f"{section}.{relative.removeprefix('..')}" if dot else key


def each_about(items: Iterable[Item], key: str, name: str | Path = "") -> Iterator[Item]:
    """The items, one by one; an error of their iterator is noted as by `about`, which stands around no `yield`."""
    iterator = iter(items)
    while True:
        with about(key, name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def noted_key(error: BaseException) -> str:
    """Return the key that an error is about: its own, or that of the innermost `about`; empty where there is none."""
    return error.key if isinstance(error, DistilvecError) else getattr(error, _KEY, "")


def _note(error: Exception, key: str) -> None:
    if isinstance(error, DistilvecError):
        error.key = key
    else:
        _set(error, _KEY, key)


def _set(error: BaseException, attribute: str, value: object) -> None:
    with suppress(AttributeError, TypeError):  # a class of another library with slots
        setattr(error, attribute, value)


def user_error(error: BaseException) -> DistilvecError | None:
    """Return an error as a problem that the user can fix, for the boundary; None for a bug.

    A full disk, too little memory and text that is not Unicode are the user's everywhere. An error of another library
    is the user's inside `about`: the key names what was read. A mistake of our own code is a bug anywhere.
    """
    problem = error if isinstance(error, DistilvecError) else _foreign_problem(error)
    if problem is not None:
        for names in getattr(error, _SET_BY, ()):
            problem.look_up(names)
        problem.problem = hidden(problem.problem)
        problem.fix = hidden(problem.fix)
        if isinstance(error, Exception) and noted_key(error):
            _note(error, problem.key)  # it may be raised again as it is, and be asked for once more
        _set(error, _SET_BY, ())  # those are done
    return problem


def _foreign_problem(error: BaseException) -> DistilvecError | None:
    """Return an error of the system or of another library as a problem that the user can fix; None for a bug."""
    key = noted_key(error)
    name = getattr(error, _NAME, "")
    system_error = system_failure(error, key, Path(name) if name else None)
    if system_error is not None:
        return system_error
    if not key or _is_our_bug(error):
        return None
    return DistilvecError(f"cannot use {name or 'this'}: {type(error).__name__}: {first_line(error)}.", key=key)


def _is_our_bug(error: BaseException) -> bool:
    """Whether a mistake of a program, not of its input, was made in this package: the last call is one of ours."""
    if not isinstance(error, _MISTAKES) or error.__traceback__ is None:
        return False
    *_, last = traceback.walk_tb(error.__traceback__)
    return Path(last[0].f_code.co_filename).is_relative_to(_PACKAGE)


@contextmanager
def plain_errors() -> Iterator[None]:
    """The boundary of the Python API, as a decorator: what the user can fix is raised as a DistilvecError."""
    try:
        yield
    except Exception as error:
        problem = user_error(error)
        if problem is None or problem is error:
            raise
        raise problem from error


class Stopped(DistilvecError):
    """Work that a signal (Ctrl-C, SIGTERM) ended; the text says what was saved. The exit status is 128 + `number`."""

    def __init__(self, problem: str, fix: str = "", key: str | None = None, number: int = signal.SIGINT) -> None:
        super().__init__(problem, fix, key)
        self.number = int(number)


class ProcessLost(DistilvecError):
    """Another process of the same run ended. Exit code 3; the launcher reports the process that failed first."""


class Busy(DistilvecError):
    """Another process holds the lock."""


class Interrupted(BaseException):
    """A signal (Ctrl-C, SIGTERM) outside of the training loop. Not KeyboardInterrupt, which typer catches itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint "; did you mean '...'?" with the known name most like `name`; empty where none is like it."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened and without a full stop; its type where it has none."""
    if type(error).__name__ == "InvalidURL":  # of httpx and aiohttp: it may quote a proxy's password
        return "the address of the server or of the proxy is not valid"
    if certificates := _missing_certificates(error):
        return f"{certificates} (SSL_CERT_FILE) does not exist"
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    text = text.rstrip(".")  # it stands inside a sentence
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"


def system_failure(error: BaseException, key: str = "", path: Path | None = None) -> DistilvecError | None:
    """Return a DistilvecError for an expected failure of the system or a library; None for any other error.

    Expected are errors of the file system, full disks, too little memory and text that is not Unicode. `path` is the
    file for the message, if the error names none.
    """
    if path is None and isinstance(getattr(error, "filename", None), (str, bytes)):
        path = Path(os.fsdecode(error.filename))  # type: ignore[attr-defined]
    if disk_is_full(error):
        place = f" for {path}" if path is not None else ""
        fix = "Free space and run the same command again, or choose another path."
        return DistilvecError(f"no space left on the disk{place}.", fix, key=key or "disk")
    certificates = _missing_certificates(error)
    if path is None and certificates is not None:
        problem = f"the file of certificates {certificates} (SSL_CERT_FILE) does not exist."
        return DistilvecError(problem, "Correct SSL_CERT_FILE, or remove it.", key=key or "SSL_CERT_FILE")
    if isinstance(error, OSError) and error.errno is not None:
        problem = error.strerror or first_line(error)
        return DistilvecError(f"{path if path is not None else 'a file'}: {problem}.", key=key or "path")
    if isinstance(error, MemoryError) or "out of memory" in str(error) or "can't allocate memory" in str(error):
        fix = "Lower batch sizes or the length of texts, or free memory."
        return DistilvecError(f"not enough memory: {first_line(error)}.", fix, key=key or "memory")
    if isinstance(error, UnicodeError):
        place = f"{path}: " if path is not None else ""
        problem = f"{place}text that is not valid Unicode: {first_line(error)}."
        return DistilvecError(problem, "Convert it to UTF-8.", key=key or "text")
    return None


def _missing_certificates(error: BaseException) -> str | None:
    """Return the file of SSL_CERT_FILE where its absence may be what the error is about: Python's ssl names no file."""
    file = os.environ.get("SSL_CERT_FILE")
    if not file or not isinstance(error, FileNotFoundError) or error.filename is not None or Path(file).exists():
        return None
    return file


def disk_is_full(error: BaseException) -> bool:
    """Return whether an error of the system or of a library (safetensors, pyarrow) is about a full disk."""
    return (isinstance(error, OSError) and error.errno in _FULL) or "No space left" in str(error)
