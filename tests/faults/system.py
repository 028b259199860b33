"""Real faults of the system: small and read-only file systems, files without permission, a clock that jumps."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from faults.harness import World

_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CAPABILITY_VERSION = 0x20080522


def small_disk(world: World, name: str, kilobytes: int) -> Path:
    """A folder of the world that is a file system of its own with this little room."""
    folder = world.root / name
    folder.mkdir(parents=True)
    _mount(world, folder, f"size={kilobytes}k")
    return folder


def fill(folder: Path, leave: int = 0) -> None:
    """Write one file until the disk is full, then give back `leave` bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError) as full:
        while file.write(b"x" * 4096):
            pass
    assert full.value.errno == errno.ENOSPC
    size = ballast.stat().st_size
    os.truncate(ballast, max(0, size - leave))


def read_only(world: World, folder: Path) -> Path:
    """Make a folder of the world read-only by mounting it over itself."""
    _call(["mount", "--bind", str(folder), str(folder)])
    world.undo.append(lambda: _call(["umount", "-l", str(folder)]))
    _call(["mount", "-o", "remount,ro,bind", str(folder)])
    return folder


def forbid(world: World, path: Path, mode: int = 0) -> Path:
    """Take away permissions, also from root: this thread's right to override them is dropped until the case ends."""
    before = path.stat().st_mode
    path.chmod(mode)
    world.undo.append(lambda: path.chmod(before))
    if os.geteuid() == 0:
        _override(False)
        world.undo.append(lambda: _override(True))
    return path


def _mount(world: World, folder: Path, options: str) -> None:
    _call(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)])
    world.undo.append(lambda: _call(["umount", "-l", str(folder)]))


def _call(line: list[str]) -> None:
    if shutil.which(line[0]) is None or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(line)}: {done.stderr.strip()}")


def _override(allowed: bool) -> None:
    """Set or clear CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH among the effective capabilities of this thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0, os.strerror(ctypes.get_errno())
    mask = 1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH
    data[0] = data[0] | mask if allowed else data[0] & ~mask
    header[0] = _CAPABILITY_VERSION
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())
