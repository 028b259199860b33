"""What files hold, as a few digits: a copy, a checkout or a restored backup of a file counts as the same file."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from distilvec.errors import DistilvecError

_BLOCK = 1 << 22


def checksum(path: Path) -> str:
    """BLAKE2b of a file's content, streamed: 32 hexadecimal digits."""
    digest, block = hashlib.blake2b(digest_size=16), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def hash_files(paths: Iterable[Path], folder: Path | None = None) -> str:
    """A hash of files' contents and names (below `folder`, if one is given). A file that has not changed is read once a process.

    Errors: DistilvecError for a file that cannot be read.
    """
    return combine((str(path.relative_to(folder)) if folder else path.name, _checksum_once(path)) for path in paths)


def combine(parts: Iterable[tuple[str, str]]) -> str:
    """One hash of names and their hashes."""
    return hashlib.blake2b(json.dumps(list(parts)).encode(), digest_size=16).hexdigest()


def _checksum_once(path: Path) -> str:
    try:
        about = path.stat()
        return _remembered(path, about.st_size, about.st_mtime_ns)
    except OSError as error:
        raise DistilvecError(f"cannot read {path}: {error.strerror}.") from error


@functools.lru_cache(maxsize=1024)
def _remembered(path: Path, size: int, time: int) -> str:
    return checksum(path)
