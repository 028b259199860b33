"""Files and folders behind an address (s3://, gs://, hf://, file://), through fsspec; work happens in local copies.

A remote folder has the files of the local one under the same names, and `distilvec-files.json` with the bytes and the
checksum of each. This index is written last; while files that others may have read are replaced it lists both versions,
so that a reader accepts either, and nothing else. Credentials come from the environment (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN), never from an address.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.extras import install_command
from distilvec.core.files import scratch, user_cache, write_json
from distilvec.core.hashing import checksum_once
from distilvec.core.log import log

INDEX = "distilvec-files.json"  # of a remote folder
STATE = ".distilvec-remote.json"  # of a local one: the index that it was equal to, with times of last changes
SECONDS = 60.0  # between two pushes of unfinished work
_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs"}
Version = list[Any]  # bytes, checksum


def check_address(address: str, key: str) -> None:
    """DistilvecError for text that is no address, and for an address with a password or a query."""
    parts = urlsplit(address)
    if not parts.scheme or "://" not in address:
        raise DistilvecError(key, f"found '{address}'; expected an address.", "Give for example s3://bucket/folder.")
    if "@" in parts.netloc or parts.query:
        raise DistilvecError(
            key,
            f"the {parts.scheme}:// address holds a password or a query, which would end up in recipes and logs.",
            "Remove it, and set environment variables instead (docs/cluster.md).",
        )


@dataclass(frozen=True)
class Remote:
    """A file or folder behind an address; `key` is the recipe's, for messages. Errors of storage: DistilvecError."""

    address: str
    key: str

    def __post_init__(self) -> None:
        check_address(self.address, self.key)

    def below(self, name: str) -> Remote:
        """A file or folder inside."""
        return Remote(f"{self.address.rstrip('/')}/{name}", self.key)

    def exists(self) -> bool:
        """Whether a folder has been pushed there."""
        with self._open() as (system, path):
            return _read_index(system, path) is not None

    def folders(self) -> list[str]:
        """Names of the folders directly inside; none if there is nothing at the address."""
        with self._open() as (system, path):
            found = system.ls(path, detail=True) if system.exists(path) else []
            return sorted(one["name"].rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory")

    def download(self, accepts: Callable[[Path], bool]) -> list[Path]:
        """Local copies of the file, or of a folder's files that `accepts` allows, sorted; kept by version."""
        files = []
        with self._open() as (system, path):
            for name in sorted(system.find(path)):
                inside = Path(name.removeprefix(path).strip("/") or Path(name).name)
                if name != path and (not accepts(inside) or any(part.startswith(".") for part in inside.parts)):
                    continue
                version = hashlib.blake2b(f"{self.address}\n{name}\n{system.ukey(name)}".encode(), digest_size=8)
                target = user_cache() / "downloads" / version.hexdigest() / inside.name
                if not target.exists():
                    self._fetch(system, name, target, size=system.info(name)["size"])
                files.append(target)
        if not files:
            raise DistilvecError(self.key, f"{self.address}: no readable file there.", "Check the address.")
        return files

    def pull(self, folder: Path) -> int:
        """Make a local folder equal to the remote one; the number of files there, 0 if nothing had to be done.

        If the remote folder is as this one left it, the local one stays, which may hold more. Errors: DistilvecError
        for files that do not match their checksums, and if both folders have changed.
        """
        with self._open() as (system, path):
            index, state = _read_index(system, path), _read_state(folder)
            if index is None or (state is not None and index.agrees(state)):
                return 0
            here = _measure(folder, state or {})
            if _sizes(here) != _sizes(state) if state is not None else not index.holds(here):
                raise self._conflict(folder)
            for name in sorted(index.files, key=lambda name: (name in here, name)):  # new files first
                if name not in here or here[name][:2] not in index.files[name]:
                    self._fetch(system, f"{path}/{name}", folder / name, index.files[name])
            for name in here.keys() - index.files.keys():
                (folder / name).unlink()
            _write_state(folder, _measure(folder, here))
        log(f"{folder} is now as {self.address}: {len(index.files):,} files")
        return len(index.files)

    def push(self, folder: Path) -> int:
        """Make the remote folder equal to the local one; the number of files sent.

        Errors: DistilvecError if another process has written there since this folder was pulled or pushed.
        """
        with self._open() as (system, path):
            before, state = _read_index(system, path), _read_state(folder)
            if before is not None and (state is None or not before.agrees(state)):
                raise self._conflict(folder)
            now = _measure(folder, state or {})
            files, known = {name: [found[:2]] for name, found in now.items()}, before.files if before else {}
            new = sorted(files.keys() - known.keys())
            changed = sorted(name for name in files.keys() & known.keys() if files[name] != known[name])
            for name in new:
                system.put_file(str(folder / name), f"{path}/{name}")
            if before is not None and (new or changed):
                either = dict(known)
                for name, versions in files.items():
                    both = either.setdefault(name, versions)
                    either[name] = both if versions[0] in both else both + versions
                _write_index(system, path, _Index(either, pending=True))
            for name in changed:
                system.put_file(str(folder / name), f"{path}/{name}")
            if before is None or before.files != files:
                _write_state(folder, now)  # before the index: a push that ends here is still known as this folder's
                _write_index(system, path, _Index(files))
            for name in known.keys() - files.keys():
                system.rm_file(f"{path}/{name}")
        return len(new) + len(changed)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        with self._open() as (system, path):
            if system.exists(path):
                system.rm(path, recursive=True)

    def _conflict(self, folder: Path) -> DistilvecError:
        return DistilvecError(
            self.key,
            f"{self.address} and {folder} have both changed: another machine writes there.",
            f"Let one machine write at a time; to take what is at the address, move {folder} away.",
        )

    def _fetch(
        self, system: Any, name: str, target: Path, versions: list[Version] | None = None, size: int | None = None
    ) -> None:
        """Fetch a file whole; DistilvecError unless it is one of the versions, or has this size."""
        with explained("cache.root", target):
            target.parent.mkdir(parents=True, exist_ok=True)
        new = scratch(target)
        try:
            system.get_file(name, str(new))
            bytes_found = new.stat().st_size
            if bytes_found != size if versions is None else [bytes_found, checksum_once(new)] not in versions:
                expected = "its size" if versions is None else INDEX
                raise DistilvecError(
                    self.key,
                    f"{self.address}: {target.name} does not match {expected}: found {bytes_found:,} bytes. It is "
                    "damaged, or was replaced by hand.",
                    "Put the right file there.",
                )
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path on it; failures become a DistilvecError without any credentials."""
        scheme = urlsplit(self.address).scheme
        try:
            import fsspec

            options = {"auto_mkdir": True} if scheme == "file" else {"use_listings_cache": False}
            system, path = fsspec.url_to_fs(self.address, **options)
            system.invalidate_cache()
            yield system, path.rstrip("/")
        except DistilvecError:
            raise
        except ImportError as error:
            fix = install_command(_EXTRAS[scheme]) if scheme in _EXTRAS else f"the package of fsspec for {scheme}://"
            raise DistilvecError(self.key, f"{scheme}:// needs another package.", f"Install it ({fix}).") from error
        except FileNotFoundError:
            raise DistilvecError(self.key, f"{self.address} does not exist.", "Check the address.") from None
        except Exception as error:  # each file system has its own
            problem = f"{type(error).__name__}: {first_line(error)}"
            raise DistilvecError(
                self.key,
                f"{self.address} cannot be used ({problem}).",
                "Check the address, the network and the credentials in the environment (docs/cluster.md).",
            ) from error


@dataclass
class Pusher:
    """Pushes a folder now and then while work goes on; also a callback of training, called as (step, metrics)."""

    remote: Remote
    folder: Path
    seconds: float = SECONDS
    last: float = field(default_factory=time.monotonic)

    def __call__(self, *_: Any) -> None:
        """Push if it is time. A failure is logged and tried again later: the work goes on."""
        if time.monotonic() - self.last > self.seconds:
            try:
                self.remote.push(self.folder)
            except DistilvecError as error:
                log(f"warning: {error}")
            self.last = time.monotonic()


# -- versions of files -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Index:
    """Files of a remote folder with the versions that each may have; `pending` while files are replaced."""

    files: dict[str, list[Version]]
    pending: bool = False

    def holds(self, state: dict[str, Any]) -> bool:
        """Whether every file of a state is one of the versions here."""
        return all(found[:2] in self.files.get(name, []) for name, found in state.items())

    def agrees(self, state: dict[str, Any]) -> bool:
        """Whether nobody has written since this state, or only a push that did not end."""
        return self.holds(state) and (self.pending or self.files.keys() == state.keys())


def _sizes(state: dict[str, Any]) -> dict[str, Any]:
    return {name: found[:2] for name, found in state.items()}


def _measure(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """[bytes, checksum, time of the last change] of every file; read are those that have changed since the state."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        inside = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in inside.parts)  # scratch files as well
        if hidden or not path.is_file() or path.name == "lock" or path.suffix == ".lock":
            continue
        about, known = path.stat(), state.get(inside.as_posix(), [None] * 3)
        same = [known[0], known[2]] == [about.st_size, about.st_mtime_ns]
        found[inside.as_posix()] = [about.st_size, known[1] if same else checksum_once(path), about.st_mtime_ns]
    return found


def _read_index(system: Any, path: str) -> _Index | None:
    if not system.exists(f"{path}/{INDEX}"):
        return None
    content = json.loads(system.cat_file(f"{path}/{INDEX}"))
    if any(name.startswith("/") or ".." in name.split("/") or "\\" in name for name in content["files"]):
        raise ValueError(f"{INDEX} names files outside of the folder")
    return _Index(content["files"], content["pending"])


def _write_index(system: Any, path: str, index: _Index) -> None:
    content = {"format": 1, "pending": index.pending, "files": dict(sorted(index.files.items()))}
    system.pipe_file(f"{path}/{INDEX}", json.dumps(content).encode())


def _read_state(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found


def _write_state(folder: Path, files: dict[str, Any]) -> None:
    write_json(folder / STATE, {"files": files}, key="cache.root")
