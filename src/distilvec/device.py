"""Which device to compute on."""

from __future__ import annotations

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

from distilvec.errors import DistilvecError


def pick_device(name: str, key: str = "train.device") -> str:
    """'auto' becomes cuda, mps or cpu, whichever is there first; a named one must be there.

    Errors: DistilvecError for a GPU asked for where torch finds none.
    """
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise DistilvecError(f"[{key}] is {name}, but torch finds no GPU here. Use auto or cpu, or install a CUDA build of torch.")
    if name == "mps" and not has_mps:
        raise DistilvecError(f"[{key}] is mps, but this machine has none. Use auto or cpu.")
    return name


def processes(device: str) -> PartialState:
    """This process and its siblings (`accelerate launch`); alone, whatever an earlier run in this process set is forgotten."""
    cpu = pick_device(device) == "cpu"
    state = PartialState(cpu=cpu)
    if state.num_processes == 1:
        AcceleratorState._reset_state(reset_partial_state=True)
        state = PartialState(cpu=cpu)
    else:
        AcceleratorState._reset_state(reset_partial_state=False)
    return state
