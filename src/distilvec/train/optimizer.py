"""AdamW over named groups, and its state as plain tensors (no pickle)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from distilvec.config.training import TrainSection
from distilvec.core.errors import DistilvecError, nearest


def build_optimizer(module: nn.Module, train: TrainSection) -> torch.optim.AdamW:
    """AdamW in its fused form over the parameters that are trained."""
    settings = [
        {"params": parameters, "factor": factor} for factor, parameters in parameter_groups(module, train).items()
    ]
    fused = all(p.device.type in ("cpu", "cuda", "mps") for p in module.parameters())
    return torch.optim.AdamW(
        settings, lr=train.learning_rate, betas=train.betas, weight_decay=train.weight_decay, fused=fused
    )


def parameter_groups(module: nn.Module, train: TrainSection) -> dict[float, list[nn.Parameter]]:
    """The trained parameters by the factor of their learning rate: those whose name starts with a key of the recipe.

    Errors: DistilvecError for a key of `trainable` or `learning_rate_factors` with which no parameter's name starts.
    """
    names = [name for name, _ in module.named_parameters()]
    _refuse_unused("train.learning_rate_factors", train.learning_rate_factors, names)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trained_parameters(module, train).items():
        matches = [key for key in train.learning_rate_factors if name.startswith(key)]
        groups.setdefault(train.learning_rate_factors[matches[0]] if matches else 1.0, []).append(parameter)
    return groups


def trained_parameters(module: nn.Module, train: TrainSection) -> dict[str, nn.Parameter]:
    """The parameters that `trainable` names, all without it; never those that are frozen already."""
    parameters = dict(module.named_parameters())
    _refuse_unused("train.trainable", train.trainable or (), parameters)
    chosen = ("",) if train.trainable is None else tuple(train.trainable)
    return {
        name: parameter for name, parameter in parameters.items() if parameter.requires_grad and name.startswith(chosen)
    }


def freeze_others(module: nn.Module, train: TrainSection) -> None:
    """Take the gradient from all parameters but the trained ones; what lies below them runs without a graph."""
    trained = trained_parameters(module, train)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)


def _refuse_unused(key: str, prefixes: Iterable[str], names: Iterable[str]) -> None:
    """DistilvecError for a prefix that no name starts with; it lists what there is."""
    names = list(names)
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            parts = {".".join(name.split(".")[:count]) for name in names for count in range(1, name.count(".") + 2)}
            known = sorted({".".join(name.split(".")[: 3 if name.startswith("encoder.") else 2]) for name in names})
            raise DistilvecError(
                f"[{key}] no parameter's name starts with '{prefix}'{nearest(prefix, parts) or '.'} Names start with {', '.join(known)}."
            )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group `rate` times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as tensors named `<parameter>|<entry>`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    return {f"{names[p]}|{entry}": value for p, state in optimizer.state.items() for entry, value in state.items()}


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave; ValueError for a tensor that fits no parameter."""
    parameters = dict(module.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("|")
        parameter = parameters.get(name)
        if parameter is None or (entry != "step" and value.shape != parameter.shape):
            raise ValueError(f"no parameter for the optimiser's {key}, {list(value.shape)}")
        optimizer.state[parameter][entry] = value.clone() if entry == "step" else value.to(parameter.device, copy=True)
