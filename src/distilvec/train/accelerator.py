"""accelerate for the recipe's device, precision and trackers."""

from __future__ import annotations

from pathlib import Path

from accelerate import Accelerator

from distilvec.config.training import TrainSection
from distilvec.core.device import fast_bf16, pick_device, warn_slow_bf16
from distilvec.core.processes import join_processes


def uses_bf16(train: TrainSection, device: str) -> bool:
    """Return whether a training computes in bf16: as the recipe says, or where the device is fast in it."""
    return train.precision == "bf16" or (train.precision == "auto" and fast_bf16(device))


def make_accelerator(train: TrainSection, folder: Path) -> Accelerator:
    """Return an Accelerator for the recipe, and join the other processes of the run."""
    device = pick_device(train.device)
    join_processes(train.device)
    bf16 = uses_bf16(train, device)
    if bf16:
        warn_slow_bf16(device, "train.precision=fp32")
    accelerator = Accelerator(
        cpu=device == "cpu",
        mixed_precision="bf16" if bf16 else "no",
        log_with=list(train.trackers) or None,
        project_dir=str(folder),
    )
    if train.trackers:
        accelerator.init_trackers("distilvec")
    return accelerator
