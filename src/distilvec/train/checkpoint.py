"""Checkpoints: one safetensors file, replaced atomically, so that a kill at any moment leaves the last complete one.

Damage is detected by a checksum of every tensor and a seal over the metadata.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import SEAL, remove, remove_scratch, scratch, seal, sync_folder
from distilvec.core.objective import Objective
from distilvec.core.processes import is_main
from distilvec.students.lora import base_weights
from distilvec.train.optimizer import load_optimizer_tensors, optimizer_tensors
from distilvec.train.sharding import gathered, like
from distilvec.train.start import Standing

KEY = "checkpoint"
FIX = "Put back a copy of it, or delete it to start training again from step 0."
# The checksums and the seal are one key of the metadata: safetensors writes several keys in a random order, and equal
# runs should write equal files.
SEALED = "sealed"


@dataclass
class Progress:
    """Progress of a run. Random numbers need no saving: every step seeds them from (seed, step, process)."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # the epoch in progress
    step_in_epoch: int = 0  # steps of that epoch that are done
    steps_an_epoch: int = 0  # of the first epoch: batches by number of tokens differ by epoch
    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0  # training time, without interruptions
    best_step: int = -1  # 0: the student as it started
    best: Standing | None = None  # of validation, as all here; with the most overlap@10 that a saved student had
    start: Standing | None = None
    last: Standing | None = None
    learning_rate: float = 0.0  # the schedule's highest, known after the first validation
    returns: int = 0  # to the start
    returned_step: int = 0  # of the last return
    dropped: bool = False  # of a stage that another follows: it ended worse than it began, and left what it began with
    # Of a training that ends early where validation is flat (train/length.py)
    judged_step: int = 0  # of the last validation that counted
    flat: Standing | None = None  # of the last one that improved
    flat_validations: int = 0  # that counted since then
    decay_step: int = -1  # at which the decay began early; -1 before that
    finished: bool = False

    @property
    def passes(self) -> float:
        """Epochs that are done, with the part of the one in progress."""
        return self.epoch + self.step_in_epoch / max(self.steps_an_epoch, 1)


def read_progress(content: Any) -> Progress:
    """Return the progress of its plain data."""
    if not isinstance(content, dict) or content.keys() != asdict(Progress()).keys():
        raise ValueError("its fields are others")
    # compared strictly, as JSON has it: a step "80" is damage
    return TypeAdapter(Progress).validate_json(json.dumps(content), strict=True)


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Progress,
    fingerprint: str,
    memory: Mapping[str, Tensor],
) -> None:
    """Write module, optimizer, progress, and `memory`, the state of the loop.

    The base weights of adapters never change and are left out, as are further names of a weight that is used twice.
    All processes call this; the main one writes.
    """
    left_out = base_weights(module) | repeated_weights(module)
    tensors = {f"model/{name}": value for name, value in module.state_dict().items() if name not in left_out}
    tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(optimizer, module).items()}
    tensors = gathered(tensors) | {f"loop/{name}": value for name, value in memory.items()}
    if is_main():
        with about(KEY, path):
            write_tensors(path, tensors, {"progress": json.dumps(asdict(state)), "fingerprint": fingerprint})


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, fingerprint: str
) -> tuple[Progress, dict[str, Tensor]] | None:
    """Restore module and optimizer; return progress and memory, or None without a file. Errors as `read_checkpoint`."""
    checkpoint = read_checkpoint(path, fingerprint)
    if checkpoint is None:
        return None
    tensors, state = checkpoint
    with about(KEY, path), fitting(path):
        restore(module, with_prefix(tensors, "model/"))
        load_optimizer_tensors(optimizer, module, with_prefix(tensors, "optimizer/"))
    return state, with_prefix(tensors, "loop/")


@contextmanager
def fitting(path: Path, fix: str = FIX) -> Iterator[None]:
    """Turn errors about tensors that fit no parameter into a DistilvecError that names this file."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DistilvecError(f"{path} does not fit the student and its objective ({reason}).", fix) from None


def restore(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load a checkpoint's weights into the module; base weights of adapters stay.

    A weight that is used twice is loaded by its first name, and stays one parameter.
    """
    state = module.state_dict()
    weights = {name: state[name] for name in base_weights(module) | repeated_weights(module) if name in state}
    for name, value in tensors.items():
        weights[name] = like(value, state[name]) if name in state else value  # torch names the ones that do not fit
    module.load_state_dict(weights)


def repeated_weights(module: nn.Module) -> set[str]:
    """Return the further names of parameters that a module has under several, such as T5's table of tokens."""
    every_name = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return every_name - {name for name, _ in module.named_parameters()}


def read_checkpoint(
    path: Path, fingerprint: str, parts: tuple[str, ...] = ("model/", "optimizer/", "loop/")
) -> tuple[dict[str, Tensor], Progress] | None:
    """Read the tensors whose names start with one of `parts`, and the progress; None without a file."""
    if not path.exists():
        return None
    with about(KEY, path):
        tensors, metadata = read_tensors(path, FIX, parts)
    if metadata.get("fingerprint") != fingerprint:
        raise DistilvecError(
            f"{path} belongs to another recipe or other data.",
            "Choose another folder (--out) or start over (--restart).",
            key=KEY,
        )
    return tensors, _read_progress(metadata.get("progress", ""), path)


def _read_progress(text: str, path: Path) -> Progress:
    """Progress in a checkpoint's metadata; DistilvecError if its fields or their types are unknown."""
    try:
        return read_progress(json.loads(text))
    except ValueError:
        problem = f"{path} is damaged or of another version of distilvec: its progress is {text}."
        raise DistilvecError(problem, FIX, key=KEY) from None


# -- the objective's parameters ---------------------------------------------------------------------------------------


def save_objective(path: Path, objective: Objective) -> None:
    """Write the objective's own parameters and buffers; an objective without any leaves no file."""
    contents = objective.state_dict()
    if contents:
        with about(path.name, path):
            write_tensors(path, contents, {})
    else:
        path.unlink(missing_ok=True)


def load_objective(path: Path, objective: Objective) -> None:
    """Restore the file of `save_objective`; DistilvecError if it is missing or does not fit."""
    if not objective.state_dict():
        return
    fix = "Put back a copy of it, or train again (--restart)."
    if not path.exists():
        raise DistilvecError(f"{path} is missing: it holds the parameters of the objective.", fix, key=path.name)
    with about(path.name, path), fitting(path, fix):
        objective.load_state_dict(read_tensors(path, fix)[0])


# -- files of tensors --------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the file atomically: a kill or a full disk leaves the old file or the new one.

    The scratch file has a folder of its own, since safetensors makes further scratch files next to it.
    """
    contents = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    checksums = {name: tensor_checksum(value) for name, value in contents.items()}
    sealed = json.dumps({"checksums": checksums, SEAL: seal({**metadata, "checksums": checksums})})
    folder = scratch(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_scratch(path.parent)  # of a run that was killed here, before there is too little space for a new one
        folder.mkdir()
        new = folder / path.name
        save_file(contents, new, metadata={**metadata, SEALED: sealed})
        # This order and no other: the new content is on the disk before its name is, and the name before this
        # function returns. Otherwise a power cut can leave a file with the right name and no content.
        with new.open("rb") as file:
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    finally:
        remove(folder)


def read_tensors(path: Path, fix: str, prefixes: tuple[str, ...] = ("",)) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors whose names start with one of `prefixes`, and the metadata.

    The seal is always checked, the checksums only of tensors that are read. `fix` is for a damaged file.
    """
    path.open("rb").close()  # safe_open's own errors for a missing or forbidden file do not name the reason
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names if name.startswith(prefixes)}
        damage = _damage(metadata, set(names), tensors)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # safetensors and torch raise any kind
        damage = first_line(error)
    if damage:
        raise DistilvecError(f"{path} is damaged ({damage}).", fix)
    return tensors, {name: text for name, text in metadata.items() if name != SEALED}


def tensor_checksum(value: Tensor) -> str:
    """Type, shape and CRC-32 of a contiguous tensor on the CPU; every flipped bit changes it."""
    content = value.reshape(-1).view(torch.uint8).numpy().data
    return f"{value.dtype} {list(value.shape)} {zlib.crc32(content):08x}"


def _damage(metadata: dict[str, str], names: set[str], tensors: dict[str, Tensor]) -> str | None:
    """Describe the difference from the written file; None without a difference."""
    try:
        sealed = json.loads(metadata[SEALED])
        checksums = dict(sealed["checksums"])
        unsealed = {name: text for name, text in metadata.items() if name != SEALED}
        is_intact = sealed[SEAL] == seal({**unsealed, "checksums": checksums}) and names == checksums.keys()
    except (KeyError, ValueError, TypeError):
        is_intact = False
    if not is_intact:
        return "its metadata changed after distilvec wrote it"
    changed = sorted(name for name, value in tensors.items() if tensor_checksum(value) != checksums[name])
    return f"{', '.join(changed[:3])} changed after distilvec wrote it" if changed else None
