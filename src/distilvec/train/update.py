"""How a step changes the weights. One closure runs all micro-batches of a step, so a rule may call it twice (SAM)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from distilvec.config.training import UpdateSection
from distilvec.core.objective import LossTerms

Weigh = Callable[[Float[Tensor, " rows"], Int[Tensor, " rows"]], Float[Tensor, " rows"]]


class Gradients(Protocol):
    """Adds the step's gradients to the parameters and returns its terms, detached.

    `draw` numbers the dropout masks: the same number, the same masks. `sync` off leaves the gradients of several processes
    apart. `weigh` turns the losses and sources of all rows of the step into the rows' weights, which are else 1 / rows.
    """

    def __call__(self, draw: int = 0, sync: bool = True, weigh: Weigh | None = None) -> LossTerms:
        """One pass over the step's micro-batches."""
        ...


class Update(Protocol):
    """An update rule. It holds nothing from one step to the next, so that a resumed run goes on exactly."""

    def step(self, gradients: Gradients, number: int) -> LossTerms:
        """Optimiser step `number` (from 0) of the run; the terms are those of the first pass."""
        ...


class Plain:
    """Gradients, clipping, optimiser step."""

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module, max_grad_norm: float | None) -> None:
        self.optimizer = optimizer
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.max_grad_norm = max_grad_norm

    def step(self, gradients: Gradients, number: int) -> LossTerms:
        """One pass, then the optimiser."""
        self.optimizer.zero_grad(set_to_none=True)
        terms = gradients()
        self.descend()
        return terms

    def descend(self) -> None:
        """Clip the gradients and let the optimiser take its step."""
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.max_grad_norm)
        self.optimizer.step()


class SharpnessAware:
    """SAM, ASAM and DISAM: the gradient is taken a little uphill, the step from where the weights were (TALAS, algorithm 1).

    SAM goes rho g / ||g|| uphill (appendix B, eq. 9), ASAM rho T^2 g / ||T g|| (Kwon et al., 2021) with T = |w|; DISAM goes
    SAM's way, up the mean loss less `variance` times the variance of the sources' losses (eq. 10). All descend by the mean
    loss. Parameters without a gradient stay where they are. With several processes each goes uphill by its own share of the
    step, and the variance is over the sources of that share; the descent is shared as in any step.

    Note: T = |w| scales all parameters, biases too, as in the authors' code. With `eta` it is |w| + eta for those that are
    called "weight" and 1 for others, the form of the ASAM paper's code.
    """

    def __init__(self, plain: Plain, module: nn.Module, section: UpdateSection) -> None:
        self.plain, self.section = plain, section
        self.weigh = source_balance(section.variance) if section.name == "disam" else None
        self.tables = [
            layer for layer in module.modules() if isinstance(layer, nn.Embedding) and layer.weight.device.type == "cpu"
        ]

    def step(self, gradients: Gradients, number: int) -> LossTerms:
        """Two passes, then the optimiser; a plain step where it is not this step's turn."""
        if number % self.section.every:
            return self.plain.step(gradients, number)
        self.plain.optimizer.zero_grad(set_to_none=True)
        with sparse_gradients(self.tables):
            terms = gradients(sync=False, weigh=self.weigh)
        with self._uphill():
            self.plain.optimizer.zero_grad(set_to_none=True)
            gradients(draw=0 if self.section.replay_dropout else 1)
        self.plain.descend()
        return terms

    @contextmanager
    def _uphill(self) -> Iterator[None]:
        """Move the weights by their gradients, which are used up; at the end they are what they were, to the bit.

        On a processor only those rows of a token table move that the step's texts use: the others have no gradient, and
        passing over all of them would cost more than the rest of the network.
        """
        moved = {name: (p.detach(), p.grad) for name, p in self.plain.parameters.items() if p.grad is not None}
        if not moved:
            yield
            return
        used = {name: gradient.coalesce() for name, (_, gradient) in moved.items() if gradient.is_sparse}
        rows = {name: gradient.indices()[0] for name, gradient in used.items()}
        whole = [name for name in moved if name not in rows]
        weights = [moved[name][0] for name in whole] + [moved[name][0][rows[name]] for name in rows]
        gradients = [moved[name][1] for name in whole] + [gradient.values() for gradient in used.values()]
        kept = [weight.clone() for weight in weights]
        ascend_(weights, gradients, self.section.radius, self._sizes([*whole, *rows], weights))
        for name, part in zip(rows, weights[len(whole) :], strict=True):
            moved[name][0].index_copy_(0, rows[name], part)
        try:
            yield
        finally:
            torch._foreach_copy_(weights, kept)
            for name, part in zip(rows, weights[len(whole) :], strict=True):
                moved[name][0].index_copy_(0, rows[name], part)

    def _sizes(self, names: list[str], weights: list[Tensor]) -> list[Tensor] | None:
        """T of these weights, up to signs, which do not matter to it; None where it is 1 throughout."""
        eta = self.section.eta
        if self.section.name != "asam":
            return None
        if eta is None:
            return weights
        return [
            w.abs().add_(eta) if "weight" in name else torch.ones_like(w)
            for name, w in zip(names, weights, strict=True)
        ]


@contextmanager
def sparse_gradients(tables: list[nn.Embedding]) -> Iterator[None]:
    """Gradients of these tables hold the used rows only (a table that is used elsewhere as well gets a dense one all the same)."""
    before = [table.sparse for table in tables]
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table, sparse in zip(tables, before, strict=True):
            table.sparse = sparse


def ascend_(weights: list[Tensor], gradients: list[Tensor], rho: float, sizes: list[Tensor] | None) -> None:
    """Add rho T^2 g / ||T g|| to the weights in place, the norm over all of them; T = `sizes`, or 1. Uses the gradients up.

    No gradient at all moves nothing. The length never leaves the device, so no step waits for it.
    """
    if sizes is not None:
        torch._foreach_mul_(gradients, sizes)
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, rho / (length + 1e-12))
    if sizes is None:
        torch._foreach_add_(weights, gradients)
    else:
        torch._foreach_addcmul_(weights, sizes, gradients)


def source_balance(variance: float) -> Weigh:
    """Row weights whose gradient is that of mean loss - `variance` x population variance of the sources' mean losses.

    With N rows, n of them of source d, and M sources, d(mean - v Var)/d(loss of a row) = 1/N - v 2/M (L_d - mean of L) / n
    (DISAM; TALAS, eq. 10-12: the double sum over 2 M^2 is the population variance).
    """

    def weigh(losses: Float[Tensor, " rows"], sources: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        same = (sources[:, None] == sources).to(losses.dtype)
        rows = same.sum(1)
        of_source = same @ losses / rows
        count = (1 / rows).sum()
        deviation = of_source - (of_source / rows).sum() / count
        return 1 / len(losses) - variance * 2 / count * deviation / rows

    return weigh


def build_update(
    section: UpdateSection, optimizer: torch.optim.Optimizer, module: nn.Module, max_grad_norm: float | None
) -> Update:
    """The recipe's update rule."""
    plain = Plain(optimizer, module, max_grad_norm)
    return plain if section.name == "plain" else SharpnessAware(plain, module, section)
