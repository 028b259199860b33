"""Checksums of files: a copy, a checkout or a restored backup of a file counts as the same file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

_BLOCK = 1 << 22
# Checksums by device, inode, size, and the times of the last writing and of the last change. Programs can set the first
# of them, as copies do that keep a file's times; the second is the system's own
_KNOWN: dict[tuple[int, ...], str] = {}


def checksum(path: Path) -> str:
    """BLAKE2b of a file's content, streamed: 32 hexadecimal digits."""
    digest, block = hashlib.blake2b(digest_size=16), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def checksum_once(path: Path) -> str:
    """The checksum of a file. Each process reads a file once until it changes."""
    state = _state(path)
    if state not in _KNOWN:
        _KNOWN[state] = checksum(path)
    return _KNOWN[state]


def has_checksum(path: Path, checksum: str | None) -> bool:
    """Whether a file is there with this checksum; see `checksum_once`."""
    return path.is_file() and checksum_once(path) == checksum


def remember(path: Path, checksum: str) -> None:
    """Note the checksum of a file that has just got this name from its writer, which changes the file's time."""
    _KNOWN[_state(path)] = checksum


def _state(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def hash_files(paths: Iterable[Path], folder: Path | None = None) -> str:
    """A hash of files' contents and names (below `folder`, if one is given); see `checksum_once`."""
    parts = []
    for path in paths:
        parts.append((str(path.relative_to(folder)) if folder else path.name, checksum_once(path)))
    return combine(parts)


def combine(parts: Iterable[tuple[str, str]]) -> str:
    """One hash of names and their hashes."""
    return hashlib.blake2b(json.dumps(list(parts)).encode(), digest_size=16).hexdigest()
