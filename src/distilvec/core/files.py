"""Files that appear whole, locks, sealed JSON, and output paths that are tried before the work begins.

Unfinished files have a scratch name, `.NAME.distilvec-MARK-PID`, where MARK stands for this machine and this process.
No other files are ever cleared away, and these only when the process that made them has ended.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

from distilvec.core.errors import Busy, DistilvecError, about, disk_is_full, noted_key, system_failure
from distilvec.core.log import log, log_once

SEAL = "seal"  # the key of a JSON file that holds the checksum of all others
_SCRATCH = re.compile(r"^\..+\.distilvec-(?P<host>[0-9a-f]{8})-(?P<mark>[0-9a-f]{8})-(?P<process>[0-9]+)$")
_marks: dict[int, str] = {}  # by process: a forked one needs a mark of its own
# Tables whose own log says which of their files hold rows: what lies below such a table's folder, and how to export it
_PARQUET = "import pyarrow.parquet as pq; pq.write_table"
_LOGGED_TABLES = {
    "_delta_log/*": (
        "a Delta table",
        f"from deltalake import DeltaTable; {_PARQUET}(DeltaTable(FOLDER).to_pyarrow_table(), 'rows.parquet')",
    ),
    "metadata/*.metadata.json": (
        "an Iceberg table",
        "from pyiceberg.table import StaticTable; "
        f"{_PARQUET}(StaticTable.from_metadata(FOLDER).scan().to_arrow(), 'rows.parquet')",
    ),
    ".hoodie/*": ("a Hudi table", "spark.read.format('hudi').load(FOLDER).write.parquet('rows')"),
    "_versions/*.manifest": (
        "a Lance dataset",
        f"import lance; {_PARQUET}(lance.dataset(FOLDER).to_table(), 'rows.parquet')",
    ),
    "partitions/*/data/*.parquet": ("a collection of Milvus Lite", "name milvus:///FOLDER.db/COLLECTION instead"),
    "ducklake-*.parquet": (
        "a DuckLake table",
        "import duckdb; duckdb.sql(\"ATTACH 'ducklake:CATALOG' AS lake; COPY lake.TABLE TO 'rows.parquet'\")",
    ),
}
_WAIT = 0.2  # seconds between two tries to get a lock
_BRIEF_TRIES, _BRIEF_WAIT = 20, 0.01  # the first tries: locks for one small file are free again by then


def user_cache() -> Path:
    """The folder that runs share by default: $DISTILVEC_CACHE, else ~/.cache/distilvec.

    Errors: DistilvecError for a user without a home folder, as in containers with a user id of their own.
    """
    try:
        folder = os.environ.get("DISTILVEC_CACHE")
        return Path(folder).expanduser() if folder else Path.home() / ".cache" / "distilvec"
    except RuntimeError:
        problem = "this user has no home folder (HOME is not set)."
        raise DistilvecError(problem, "Set DISTILVEC_CACHE to a folder for stored work.", key="cache.root") from None


def absolute_path(path: Path) -> Path:
    """Return an absolute path. Links stay: in the caches of the hub and of DVC, a link has the ending, and its target
    has a hash for a name.

    Links are followed only before `..`, as the system does: the folder above a link is another one than that above its
    target.
    """
    path = path.absolute()
    if ".." not in path.parts:
        return path
    last = len(path.parts) - path.parts[::-1].index("..")
    return Path(*path.parts[:last]).resolve().joinpath(*path.parts[last:])


def files_below(folder: Path, accept: Callable[[Path], bool] = Path.is_file) -> list[Path]:
    """All files at any depth, sorted; with `accept` other entries as well.

    Links to folders are followed, but not one into a folder that it lies in.
    """
    files = []
    pending = [(folder, frozenset({folder.resolve()}))]
    while pending:
        place, above = pending.pop()
        for path in place.iterdir() if place.is_dir() else ():
            if accept(path):
                files.append(path)
            elif path.is_dir() and path.resolve() not in above:
                pending.append((path, above | {path.resolve()}))
    return sorted(files)


def existing_paths(names: Iterable[str | Path]) -> set[Path]:
    """Return the files and folders that exist under these names, resolved; other names, such as ids, are left out."""
    paths = set()
    for name in names:
        with suppress(OSError, ValueError):  # a name that no file can have
            path = Path(name)
            if path.exists():
                paths.add(path.resolve())
    return paths


def is_hidden(inside: Path) -> bool:
    """Whether a path, relative to the folder that is read, is or passes something hidden, as macOS's ._a.parquet."""
    return any(part.startswith(".") for part in inside.parts)


def is_aside(inside: Path) -> bool:
    """Whether a path, relative to the folder of a table, holds none of its rows: hidden, or as Spark's _temporary/.

    A folder with "=" in its name is a partition.
    """
    return is_hidden(inside) or any(part.startswith("_") and "=" not in part for part in inside.parts)


def table_files(path: Path, accept: Callable[[Path], bool]) -> list[Path]:
    """The files of the table at `path`: a file itself, or those of a folder that `accept` takes, at any depth, sorted.

    Files that lie aside are passed over. Errors: DistilvecError for a table whose own log says which files hold rows.
    """
    refuse_logged_table(path)
    if not path.is_dir():
        return [path]  # whatever its name is
    files = files_below(path, accept=lambda entry: not entry.is_dir())
    names = [file.relative_to(path) for file in files]
    refuse_logged_names(names, str(path))
    readable = [name for name in names if accept(path / name) and not is_hidden(name)]
    aside = [name for name in readable if is_aside(name)]
    if aside:  # they may be somebody's own
        log_once(f"{path}: {len(aside):,} files whose name or folder begins with _ are passed over: {aside[0]}, ...")
    return [path / name for name in readable if not is_aside(name)]


def is_parquet(path: Path) -> bool:
    """Whether a file's name ends as those of Parquet files."""
    return path.suffix.lower() == ".parquet"


def refuse_logged_table(path: Path) -> None:
    """DistilvecError for a file or folder inside of a table with a log: rows in it may be deleted or overwritten."""
    for folder in path.absolute().parents:
        for pattern in _LOGGED_TABLES:
            log_file = next(folder.glob(pattern), None) if "/" in pattern else None
            if log_file is not None:
                refuse_logged_names([log_file.relative_to(folder)], str(folder))


def refuse_logged_names(names: Iterable[Path], place: str) -> None:
    """DistilvecError where files of these names, relative to the folder or address `place`, are a table with a log."""
    for name in names:
        for pattern, (kind, export) in _LOGGED_TABLES.items():
            if name.match(pattern):
                folder = f"{place.rstrip('/')}/{name.parents[pattern.count('/')].as_posix()}".removesuffix("/.")
                raise DistilvecError(
                    f"{folder} is {kind}: its files also hold deleted and overwritten rows, and only its log "
                    "tells which.",
                    f"Export its rows and name that file: {export.replace('FOLDER', repr(folder))}.",
                )


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder; one that is removed meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                total += path.lstat().st_size
    return total


@cache
def _host() -> str:
    """8 hexadecimal digits of this machine or container: a process's number says nothing outside of it."""
    name = socket.gethostname()
    with suppress(OSError):  # Linux alone: containers may share a host's name, and each counts its processes from 1
        name += f" {Path('/proc/self/ns/pid').stat().st_ino}"
    return hashlib.blake2b(name.encode(), digest_size=4).hexdigest()


def scratch(path: Path) -> Path:
    """The name to write `path` under until it is whole: a hidden sibling that no other process writes to."""
    process = os.getpid()
    mark = _marks.setdefault(process, secrets.token_hex(4))
    return path.with_name(f".{path.name}.distilvec-{_host()}-{mark}-{process}")


def is_scratch(path: Path) -> bool:
    """Return whether a file or folder has a scratch name."""
    return _SCRATCH.match(path.name) is not None


def remove_scratch(folder: Path) -> None:
    """Remove scratch files directly below `folder` that this process or an ended one of this machine left."""
    import psutil

    if not folder.is_dir():
        return
    for path in folder.iterdir():
        match = _SCRATCH.match(path.name)
        if match is None or match["host"] != _host():
            continue
        process = int(match["process"])
        if process == os.getpid() or not psutil.pid_exists(process):
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with everything in it; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a whole file at once: a kill or a full disk leaves the old file or the new one."""
    new = scratch(path)
    with about("", path):  # not the scratch name, which the system's error has
        try:
            with new.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or that of all files of a folder, is on the disk."""
    for file in files_below(path) if path.is_dir() else [path]:
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the folder's names are on the disk (no such thing on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def disk_space_needed(path: Path, needed: int, kept: str) -> Iterator[None]:
    """Tell for a full disk how many bytes are needed and how many are free, and then `kept`."""
    try:
        yield
    except Exception as error:
        problem = system_failure(error, path=path) if disk_is_full(error) else None
        if problem is None:
            raise
        free = shutil.disk_usage(next(parent for parent in path.absolute().parents if parent.exists())).free
        room = f"About {needed / 1e6:,.1f} MB were needed, {free / 1e6:,.1f} MB were free at the end."
        raise DistilvecError(problem.problem, f"{problem.fix} {room} {kept}", key=noted_key(error)) from error


# -- JSON --------------------------------------------------------------------------------------------------------------


def write_json(path: Path, content: Any, sealed: bool = False) -> None:
    """Write JSON at once. `sealed` adds the checksum of a mapping's content, by which `read_json` notices changes."""
    if sealed:
        plain = json.loads(json.dumps({name: value for name, value in content.items() if name != SEAL}, default=str))
        content = {**plain, SEAL: seal(plain)}
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path, fix: str, sealed: bool = True) -> dict[str, Any]:
    """The mapping in a JSON file of ours. `fix` ends the message about damage; the file's name is its key.

    `sealed`: the file was written with a seal. Errors: DistilvecError for a file that is missing, damaged, no mapping,
    or changed since it was sealed.
    """
    key = path.name
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DistilvecError(f"{path} cannot be read: {error.strerror}.", fix, key=key) from error
    except (ValueError, RecursionError) as error:
        raise DistilvecError(f"{path} is damaged: {error}.", fix, key=key) from None
    if not isinstance(content, dict):
        raise DistilvecError(f"{path} holds a JSON {type(content).__name__}; expected a mapping.", fix, key=key)
    if sealed and not is_sealed(content):
        raise DistilvecError(f"{path} was changed after distilvec wrote it.", fix, key=key)
    return content


def seal(content: dict[str, Any]) -> str:
    """32 hexadecimal digits of a mapping's content as JSON."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_sealed(content: dict[str, Any]) -> bool:
    """Return whether a mapping has a seal, and is as it was sealed."""
    return content.get(SEAL) == seal({key: value for key, value in content.items() if key != SEAL})


# -- locks -------------------------------------------------------------------------------------------------------------


def acquire_lock(path: Path, what: str, wait: bool) -> AbstractContextManager[object]:
    """Lock the file `path`, and return the lock: `with lock` holds it. The system frees it when this process ends.

    The file itself stays. If another process holds the lock: with `wait`, wait, and log that after a moment, else Busy
    with that process's id. `what` names the files that are written, for the message.
    """
    if os.name != "posix":
        return nullcontext()
    import fcntl

    file = path.open("ab+", buffering=0)  # nothing is left to write when it is closed
    try:
        for attempt in itertools.count():
            try:
                with about("", path):  # a drive may keep no locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                file.seek(0)
                holder = f"process {file.read().decode(errors='replace').strip() or 'unknown'}"
            if not wait:
                raise Busy(f"{holder} is writing {what}.", "Wait for its end, then run the command again.")
            if attempt == _BRIEF_TRIES:
                log(f"waiting for {holder}, which is writing {what}")
            time.sleep(_BRIEF_WAIT if attempt < _BRIEF_TRIES else _WAIT)
        with suppress(OSError):  # a full disk has no room for the number; the lock holds all the same
            file.truncate(0)
            file.write(str(os.getpid()).encode())
    except BaseException:
        file.close()
        raise
    return file


def is_locked(path: Path) -> bool:
    """Return whether another process holds the lock file `path` at this moment; the file is not changed."""
    if os.name != "posix" or not path.exists():
        return False
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a drive without locks: no process can hold one
            return False
    return False


# -- output paths ------------------------------------------------------------------------------------------------------


def check_output_file(path: Path) -> None:
    """DistilvecError or OSError if `path` could not be written at the end of the work. Nothing is changed.

    Folders that lead to it may be missing.
    """
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "not a file"
        raise DistilvecError(f"{path} is {what}.", "Give a file.")
    _try_to_write(path, _existing(path.absolute().parent))
    if path.exists():
        path.open("ab").close()


def check_output_folder(path: Path) -> None:
    """DistilvecError or OSError unless `path` is a folder, or could be made, and can be written to.

    Nothing is changed.
    """
    _try_to_write(path, _existing(path.absolute()))


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists; a link to nothing counts."""
    return next(parent for parent in (folder, *folder.parents) if parent.exists() or parent.is_symlink())


def _try_to_write(path: Path, folder: Path) -> None:
    """DistilvecError or OSError unless `folder` is one in which files can be made."""
    trial = scratch(folder / "trial")
    try:
        if path.is_symlink():
            path.stat()
        with about("", path):
            trial.touch()
    except FileNotFoundError as error:  # below a link to nothing, or in a folder such as /proc
        raise DistilvecError(f"{path} cannot be created.", "Choose another path.") from error
    finally:
        with suppress(OSError):
            trial.unlink(missing_ok=True)
