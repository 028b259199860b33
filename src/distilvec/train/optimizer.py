"""AdamW over named groups, and its state as plain tensors (no pickle)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.schema import TrainSection


def build_optimizer(module: nn.Module, train: TrainSection) -> torch.optim.AdamW:
    """AdamW in its fused form; `learning_rate_factors` makes a group for parameters whose name holds a key."""
    groups: dict[float, list[nn.Parameter]] = {}
    unused = set(train.learning_rate_factors)
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        matches = [key for key in train.learning_rate_factors if name.startswith(key)]
        unused -= set(matches)
        factor = train.learning_rate_factors[matches[0]] if matches else 1.0
        groups.setdefault(factor, []).append(parameter)
    if unused:
        known = sorted({name.split(".")[0] for name, _ in module.named_parameters()})
        raise DistilvecError(f"[train.learning_rate_factors] no parameter starts with {sorted(unused)}; names start with {known}.")
    settings = [{"params": parameters, "factor": factor} for factor, parameters in groups.items()]
    fused = all(p.device.type in ("cpu", "cuda", "mps") for p in module.parameters())
    return torch.optim.AdamW(settings, lr=train.learning_rate, betas=train.betas, weight_decay=train.weight_decay, fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group `rate` times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `<parameter>|<entry>`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {f"{names[p]}|{entry}": value for p, state in optimizer.state.items() for entry, value in state.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    parameters = dict(module.named_parameters())
    for key, value in tensors.items():
        name, entry = key.rsplit("|", 1)
        parameter = parameters[name]
        optimizer.state[parameter][entry] = value.clone() if entry == "step" else value.to(parameter.device, copy=True)
