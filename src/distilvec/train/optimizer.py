"""AdamW or Muon over named groups, the state as plain tensors (no pickle), and learning rates over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distilvec.config.training import TrainSection
from distilvec.core.errors import DistilvecError, about, nearest
from distilvec.core.processes import is_sharded
from distilvec.train.sharding import like

Schedule = Callable[[int, int], float]  # (step, epoch), both from 0, to a learning rate
SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1 + math.cos(math.pi * share)),
    "stable": lambda share: min(1.0, 5 * (1 - share)),  # warm-up, stable, decay over the last fifth
}


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for some groups, AdamW for the others: one list of groups, one state, one step."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        self.parts = (muon, adamw)
        # Both parts share the groups and the state with this optimizer, so that a checkpoint, a new rate and a return
        # to the start (`state.clear()`) reach both.
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        for part in self.parts:
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take the step of both."""
        for part in self.parts:
            part.step()


def build_optimizer(module: nn.Module, train: TrainSection) -> torch.optim.Optimizer:
    """Build the optimizer of the trained parameters: AdamW in its fused form, or Muon for the student's matrices.

    Muon's updates are orthogonal (Jordan et al., 2024), scaled to the size of AdamW's, so that both take the same rate
    (Liu et al., 2025, "Muon is scalable for LLM training"). Token tables, vectors and the objective stay with AdamW.
    """
    matrices = _matrices(module) if train.optimizer == "muon" else set()
    muon_groups: list[dict[str, Any]] = []
    adamw_groups: list[dict[str, Any]] = []
    for factor, parameters in parameter_groups(module, train).items():
        by_kind: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for parameter in parameters:
            # Sharded and whole parameters are groups of their own: no fused kernel takes both
            kind = (parameter in matrices, is_sharded(parameter))
            by_kind.setdefault(kind, []).append(parameter)
        for kind in sorted(by_kind):
            groups = muon_groups if kind[0] else adamw_groups
            groups.append({"params": by_kind[kind], "factor": factor})
    # Every step sets its own rate, so the first one does not count.
    rates: dict[str, Any] = {"lr": train.learning_rate or 0.0, "weight_decay": train.weight_decay}
    fused = all(p.device.type in ("cpu", "cuda", "mps") for p in module.parameters())
    if not muon_groups:
        return torch.optim.AdamW(adamw_groups, betas=train.betas, fused=fused, **rates)
    if not hasattr(torch.optim, "Muon"):
        raise DistilvecError(
            f"'muon' needs torch 2.9 or newer; found {torch.__version__}.",
            "Install it, or set 'adamw'.",
            key="train.optimizer",
        )
    muon = torch.optim.Muon(muon_groups, adjust_lr_fn="match_rms_adamw", **rates)
    if not adamw_groups:  # adapters alone
        return muon
    return MuonAndAdamW(muon, torch.optim.AdamW(adamw_groups, betas=train.betas, fused=fused, **rates))


def _matrices(module: nn.Module) -> set[Tensor]:
    """Return the matrices of the student's transformer: neither its tables nor the head of a language model."""
    matrices: set[Tensor] = set()
    for part in module.modules():
        if not isinstance(part, PreTrainedModel):
            continue
        for layer in part.base_model.modules():
            if not isinstance(layer, nn.Embedding):
                matrices.update(weight for weight in layer.parameters(recurse=False) if weight.ndim == 2)
    return matrices


def build_schedule(train: TrainSection, total_steps: int, learning_rate: float, passes: int) -> Schedule:
    """The recipe's schedule over `total_steps` optimizer steps, in so many passes, with this highest rate.

    - cycles: linear over a cycle's epochs, changed at epoch ends, then reset (REDACT, section 3.2, A.2). Ten epochs
      give 1e-4 - 9e-5 * e / 9 for e = 0 ... 9. A cycle of one epoch keeps the initial rate.
    - others: linear warm-up from 0, then low + (high - low) * shape(share of the remaining steps).
    """
    high = learning_rate
    low = final_rate(train, learning_rate)
    warmup = train.schedule.warmup
    warmup_steps = round(warmup if warmup >= 1 else warmup * total_steps)
    cycles = train.rate_cycles(passes)

    def by_epoch(step: int, epoch: int) -> float:
        # Batches by number of tokens differ in number by epoch: the last steps may be in one more than was planned
        epoch = min(epoch, passes - 1)
        cycle = next(cycle for cycle in cycles if epoch in cycle)
        return high - (high - low) * (epoch - cycle.start) / max(len(cycle) - 1, 1)

    def by_step(step: int, epoch: int) -> float:
        if step < warmup_steps:
            return high * (step + 1) / warmup_steps
        share = (step - warmup_steps) / max(total_steps - warmup_steps - 1, 1)
        return low + (high - low) * SHAPES[train.schedule.name](min(share, 1.0))

    return by_epoch if train.schedule.name == "cycles" else by_step


def with_early_decay(schedule: Schedule, begin: int, steps: int, final: float) -> Schedule:
    """Follow the schedule until step `begin`, then fall to the final rate over so many steps."""
    high = schedule(begin, 0)

    def rate(step: int, epoch: int) -> float:
        if step < begin:
            return schedule(step, epoch)
        share = min(1.0, (step - begin + 1) / steps)
        return high + (final - high) * share

    return rate


def final_rate(train: TrainSection, learning_rate: float) -> float:
    """The rate at the end of the schedule, whose highest rate is given.

    Without one in the recipe it is 0; in cycles, whose last epoch would train nothing then, a tenth of the highest.
    """
    if train.final_learning_rate is not None:
        return train.final_learning_rate
    return learning_rate / 10 if train.schedule.name == "cycles" else 0.0


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set every group's rate to `rate` times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["factor"]


def parameter_groups(module: nn.Module, train: TrainSection) -> dict[float, list[nn.Parameter]]:
    """The trained parameters by the factor of their learning rate: of the first key with which the name starts."""
    with about("train.learning_rate_factors"):
        _refuse_unused(train.learning_rate_factors, module)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trained_parameters(module, train).items():
        factors = [factor for key, factor in train.learning_rate_factors.items() if name.startswith(key)]
        groups.setdefault(factors[0] if factors else 1.0, []).append(parameter)
    return groups


def trained_parameters(module: nn.Module, train: TrainSection) -> dict[str, nn.Parameter]:
    """The parameters that `trainable` names, all by default; never those that are frozen already."""
    with about("train.trainable"):
        _refuse_unused(train.trainable or (), module)
    prefixes = ("",) if train.trainable is None else tuple(train.trainable)  # every name starts with ""
    return {name: p for name, p in module.named_parameters() if p.requires_grad and name.startswith(prefixes)}


def freeze_others(module: nn.Module, train: TrainSection) -> None:
    """Freeze all other parameters; modules below the first trained parameter run without a graph."""
    trained = trained_parameters(module, train)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in trained)


def _refuse_unused(prefixes: Iterable[str], module: nn.Module) -> None:
    """DistilvecError for a prefix with which no parameter's name starts; lists the first parts of the names."""
    names = [name for name, _ in module.named_parameters()]
    for prefix in prefixes:
        if any(name.startswith(prefix) for name in names):
            continue
        beginnings: set[str] = set()  # every prefix of whole words
        examples: set[str] = set()
        for name in names:
            words = name.split(".")
            beginnings.update(".".join(words[:count]) for count in range(1, len(words)))
            examples.add(".".join(words[:3] if words[0] == "encoder" else words[:2]))
        hint = nearest(prefix, beginnings) or "."
        listed = ", ".join(sorted(examples))
        raise DistilvecError(f"no parameter's name starts with '{prefix}'{hint} Names start with {listed}.")


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as tensors named `<parameter>|<entry>`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    tensors = {}
    for parameter, state in optimizer.state.items():
        for entry, value in state.items():
            tensors[f"{names[parameter]}|{entry}"] = value
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Restore the tensors of `optimizer_tensors`; ValueError for a tensor that fits no parameter."""
    parameters = dict(module.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("|")
        parameter = parameters.get(name)
        if parameter is None or (entry != "step" and value.shape != parameter.shape):
            raise ValueError(f"no parameter for the optimizer's {key}, {list(value.shape)}")
        if entry == "step":  # a fused optimizer counts steps where the parameter is
            optimizer.state[parameter][entry] = value.to(parameter.device, copy=True)
        else:
            optimizer.state[parameter][entry] = like(value, parameter)
