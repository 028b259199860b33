"""A checkpoint is one safetensors file, replaced atomically: killed at any moment, the last complete one is there."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.objective import Objective
from distilvec.students.lora import base_weights
from distilvec.train.optimizer import load_optimizer_tensors, optimizer_tensors


@dataclass
class Progress:
    """Where a run stands. Random numbers need no saving: every step seeds them from (seed, step, process)."""

    step: int = 0  # optimiser steps done
    epoch: int = 0  # the epoch in progress
    step_in_epoch: int = 0  # steps of that epoch that are done
    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0  # training time, interruptions left out
    best_distance: float = float("inf")
    best_epoch: int = -1
    finished: bool = False


def checkpoint_file(folder: Path) -> Path:
    """The file a killed run or stage in this folder resumes from."""
    return folder / "checkpoint" / "state.safetensors"


def save_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, state: Progress, fingerprint: str) -> None:
    """Write module, optimiser and progress; DistilvecError when the disk is full (the previous checkpoint stays).

    The weights that adapters stand beside never change and are left out.
    """
    fixed = base_weights(module)
    tensors = {f"model/{name}": value for name, value in module.state_dict().items() if name not in fixed}
    tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(optimizer, module).items()}
    contents = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    temporary = path.with_suffix(".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(contents, temporary, metadata={"progress": json.dumps(asdict(state)), "fingerprint": fingerprint})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        if getattr(error, "errno", None) != errno.ENOSPC and "No space" not in str(error):
            raise
        needed = sum(value.nbytes for value in contents.values())
        free = shutil.disk_usage(path.parent).free
        raise DistilvecError(
            f"no space for a checkpoint in {path.parent}: {needed / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free. "
            "The previous checkpoint is intact; make room and run the same command again."
        ) from None
    temporary.replace(path)


def load_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, fingerprint: str) -> Progress | None:
    """Restore what `save_checkpoint` wrote, or None where there is none; errors as `read_checkpoint`."""
    found = read_checkpoint(path, fingerprint)
    if found is None:
        return None
    tensors, state = found
    restore(module, {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")})
    load_optimizer_tensors(
        optimizer, module, {name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")}
    )
    return state


def restore(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put a checkpoint's weights into the module; those that no checkpoint holds stay."""
    fixed = base_weights(module)
    module.load_state_dict({**{name: value for name, value in module.state_dict().items() if name in fixed}, **tensors})


def read_checkpoint(
    path: Path, fingerprint: str, parts: tuple[str, ...] = ("model/", "optimizer/")
) -> tuple[dict[str, Tensor], Progress] | None:
    """The tensors of a checkpoint whose names start so, with its progress; None where there is none.

    Errors: DistilvecError if the file is damaged or belongs to another recipe.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys() if name.startswith(parts)}  # noqa: SIM118
    except SafetensorError as error:
        raise DistilvecError(f"{path} is damaged ({error}). Delete it to start training again from step 0.") from None
    if metadata.get("fingerprint") != fingerprint:
        raise DistilvecError(f"{path} belongs to another recipe or other data. Choose another folder (--out) or start over (--restart).")
    return tensors, Progress(**json.loads(metadata["progress"]))


def objective_file(student: Path) -> Path:
    """Where the objective's parameters are kept that were trained with the student in this folder: beside it, not in what ships."""
    return student.with_name(f"{student.name}.objective.safetensors")


def save_objective(path: Path, objective: Objective) -> None:
    """Write the objective's own parameters and buffers, which ship with no student; an objective without any leaves no file."""
    contents = {name: value.detach().contiguous().cpu() for name, value in objective.state_dict().items()}
    if not contents:
        path.unlink(missing_ok=True)
        return
    temporary = path.with_suffix(".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(contents, temporary)
    temporary.replace(path)


def load_objective(path: Path, objective: Objective) -> None:
    """Restore what `save_objective` wrote; DistilvecError if the objective has parameters and the file is missing or does not fit."""
    if not objective.state_dict():
        return
    if not path.exists():
        raise DistilvecError(
            f"{path} is missing: {type(objective).__name__} has parameters of its own, and this run kept its students without them. "
            "Train it again (--restart) to have them kept."
        )
    try:
        objective.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DistilvecError(
            f"{path} does not hold the parameters of {type(objective).__name__} ({reason}). Train again (--restart)."
        ) from None
