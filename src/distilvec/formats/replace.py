"""Replacement of a saved model's files, without loss of files that others put into its folder.

`distillation.json` lists every other file of the save under `files`: relative name to checksum. A new save replaces
these one by one. All further files of the folder (an ONNX file, a user's notes) are left alone, and a listed file that
was changed by hand is kept under another name.

The order of a save, which a kill may end at any moment:

1. The new model is written as a whole under a scratch name. Killed here, the old model is untouched, and the next save
   removes the scratch folder.
2. The scratch folder gets the name `.NAME.new`: now the new model is the one that counts. Killed from here on,
   `recover_student` goes on with the move.
3. modules.json is taken out of the old folder, so that nobody loads a mixture of two models; the other files are moved,
   files of the old model alone are removed, and modules.json is moved.
4. The record is moved last. Until then the old one tells which files were ours.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.core.files import check_output_folder, is_scratch, remove, remove_scratch, sync_folder
from distilvec.core.hashing import checksum_once, has_checksum
from distilvec.core.log import log

RECORD = "distillation.json"
FILES = "files"  # the record's key
MODULES = "modules.json"  # what readers of a model begin with
CHANGED = ".yours"  # suffix of a file that was changed by hand, where the new model has a file of the same name
EXPORTED = (  # ends of exported files
    ".onnx", ".onnx_data", ".onnx.data", "openvino_model.xml", "openvino_model.bin",
    "openvino_model_qint8_quantized.xml", "openvino_model_qint8_quantized.bin",
)  # fmt: skip
_CONTENT = (".safetensors", "tokenizer.json")  # ends of the files that an exported file was made of


def is_ours(folder: Path) -> bool:
    """Return whether the folder holds a model that distilvec wrote."""
    return (folder / MODULES).is_file() and read_record(folder) is not None


def check_replaceable(folder: Path) -> None:
    """Raise DistilvecError if no model can be saved as `folder`: no folder, not writable, or content of others."""
    check_output_folder(folder)
    if folder.is_dir() and any(folder.iterdir()) and not is_ours(folder):
        raise DistilvecError(
            f"{folder} exists and holds no model that distilvec wrote.", "Choose a new or empty folder."
        )


def read_record(folder: Path) -> dict[str, Any] | None:
    """Read the folder's distillation.json; None without a mapping there."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of every file but distillation.json by relative name."""
    return {name: checksum_once(folder / name) for name in _names(folder) if name != RECORD}


def damaged_files(folder: Path) -> list[str]:
    """Return the files of a saved model that are missing, and those of its content that are not as they were saved."""
    names = []
    for name, checksum in ((read_record(folder) or {}).get(FILES) or {}).items():
        path = folder / name
        if not path.is_file() or (name.endswith(_CONTENT) and checksum_once(path) != checksum):
            names.append(name)
    return names


def is_unchanged(folder: Path, record: dict[str, Any]) -> bool:
    """Return whether a save with this record would change nothing: equal record, and no listed file is missing."""
    return read_record(folder) == record and all((folder / name).is_file() for name in record[FILES])


def replace_folder(new: Path, folder: Path) -> None:
    """Move the files of `new`, a complete model on the disk, into `folder`; see the order above. Removes `new`."""
    staged = _staged(folder)
    new.rename(staged)
    sync_folder(folder.parent)
    _move_into(folder, staged)


def recover_student(folder: Path, in_run: bool = False) -> None:
    """Finish a save that was killed after its decision, and remove half-written files.

    A run's own folder (`in_run`) may also hold a language model, which has no record.
    """
    folder = real(folder)
    remove_scratch(folder.parent)
    staged = _staged(folder)
    if not staged.is_dir():
        return
    is_whole = read_record(staged) is not None or (in_run and (staged / "config.json").is_file())
    if is_whole:
        _move_into(folder, staged)
    elif not _names(staged):  # everything is moved
        remove(staged)


def real(folder: Path) -> Path:
    """Return the folder that a link leads to: saves keep the link."""
    return Path(os.path.realpath(folder))


def _staged(folder: Path) -> Path:
    """Return the name of a new model, complete, until all its files are in `folder`."""
    return folder.with_name(f".{folder.name}.new")


def _move_into(folder: Path, staged: Path) -> None:
    """Move every file of `staged` into `folder`, the record last, and remove `staged`.

    After a kill at any line a second call finishes the first one.
    """
    if not folder.exists():
        staged.rename(folder)
        sync_folder(folder.parent)
        return
    old_files = (read_record(folder) or {}).get(FILES)
    new_files = (read_record(staged) or {}).get(FILES)
    if old_files and new_files:
        _name_outdated_exports(folder, old_files, new_files)
        _keep_changed_files(folder, staged, old_files)

    if (staged / MODULES).exists():  # not in a second call that finds the new one in its place
        (folder / MODULES).unlink(missing_ok=True)
    for name in _names(staged):
        if name not in (MODULES, RECORD):
            _move(staged / name, folder / name)
    if old_files and new_files:
        for name in old_files.keys() - new_files.keys():
            if has_checksum(folder / name, old_files[name]):
                (folder / name).unlink()
    if (staged / MODULES).exists():
        _move(staged / MODULES, folder / MODULES)
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            sync_folder(path)
    sync_folder(folder)

    if (staged / RECORD).exists():
        _move(staged / RECORD, folder / RECORD)
        sync_folder(folder)
    remove(staged)


def _move(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)


def _keep_changed_files(folder: Path, staged: Path, old_files: dict[str, str]) -> None:
    """Rename files in `folder` that the move would replace though distilvec did not write their content."""
    for name in _names(staged):
        path = folder / name
        if name == RECORD or not (path.exists() or path.is_symlink()):
            continue
        if has_checksum(path, old_files.get(name)) or has_checksum(path, checksum_once(staged / name)):
            continue
        numbered = (path.with_name(f"{path.name}{CHANGED}{number if number > 1 else ''}") for number in count(1))
        free_path = next(new_path for new_path in numbered if not (new_path.exists() or new_path.is_symlink()))
        path.rename(free_path)
        _log_once(f"{path} was changed by hand; the file is kept as {free_path.name}")


def _name_outdated_exports(folder: Path, old_files: dict[str, str], new_files: dict[str, str]) -> None:
    """Log the exported files in `folder` that belong to the old model, if the new one is another."""
    if all(new_files.get(name) == checksum for name, checksum in old_files.items() if name.endswith(_CONTENT)):
        return
    exports = [name for name in _names(folder) if name.endswith(EXPORTED) and name not in old_files]
    if exports:
        _log_once(f"kept, of the earlier model: {', '.join(exports)} in {folder}; `distilvec export` makes files again")


_log_once = cache(log)  # a training saves often, and the message is the same


def _names(folder: Path) -> list[str]:
    """Return relative names of all files and links in a folder but half-written ones."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(path.relative_to(folder).as_posix() for path in paths if not is_scratch(path))


def link(path: Path, target: Path) -> None:
    """Make a hard link, or a copy on systems without hard links; links stay links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, target, follow_symlinks=False)
