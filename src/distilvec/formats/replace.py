"""Replacement of a saved model's folder as a whole, without loss of files that others put into it.

`distillation.json` lists every other file of the save under `files`: relative name to checksum. A new save carries over
all further files of the folder (an ONNX file, a user's notes), and listed files that were changed by hand.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.core.files import check_output_folder, is_scratch, remove, remove_scratch, sync_folder
from distilvec.core.hashing import checksum_once
from distilvec.core.log import log

RECORD = "distillation.json"
FILES = "files"  # the record's key
CHANGED = ".yours"  # suffix of a carried-over file if the new model has a file of the same name


def is_ours(folder: Path) -> bool:
    """Return whether the folder holds a model that distilvec wrote."""
    return (folder / "modules.json").is_file() and read_record(folder) is not None


def check_replaceable(folder: Path, key: str) -> None:
    """Raise DistilvecError if no model can be saved as `folder`: no folder, not writable, or content of others."""
    check_output_folder(folder, key)
    if folder.is_dir() and any(folder.iterdir()) and not is_ours(folder):
        raise DistilvecError(
            key, f"{folder} exists and is no model that distilvec wrote.", "Choose a new or empty folder."
        )


def read_record(folder: Path) -> dict[str, Any] | None:
    """Read the folder's distillation.json; None without a mapping there."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of every file but distillation.json by relative name."""
    return {name: checksum_once(folder / name) for name in _names(folder) if name != RECORD}


def is_unchanged(folder: Path, record: dict[str, Any]) -> bool:
    """Return whether a save with this record would change nothing: equal record, and no listed file is missing."""
    return read_record(folder) == record and all((folder / name).is_file() for name in record[FILES])


def carry_over(old: Path, new: Path) -> None:
    """Link the files of others in the folder `old`, and files changed there by hand, into `new`."""
    written = (read_record(old) or {}).get(FILES) or {}
    stale = []
    for name in _names(old):
        path, target = old / name, new / name
        is_written = name in written
        if name == RECORD or (is_written and not _is_edited(path, target, written[name])):
            continue
        numbered = (new / f"{name}{CHANGED}{number if number > 1 else ''}" for number in count(1))
        target = next(free for free in chain([target], numbered) if not (free.is_symlink() or free.exists()))
        if is_written:
            _log_once(f"{path} was changed by hand; the file is kept as {target.name}")
        elif path.suffix == ".onnx":
            stale.append(name)
        link(path, target)
    if stale and not _same_model(written, new):
        _log_once(f"kept, of the earlier model: {', '.join(stale)} in {old}; `distilvec export` makes files again")


def _same_model(written: Mapping[str, str], new: Path) -> bool:
    """Return whether `new` has the weights and the tokenizer that the record of the earlier model lists."""
    names = [name for name in written if name.endswith((".safetensors", "tokenizer.json"))]
    return bool(names) and all((new / name).is_file() and checksum_once(new / name) == written[name] for name in names)


def replace_folder(new: Path, folder: Path) -> None:
    """Rename `new` to `folder` and remove the earlier folder at the end. See `recover_student`."""
    old = _earlier(folder)
    replaced = folder.exists()
    if replaced:
        folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        if replaced and not folder.exists():
            old.rename(folder)
        raise
    sync_folder(folder.parent)
    if replaced:
        remove(old)


def recover_student(folder: Path, in_run: bool = False) -> None:
    """Restore the earlier model if a save was killed between its two renames, and remove half-written files.

    A run's own folder (`in_run`) may also hold a language model, which has no record.
    """
    folder, old = real(folder), _earlier(real(folder))
    remove_scratch(folder.parent)
    language_model = in_run and (old / "config.json").is_file()
    if not (language_model or is_ours(old) or (old.is_dir() and not any(old.iterdir()))):
        return
    if folder.exists():
        remove(old)
    else:
        old.rename(folder)


def real(folder: Path) -> Path:
    """Return the folder that a link leads to: saves keep the link."""
    return Path(os.path.realpath(folder))


def _earlier(folder: Path) -> Path:
    """Return the name of the earlier model during a replacement."""
    return folder.with_name(f".{folder.name}.old")


_log_once = cache(log)


def _names(folder: Path) -> list[str]:
    """Return relative names of all files and links in a folder but half-written ones."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found if not is_scratch(path))


def _is_edited(path: Path, new: Path, written: str) -> bool:
    """Return whether a file has another content than distilvec wrote, and than it writes now."""
    return path.is_file() and checksum_once(path) not in (written, checksum_once(new) if new.is_file() else written)


def link(path: Path, target: Path) -> None:
    """Make a hard link, or a copy on systems without hard links; links stay links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, target, follow_symlinks=False)
