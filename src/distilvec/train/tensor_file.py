"""Safetensors files that appear whole and notice damage: a checksum of every tensor, and a seal over metadata and checksums.

A file made before there were seals is read as it is.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distilvec.core.errors import UNREADABLE, DistilvecError, explained, first_line
from distilvec.core.files import SEAL, remove, remove_scratch, scratch, seal, sync_folder

SEALED = "sealed"  # one key, since safetensors writes several in another order every time
UNSEALED = {"progress", "fingerprint"}  # all that files had before there were seals


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], key: str) -> None:
    """Write the file at once: a kill or a full disk leaves the old file or the new one.

    It is written in a folder of its own, since safetensors makes scratch files with names of its own beside it.
    Errors: DistilvecError with `key` where it cannot be written.
    """
    contents = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    checksums = {name: tensor_checksum(value) for name, value in contents.items()}
    sealed = json.dumps({"checksums": checksums, SEAL: seal({**metadata, "checksums": checksums})})
    folder = scratch(path)
    with explained(key, path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_scratch(path.parent)
            folder.mkdir()
            new = folder / path.name
            save_file(contents, new, metadata={**metadata, SEALED: sealed})
            with new.open("rb") as file:
                os.fsync(file.fileno())
            new.replace(path)
            sync_folder(path.parent)
        finally:
            remove(folder)


def read_tensors(
    path: Path, key: str, fix: str, prefixes: tuple[str, ...] = ("",)
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors whose names start so, and the metadata. `fix` says what to do about a damaged file.

    The seal is checked in any case, of the tensors those that are read.
    Errors: DistilvecError with `key` for a file that is missing, unreadable or damaged.
    """
    try:
        with explained(key, path):
            path.open("rb").close()  # whose errors name the reason
            with safe_open(path, framework="pt") as file:
                metadata, names = file.metadata() or {}, set(file.keys())
                tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefixes)}  # noqa: SIM118
    except (SafetensorError, *UNREADABLE) as error:
        raise DistilvecError(f"[{key}] {path} is damaged ({first_line(error)}). {fix}") from None
    if damage := _damage(metadata, names, tensors):
        raise DistilvecError(f"[{key}] {path} is damaged ({damage}). {fix}")
    return tensors, {name: text for name, text in metadata.items() if name != SEALED}


def tensor_checksum(value: Tensor) -> str:
    """Type, shape and CRC-32 of a tensor that is contiguous and on the CPU; no flipped bit leaves it as it is."""
    return f"{value.dtype} {list(value.shape)} {zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data):08x}"


def _damage(metadata: dict[str, str], names: set[str], tensors: dict[str, Tensor]) -> str | None:
    """What differs from what was written; None where nothing does, or where the file has no seal."""
    if metadata.keys() <= UNSEALED:
        return None
    try:
        sealed = json.loads(metadata[SEALED])
        expected, found = dict(sealed["checksums"]), sealed[SEAL]
    except (KeyError, ValueError, TypeError):
        return "its metadata changed after distilvec wrote it"
    if found != seal({**{name: text for name, text in metadata.items() if name != SEALED}, "checksums": expected}):
        return "its metadata changed after distilvec wrote it"
    if names != expected.keys():
        return "it does not hold the tensors that distilvec wrote"
    changed = [name for name, value in tensors.items() if tensor_checksum(value) != expected[name]]
    return f"{', '.join(sorted(changed)[:3])} changed after distilvec wrote it" if changed else None
