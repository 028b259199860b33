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
from safetensors.torch import save_file
from torch import nn

from distilvec.errors import DistilvecError
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


def save_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, state: Progress, fingerprint: str) -> None:
    """Write module, optimiser and progress; DistilvecError when the disk is full (the previous checkpoint stays)."""
    tensors = {f"model/{name}": value for name, value in module.state_dict().items()}
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
    """Restore what `save_checkpoint` wrote, or None where there is none.

    Errors: DistilvecError if the file is damaged or belongs to another recipe.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DistilvecError(f"{path} is damaged ({error}). Delete it to start training again from step 0.") from None
    if metadata.get("fingerprint") != fingerprint:
        raise DistilvecError(f"{path} belongs to another recipe or other data. Choose another folder (--out) or start over (--restart).")
    module.load_state_dict({name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")})
    state = {name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")}
    load_optimizer_tensors(optimizer, module, state)
    return Progress(**json.loads(metadata["progress"]))
