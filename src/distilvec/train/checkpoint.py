"""A checkpoint is one safetensors file, replaced atomically: killed at any moment, the last complete one is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.objective import Objective
from distilvec.students.lora import base_weights
from distilvec.train.optimizer import load_optimizer_tensors, optimizer_tensors
from distilvec.train.tensor_file import read_tensors, write_tensors

KEY = "checkpoint"
FIX = "Put back a copy of it, or delete it to start training again from step 0."


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


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Progress,
    fingerprint: str,
    memory: Mapping[str, Tensor],
) -> None:
    """Write module, optimiser, progress and `memory`, what else the loop has in memory.

    The weights that adapters stand beside never change and are left out.
    Errors: DistilvecError where it cannot be written; the previous checkpoint stays.
    """
    fixed = base_weights(module)
    tensors = {f"model/{name}": value for name, value in module.state_dict().items() if name not in fixed}
    tensors |= {f"optimizer/{name}": value for name, value in optimizer_tensors(optimizer, module).items()}
    tensors |= {f"loop/{name}": value for name, value in memory.items()}
    write_tensors(path, tensors, {"progress": json.dumps(asdict(state)), "fingerprint": fingerprint}, KEY)


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, fingerprint: str
) -> tuple[Progress, dict[str, Tensor]] | None:
    """Restore module and optimiser; gives progress and memory, or None where there is no file. Errors as `read_checkpoint`."""
    found = read_checkpoint(path, fingerprint)
    if found is None:
        return None
    tensors, state = found
    with fitting(path):
        restore(module, _part(tensors, "model/"))
        load_optimizer_tensors(optimizer, module, _part(tensors, "optimizer/"))
    return state, _part(tensors, "loop/")


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Tensors of this checkpoint that fit no parameter inside are a DistilvecError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DistilvecError(f"[{KEY}] {path} does not fit the student and its objective ({reason}). {FIX}") from None


def restore(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put a checkpoint's weights into the module; those that no checkpoint holds stay."""
    fixed = base_weights(module)
    module.load_state_dict({**{name: value for name, value in module.state_dict().items() if name in fixed}, **tensors})


def read_checkpoint(
    path: Path, fingerprint: str, parts: tuple[str, ...] = ("model/", "optimizer/", "loop/")
) -> tuple[dict[str, Tensor], Progress] | None:
    """The tensors of a checkpoint whose names start so, with its progress; None where there is none.

    Errors: DistilvecError if the file is damaged or belongs to another recipe.
    """
    if not path.exists():
        return None
    tensors, metadata = read_tensors(path, KEY, FIX, parts)
    if metadata.get("fingerprint") != fingerprint:
        raise DistilvecError(
            f"[{KEY}] {path} belongs to another recipe or other data. Choose another folder (--out) or start over (--restart)."
        )
    return tensors, _read_progress(metadata.get("progress", ""), path)


def objective_file(student: Path) -> Path:
    """Where the objective's parameters are kept that were trained with the student in this folder: beside it, not in what ships."""
    return student.with_name(f"{student.name}.objective.safetensors")


def save_objective(path: Path, objective: Objective) -> None:
    """Write the objective's own parameters and buffers, which ship with no student; an objective without any leaves no file."""
    contents = objective.state_dict()
    if contents:
        write_tensors(path, contents, {}, path.name)
    else:
        path.unlink(missing_ok=True)


def load_objective(path: Path, objective: Objective) -> None:
    """Restore what `save_objective` wrote; DistilvecError if the objective has parameters and the file is missing or does not fit."""
    if not objective.state_dict():
        return
    kind = type(objective).__name__
    if not path.exists():
        raise DistilvecError(
            f"[{path.name}] {path} is missing: {kind} has parameters of its own, and this run kept its students without them. "
            "Train it again (--restart) to have them kept."
        )
    tensors, _ = read_tensors(path, path.name, "Put back a copy of it, or train again (--restart).")
    try:
        objective.load_state_dict(tensors)
    except RuntimeError as error:
        raise DistilvecError(
            f"[{path.name}] {path} does not hold the parameters of {kind} ({first_line(error)}). Train again (--restart)."
        ) from None


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _read_progress(text: str, path: Path) -> Progress:
    """The progress in a checkpoint's metadata; DistilvecError where its fields are others than this version's."""
    known = asdict(Progress())
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.keys() != known.keys():
        shown = ", ".join(map(str, found)) if isinstance(found, dict) else "none"
        raise DistilvecError(
            f"[{KEY}] {path} was written by another version of distilvec: found the fields {shown or 'none'}; expected "
            f"{', '.join(known)}. Take that version, or delete the file to start training again from step 0."
        )
    wrong = [
        name
        for name, value in known.items()
        if not isinstance(found[name], (int, float) if isinstance(value, float) else type(value))
    ]
    if wrong:
        raise DistilvecError(f"[{KEY}] {path} is damaged ({wrong[0]} is {found[wrong[0]]!r}). {FIX}")
    return Progress(**found)
