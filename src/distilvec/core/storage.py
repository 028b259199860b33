"""Files and folders behind an address (s3://, gs://, hf://, file://), through fsspec; work happens in local copies.

A remote folder has the files of the local one under the same names, and `distilvec-files.json` with the bytes and the
checksum of each. This index is written last; while files that others may have read are replaced it lists both versions,
so that a reader accepts either, and nothing else. Credentials come from the environment (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN), never from an address.

Why not fsspec.generic.rsync: it compares sizes only, so a journal or checkpoint of the same size would stay old; it
copies in no stated order, so a push that is killed leaves a folder of mixed versions that nothing marks; it notices
neither damage nor a second writer; and it is marked experimental. A cache grows, but its journal is replaced.
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

from distilvec.core.addresses import Address
from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.extras import install_command
from distilvec.core.files import is_aside, is_hidden, refuse_logged_names, scratch, sync, user_cache, write_json
from distilvec.core.hashing import checksum_once
from distilvec.core.log import log

INDEX = "distilvec-files.json"  # of a remote folder
STATE = ".distilvec-remote.json"  # of a local one: the index that it was equal to, with times of last changes
SECONDS = 60.0  # between two pushes of unfinished work
FORMAT = 1  # of the index
KEY = "cache.remote"  # of the recipe: the address of folders that are kept equal
_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs"}


def check_address(address: str) -> None:
    """DistilvecError for text that is not an address, and for an address with a password or a query."""
    try:
        parts = urlsplit(address)
    except ValueError:  # without the text, which may hold a password
        problem = "the address is not valid; expected one such as s3://bucket/folder."
        raise DistilvecError(problem, "Correct it.") from None
    if Address.parse(address).had_secret or "@" in parts.netloc or parts.query:
        raise DistilvecError(
            f"the {parts.scheme}:// address holds a password or a query, which would end up in recipes and logs.",
            "Remove it, and set environment variables instead (docs/cluster.md). An @ in a path is written as %40.",
        )
    if not parts.scheme or "://" not in address:
        raise DistilvecError(f"found '{address}'; expected an address such as s3://bucket/folder.")


@dataclass(frozen=True)
class Remote:
    """A file or folder behind an address. Folders are kept for `cache.remote`; whoever downloads notes the key."""

    address: str

    def __post_init__(self) -> None:
        check_address(self.address)

    def below(self, name: str) -> Remote:
        """A file or folder inside."""
        return Remote(f"{self.address.rstrip('/')}/{name}")

    def folders(self) -> list[str]:
        """Names of the folders directly inside; none if there is nothing at the address."""
        with about(KEY), self._open() as (system, path):
            if not system.exists(path):
                return []
            entries = system.ls(path, detail=True)
            folders = [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]
            return sorted(folder.rpartition("/")[2] for folder in folders)

    def download(self, accepts: Callable[[Path], bool]) -> list[Path]:
        """Local copies of the file, or of a folder's files that `accepts` allows, sorted; kept by version.

        A file whose server tells no version is fetched each time.
        """
        files = []
        with self._open() as (system, path):
            insides = {name: Path(name.removeprefix(path).strip("/") or Path(name).name) for name in system.find(path)}
            refuse_logged_names(insides.values(), self.address)
            for name, inside in sorted(insides.items()):
                is_the_address = name == path  # a single file, which is read whatever its name is
                if not is_the_address and (is_aside(inside) or not accepts(inside)):
                    continue
                info = system.info(name)
                version = _web_version(info) if self._is_on_the_web else str(system.ukey(name))
                place = hashlib.blake2b(f"{self.address}\n{name}\n{version}".encode(), digest_size=8).hexdigest()
                target = user_cache() / "downloads" / place / inside.name
                size = info["size"]
                is_whole = target.is_file() and size in (None, target.stat().st_size)
                if version is None or not is_whole:
                    self._fetch(system, name, target, size=size)
                files.append(target)
        if not files:
            raise DistilvecError(f"{self.address}: no readable file there.", "Check the address.")
        return files

    @property
    def _is_on_the_web(self) -> bool:
        return urlsplit(self.address).scheme in ("http", "https")

    def pull(self, folder: Path) -> int:
        """Make a local folder equal to the remote one; return the number of files there, 0 if nothing was to do.

        If the remote folder is as this one left it, the local one stays, which may hold more. Errors: DistilvecError
        for files that do not match their checksums, and if both folders have changed.
        """
        with about(KEY), self._open() as (system, path):
            index = _read_index(system, path)
            state = _read_state(folder)
            if index is None or (state is not None and index.agrees(state)):
                return 0
            files_here = _measure(folder, state or {})
            if state is None:
                changed_here = not index.holds(files_here)
            else:
                changed_here = _versions(files_here) != _versions(state)
            if changed_here:
                raise self._conflict(folder)

            # New files first: a pull that is killed then has only added files to the old ones.
            for name in sorted(index.files, key=lambda name: (name in files_here, name)):
                if name not in files_here or files_here[name].version not in index.files[name]:
                    self._fetch(system, f"{path}/{name}", folder / name, index.files[name])
            for name in files_here.keys() - index.files.keys():
                (folder / name).unlink()
            _write_state(folder, _measure(folder, files_here))
        log(f"{folder} is now as {self.address}: {len(index.files):,} files")
        return len(index.files)

    def push(self, folder: Path) -> int:
        """Make the remote folder equal to the local one; return the number of files sent.

        The order of writes is what keeps the remote folder readable at any moment, and must not change: new files (no
        index names them yet), an index that allows the old and the new version of each changed file, the changed
        files, the final index, and only then the removal of files.

        Errors: DistilvecError if another process has written there since this folder was pulled or pushed.
        """
        with about(KEY), self._open() as (system, path):
            before = _read_index(system, path)
            state = _read_state(folder)
            if before is not None and (state is None or not before.agrees(state)):
                raise self._conflict(folder)
            files_here = _measure(folder, state or {})
            files = {name: [file.version] for name, file in files_here.items()}
            remote_files = {} if before is None else before.files
            new = sorted(files.keys() - remote_files.keys())
            changed = sorted(name for name in files.keys() & remote_files.keys() if files[name] != remote_files[name])

            for name in new:
                system.put_file(str(folder / name), f"{path}/{name}")
            if before is not None and (new or changed):
                either = dict(remote_files)
                for name, (version,) in files.items():
                    earlier = remote_files.get(name, [])
                    either[name] = earlier if version in earlier else [*earlier, version]
                _write_index(system, path, _Index(either, pending=True))
            for name in changed:
                system.put_file(str(folder / name), f"{path}/{name}")
            if before is None or before.files != files:
                _write_state(folder, files_here)  # before the index: a push that ends here is still known as ours
                _write_index(system, path, _Index(files))
            for name in remote_files.keys() - files.keys():
                system.rm_file(f"{path}/{name}")
        return len(new) + len(changed)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        with about(KEY), self._open() as (system, path):
            if system.exists(path):
                system.rm(path, recursive=True)

    def _conflict(self, folder: Path) -> DistilvecError:
        return DistilvecError(
            f"{self.address} and {folder} have both changed: another machine writes there.",
            f"Let one machine write at a time; to take what is at the address, move {folder} away.",
        )

    def _fetch(
        self, system: Any, name: str, target: Path, versions: list[_Version] | None = None, size: int | None = None
    ) -> None:
        """Fetch a file whole; DistilvecError unless it is one of `versions`, or without them has this size.

        A web server may tell no size (None): then none is expected.
        """
        with about("cache.root", target):
            target.parent.mkdir(parents=True, exist_ok=True)
        new = scratch(target)
        try:
            try:
                system.get_file(name, str(new))
            except FileNotFoundError:
                raise DistilvecError(
                    f"{self.address}: {target.name} is listed there, and cannot be read.",
                    "It may not be visible yet: run the command again in some minutes.",
                ) from None
            new_size = new.stat().st_size
            if versions is None:
                expected, matches = "its size", size in (None, new_size)
            else:
                expected, matches = INDEX, _Version(new_size, checksum_once(new)) in versions
            if not matches:
                raise DistilvecError(
                    f"{self.address}: {target.name} does not match {expected}: found {new_size:,} bytes. It is "
                    "damaged, or was replaced by hand.",
                    "Upload the right file.",
                )
            sync(new)  # a name without its content must not outlast a power cut
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path on it; failures inside become a DistilvecError without any credentials."""
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
            raise DistilvecError(f"{scheme}:// needs another package.", f"Install it ({fix}).") from error
        except FileNotFoundError:
            raise DistilvecError(f"{self.address} does not exist.", "Check the address.") from None
        except Exception as error:  # each file system raises its own types
            problem = f"{type(error).__name__}: {first_line(error)}"
            raise DistilvecError(
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
class _Version:
    """Content of a file."""

    size: int  # bytes
    checksum: str


@dataclass(frozen=True)
class _LocalFile:
    """A file of a local folder. While its size and time stay, its checksum is not computed again."""

    version: _Version
    changed: int  # time of the last change, nanoseconds


@dataclass(frozen=True)
class _Index:
    """Files of a remote folder with the versions that each may have; `pending` while files are replaced."""

    files: dict[str, list[_Version]]
    pending: bool = False

    def holds(self, files: dict[str, _LocalFile]) -> bool:
        """Whether every one of these files is one of the versions here."""
        return all(file.version in self.files.get(name, []) for name, file in files.items())

    def agrees(self, state: dict[str, _LocalFile]) -> bool:
        """Whether nobody has written since this state, or only a push that was killed."""
        return self.holds(state) and (self.pending or self.files.keys() == state.keys())


def _web_version(info: dict[str, Any]) -> str | None:
    """What tells versions of a web server's file apart; None if the server does not say. fsspec's ukey is the URL."""
    marks = [info.get(name) for name in ("ETag", "Last-Modified", "Content-MD5", "Digest")]
    return repr([*marks, info["size"]]) if any(marks) else None


def _versions(files: dict[str, _LocalFile]) -> dict[str, _Version]:
    return {name: file.version for name, file in files.items()}


def _measure(folder: Path, state: dict[str, _LocalFile]) -> dict[str, _LocalFile]:
    """The files of a folder by name. Only files that have changed since `state` are read."""
    files: dict[str, _LocalFile] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        is_lock = path.name == "lock" or path.suffix == ".lock"
        if is_hidden(inside) or is_lock or not path.is_file():  # hidden are scratch files as well
            continue
        name = inside.as_posix()
        stat = path.stat()
        size, changed = stat.st_size, max(stat.st_mtime_ns, stat.st_ctime_ns)  # a copy may keep the first of them
        before = state.get(name)
        if before is not None and (before.version.size, before.changed) == (size, changed):
            files[name] = before
        else:
            files[name] = _LocalFile(_Version(size, checksum_once(path)), changed)
    return files


def _read_index(system: Any, path: str) -> _Index | None:
    if not system.exists(f"{path}/{INDEX}"):
        return None
    content = json.loads(system.cat_file(f"{path}/{INDEX}"))
    if content["format"] != FORMAT:
        raise ValueError(f"{INDEX} has format {content['format']}; this version of distilvec reads {FORMAT}")
    if any(name.startswith("/") or ".." in name.split("/") or "\\" in name for name in content["files"]):
        raise ValueError(f"{INDEX} names files outside of the folder")
    files = {name: [_Version(*version) for version in versions] for name, versions in content["files"].items()}
    return _Index(files, content["pending"])


def _write_index(system: Any, path: str, index: _Index) -> None:
    files = {name: [[version.size, version.checksum] for version in index.files[name]] for name in sorted(index.files)}
    content = {"format": FORMAT, "pending": index.pending, "files": files}
    system.pipe_file(f"{path}/{INDEX}", json.dumps(content).encode())


def _read_state(folder: Path) -> dict[str, _LocalFile] | None:
    """The files that this folder and the remote one had in common; None if there is no readable record of it."""
    try:
        content = json.loads((folder / STATE).read_text(encoding="utf-8"))["files"]
        return {
            name: _LocalFile(_Version(size, checksum), changed) for name, (size, checksum, changed) in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write_state(folder: Path, files: dict[str, _LocalFile]) -> None:
    content = {name: [file.version.size, file.version.checksum, file.changed] for name, file in files.items()}
    write_json(folder / STATE, {"files": content})
