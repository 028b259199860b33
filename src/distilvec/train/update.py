"""Update rules: how a step changes the weights, with one closure for the gradients of all its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor, nn

from distilvec.config.training import UpdateSection
from distilvec.core import processes
from distilvec.core.objective import LossTerms
from distilvec.train.sharding import clip_gradients, own_part

Weigh = Callable[[Float[Tensor, " rows"], Int[Tensor, " rows"]], Float[Tensor, " rows"]]


class Gradients(Protocol):
    """Adds the step's gradients to the parameters and returns its terms, detached."""

    def __call__(self, draw: int = 0, last: bool = True, weigh: Weigh | None = None) -> LossTerms:
        """One pass over the step's micro-batches, of all processes together.

        Args:
            draw: number of the dropout masks; the same number gives the same masks.
            last: no further pass of this step follows.
            weigh: turns the losses and sources of all rows of the step into the rows' weights; default 1 / rows.
        """


class Update:
    """Plain steps, SAM, ASAM and DISAM (TALAS, algorithm 1).

    - plain: one pass, then the optimizer.
    - SAM: the gradient is taken rho g / ||g|| uphill (appendix B, eq. 9), the step from the original weights.
    - ASAM: rho T^2 g / ||T g|| uphill with T = |w| (Kwon et al., 2021).
    - DISAM: as SAM, but up the mean loss less `variance` times the variance of the sources' losses (`disam_loss`).

    All descend by the mean loss. Parameters without a gradient do not move.
    A rule keeps nothing from one step to the next, so that a resumed run is exact.

    Args:
        max_grad_norm: gradients are clipped to this norm; None: not at all.
        allows: whether to call the optimizer, from the step and the terms of its passes (`FiniteGuard`).

    Note: T = |w| scales all parameters, biases too, as in the authors' code. With `eta` it is |w| + eta for parameters
    called "weight" and 1 for others, the form of the ASAM paper's code.
    """

    def __init__(
        self,
        section: UpdateSection,
        optimizer: torch.optim.Optimizer,
        module: nn.Module,
        max_grad_norm: float | None = None,
        allows: Callable[[int, list[LossTerms]], bool] = lambda number, passes: True,
    ) -> None:
        self.section, self.optimizer, self.max_grad_norm, self.allows = section, optimizer, max_grad_norm, allows
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.weigh = source_balance(section.variance) if section.name == "disam" else None
        embeddings = [layer for layer in module.modules() if isinstance(layer, nn.Embedding)]
        alone = processes.world_size() == 1  # the gradients of several processes are averaged, which needs dense ones
        self.tables = [layer for layer in embeddings if alone and layer.weight.device.type == "cpu"]

    def step(self, gradients: Gradients, number: int) -> LossTerms:
        """Optimizer step `number` (from 0) of the run; returns the terms of the first pass."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.section.name == "plain" or number % self.section.every:
            passes = [gradients()]
        else:
            with sparse_gradients(self.tables):
                passes = [gradients(last=False, weigh=self.weigh)]
            with self._uphill():
                self.optimizer.zero_grad(set_to_none=True)
                passes.append(gradients(draw=0 if self.section.replay_dropout else 1))
        self.descend(number, passes)
        return passes[0]

    def descend(self, number: int, passes: list[LossTerms]) -> None:
        """Clip the gradients and take the optimizer's step, if the terms and the gradients' norm are finite."""
        if self.max_grad_norm is not None:
            norm = clip_gradients(self.parameters.values(), self.max_grad_norm)
            passes = [*passes, {"gradient_norm": norm}]
        if self.allows(number, passes):
            self.optimizer.step()

    @contextmanager
    def _uphill(self) -> Iterator[None]:
        """Move the weights by their gradients, which are used up; restore the weights at the end, to the bit.

        On a CPU only those rows of a token table move that the step's texts use: the others have no gradient, and
        a pass over all rows would cost more than the rest of the network.
        """
        moved = {name: (p.detach(), p.grad) for name, p in self.parameters.items() if p.grad is not None}
        if not moved:
            yield
            return
        used = {name: gradient.coalesce() for name, (_, gradient) in moved.items() if gradient.is_sparse}
        rows = {name: gradient.indices()[0] for name, gradient in used.items()}
        whole = [name for name in moved if name not in rows]
        weights = [moved[name][0] for name in whole] + [moved[name][0][rows[name]] for name in rows]
        gradients = [moved[name][1] for name in whole] + [gradient.values() for gradient in used.values()]
        kept = [weight.clone() for weight in weights]

        def write_rows() -> None:
            for name, part in zip(rows, weights[len(whole) :], strict=True):
                moved[name][0].index_copy_(0, rows[name], part)

        ascend_(weights, gradients, self.section.radius, self._sizes([*whole, *rows], weights))
        write_rows()
        try:
            yield
        finally:
            torch._foreach_copy_(weights, kept)
            write_rows()

    def _sizes(self, names: list[str], weights: list[Tensor]) -> list[Tensor] | None:
        """T of these weights, up to signs; None if T is 1 throughout."""
        eta = self.section.eta
        if self.section.name != "asam" or eta is None:
            return weights if self.section.name == "asam" else None
        named = zip(names, weights, strict=True)
        return [w.abs().add_(eta) if "weight" in name else torch.ones_like(w) for name, w in named]


@contextmanager
def sparse_gradients(tables: list[nn.Embedding]) -> Iterator[None]:
    """Make the gradients of these tables hold the used rows only; a table with a second use still gets a dense one."""
    before = [table.sparse for table in tables]
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table, sparse in zip(tables, before, strict=True):
            table.sparse = sparse


def ascend_(weights: list[Tensor], gradients: list[Tensor], rho: float, sizes: list[Tensor] | None) -> None:
    """Add rho T^2 g / ||T g|| to the weights in place, the norm over all of them; T = `sizes`, or 1.

    Uses the gradients up. Gradients of zero move nothing. The length stays on the device, so no step waits for it.
    """
    if sizes is not None:
        torch._foreach_mul_(gradients, sizes)
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, rho / (length + 1e-12))
    if sizes is None:
        torch._foreach_add_(weights, gradients)
    else:
        torch._foreach_addcmul_(weights, sizes, gradients)


def disam_loss(losses: Float[Tensor, " rows"], sources: Int[Tensor, " rows"], variance: float) -> Float[Tensor, ""]:
    """Mean loss - `variance` x population variance of the sources' mean losses: the reference of `source_balance`.

    (DISAM; TALAS, eq. 10-12: the double sum over 2 M^2 is the population variance of M sources.)
    """
    means = torch.stack([losses[sources == source].mean() for source in torch.unique(sources)])
    return losses.mean() - variance * means.var(correction=0)


def source_balance(variance: float) -> Weigh:
    """Row weights equal to the gradient of `disam_loss`, without waiting for the device.

    With N rows, n of them of source d, and M sources: the weight is 1/N - v 2/M (L_d - mean of all L_d) / n.
    """

    def weigh(losses: Float[Tensor, " rows"], sources: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        same = (sources[:, None] == sources).to(losses.dtype)
        rows = same.sum(1)
        of_source = same @ losses / rows
        count = (1 / rows).sum()
        deviation = of_source - (of_source / rows).sum() / count
        return 1 / len(losses) - variance * 2 / count * deviation / rows

    return weigh


# -- finite numbers only -----------------------------------------------------------------------------------------------


class FiniteGuard:
    """Refuses the optimizer's step from the first loss or gradient norm on that is not finite.

    The weights stay those of the step before.

    - CUDA: reading a loss would make every step wait for the device. The fused AdamW gets `failed` as its `found_inf`
      (the flag of torch.amp.GradScaler) and skips the update on the device. The flag stays 1, so all later steps
      are skipped too. `problem` reads the flag at logged lines, validations and checkpoints.
    - Other devices, and Muon: every step reads the flag, and the optimizer is not called.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, accelerator: Accelerator, deferred: bool | None = None
    ) -> None:
        self.accelerator = accelerator
        knows_flag = accelerator.device.type == "cuda" and isinstance(optimizer, torch.optim.AdamW)
        self.deferred = knows_flag if deferred is None else deferred
        self.failed = torch.zeros((), device=accelerator.device)  # 1 from the first failed step on
        self.unread: list[tuple[int, LossTerms]] = []  # step (from 1) and terms of all passes since the flag was read
        if self.deferred:
            optimizer.found_inf = self.failed  # type: ignore[attr-defined]

    def allows(self, number: int, passes: list[LossTerms]) -> bool:
        """Return whether to call the optimizer in step `number` (from 0); always if the device decides itself."""
        self.unread += [(number + 1, terms) for terms in passes]
        finite = torch.stack([values.sum().isfinite() for terms in passes for values in terms.values()])
        failed = 1 - finite.all().float()
        self.failed.copy_(torch.maximum(self.failed, failed))
        return self.deferred or not self.failed

    def problem(self) -> str | None:
        """Describe the first failed step; None if all steps were finite. Waits for the device."""
        unread, self.unread = self.unread, []
        if not self.failed:
            return None
        for step, terms in unread:
            means = {name: float(values.float().mean()) for name, values in terms.items()}
            if not np.isfinite([*means.values()]).all():
                worst = sum(means.values())  # nan or inf
                return f"loss is {worst} at step {step} (terms: {', '.join(f'{n} {m:.4g}' for n, m in means.items())})"
        return "loss is not finite"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether every number that this process holds is finite. A finite sum proves it at a tenth of the cost."""
    several = [own_part(tensor).detach() for tensor in tensors]
    if not several or bool(torch.stack([tensor.sum(dtype=torch.float32) for tensor in several]).isfinite().all()):
        return True
    return all(bool(tensor.isfinite().all()) for tensor in several)
