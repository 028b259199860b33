"""How a step changes the weights. One closure runs all micro-batches of a step, so a rule may call it twice (SAM)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from distilvec.objective import Terms

Gradients = Callable[[], Terms]  # adds the step's gradients to the parameters and returns its terms, detached


class Update(Protocol):
    """An update rule."""

    def step(self, gradients: Gradients) -> Terms:
        """One optimiser step; the terms are those of the first pass."""
        ...


class Plain:
    """Gradients, clipping, optimiser step."""

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module, max_grad_norm: float | None) -> None:
        self.optimizer = optimizer
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.max_grad_norm = max_grad_norm

    def step(self, gradients: Gradients) -> Terms:
        """One pass, then the optimiser."""
        self.optimizer.zero_grad(set_to_none=True)
        terms = gradients()
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()
        return terms


UPDATES = {"plain": Plain}
