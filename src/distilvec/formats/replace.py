"""A model's folder is replaced as a whole: only one that distilvec wrote, and without the files that others put into it.

`distillation.json` lists every other file that was written with it, under `files`: relative name to checksum. Everything else in
the folder (an ONNX file, a user's notes) is carried over into the next one, and so is a listed file that was changed by hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError
from distilvec.core.files import check_output_folder, is_scratch, remove, remove_scratch, sync_folder
from distilvec.core.log import log

RECORD = "distillation.json"
FILES = "files"  # the record's key
CHANGED = ".yours"  # what a carried-over file's name ends with where the new model has a file of its own name
# what versions wrote whose record lists no files
_EARLIER = re.compile(
    r"(?:[0-9]+_[A-Za-z]+/.*"
    r"|(?:model|head|pytorch_model)(?:-[0-9]+-of-[0-9]+)?\.(?:safetensors|safetensors\.index\.json|bin)"
    r"|(?:config|config_sentence_transformers|sentence_bert_config|generation_config|modules|head|vocabulary)\.json"
    r"|(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json"
    r"|vocab\.txt|merges\.txt|chat_template\.jinja|[a-z.]*\.model|README\.md|distilvec_experts\.py)"
)


def is_ours(folder: Path) -> bool:
    """Whether the folder holds a model that distilvec wrote."""
    return (folder / "modules.json").is_file() and read_record(folder) is not None


def check_replaceable(folder: Path, key: str) -> None:
    """DistilvecError where no model may be saved as `folder`: it is no folder, cannot be written, or holds something of others."""
    check_output_folder(folder, key)
    if folder.is_dir() and any(folder.iterdir()) and not is_ours(folder):
        raise DistilvecError(
            f"[{key}] {folder} exists and is no model that distilvec wrote. Choose a new or empty folder."
        )


def read_record(folder: Path) -> dict[str, Any] | None:
    """The folder's distillation.json; None where there is none or it is no mapping."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def checksums(folder: Path) -> dict[str, str]:
    """The checksum of every file in a folder but distillation.json, by relative name; 32 hexadecimal digits each."""
    return {name: checksum(folder / name) for name in _names(folder) if name != RECORD}


def checksum(path: Path) -> str:
    """32 hexadecimal digits of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def is_unchanged(folder: Path, record: dict[str, Any]) -> bool:
    """Whether a save with this record would leave the folder as it is: the same record, and every file of it is there."""
    return read_record(folder) == record and all((folder / name).is_file() for name in record[FILES])


def carry_over(old: Path, new: Path) -> None:
    """Put what others wrote into the folder `old`, and what they changed there, into `new`: links to the same contents."""
    record = read_record(old) or {}
    listed = record.get(FILES)
    stale = []
    for name in _names(old):
        path, target = old / name, new / name
        ours = name == RECORD or (name in listed if isinstance(listed, dict) else _EARLIER.fullmatch(name) is not None)
        if ours and not (isinstance(listed, dict) and name != RECORD and _was_changed(path, target, listed[name])):
            continue
        number = 1
        while target.is_symlink() or target.exists():
            target = new / f"{name}{CHANGED}{number if number > 1 else ''}"
            number += 1
        if ours:
            _say_once(f"{path} was changed by hand; it is kept as {target.name}")
        elif path.suffix == ".onnx":
            stale.append(name)
        _link(path, target)
    if stale:
        _say_once(
            f"{', '.join(stale)} in {old} is kept, though made from the earlier model; `distilvec export` makes it again"
        )


def replace_folder(new: Path, folder: Path) -> None:
    """Give `new` the place of `folder`; what was there before is removed at the end. See `recover_student`."""
    old = earlier(folder)
    there = folder.exists()
    if there:
        folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        if there and not folder.exists():
            old.rename(folder)
        raise
    sync_folder(folder.parent)
    if there:
        remove(old)


def recover_student(folder: Path) -> None:
    """Put back the earlier model if a kill fell between the two renames of a save, and remove what it left half-written."""
    folder, old = real(folder), earlier(real(folder))
    remove_scratch(folder.parent)
    if not (is_ours(old) or (old.is_dir() and not any(old.iterdir()))):
        return
    if folder.exists():
        remove(old)
    else:
        old.rename(folder)


def earlier(folder: Path) -> Path:
    """The name of the earlier model while the new one takes its place."""
    return folder.with_name(f".{folder.name}.old")


def real(folder: Path) -> Path:
    """The folder itself where `folder` is a link to one: the link stays."""
    return Path(os.path.realpath(folder))


@cache
def _say_once(text: str) -> None:
    log(text)


def _names(folder: Path) -> list[str]:
    """Relative names of all files and links in a folder, but for half-written ones."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in found if not is_scratch(path))


def _was_changed(path: Path, new: Path, written: str) -> bool:
    """Whether somebody else changed a file of ours, and not to what is now written anyway."""
    if not path.is_file():
        return False
    found = checksum(path)
    return found != written and not (new.is_file() and checksum(new) == found)


def _link(path: Path, target: Path) -> None:
    """A second name of the same content, or a copy where the system has no such thing; a link as it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(path, target, follow_symlinks=False)
