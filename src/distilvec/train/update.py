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
from distilvec.train.sharding import clip_gradients, local_part

# losses and sources of all rows of a step -> weights of the rows
RowWeights = Callable[[Float[Tensor, " rows"], Int[Tensor, " rows"]], Float[Tensor, " rows"]]


class Gradients(Protocol):
    """Adds the step's gradients to the parameters and returns its terms, detached."""

    def __call__(self, masks: int = 0, is_last: bool = True, row_weights: RowWeights | None = None) -> LossTerms:
        """One pass over the step's micro-batches, of all processes together.

        Args:
            masks: number of the dropout masks; the same number gives the same masks.
            is_last: no further pass of this step follows.
            row_weights: turns the losses and sources of all rows of the step into the rows' weights; default 1 / rows.
        """


class Update:
    """Plain steps, SAM, ASAM and DISAM (TALAS, algorithm 1).

    - plain: one pass, then the optimizer.
    - SAM: the gradient is taken rho g / ||g|| uphill (appendix B, eq. 9), the step from the original weights.
    - ASAM: rho T^2 g / ||T g|| uphill with T = |w| (Kwon et al., 2021).
    - DISAM: as SAM, but up the mean loss less `variance` times the variance of the sources' losses (eq. 10 to 12, by
      `source_balance`).

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
        self.section = section
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self.allows = allows
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.row_weights = source_balance(section.variance) if section.name == "disam" else None
        # Token tables whose gradients are sparse in the first pass. Those of several processes are averaged, which
        # needs dense ones; on a GPU a pass over a whole table costs nothing.
        self.tables: list[nn.Embedding] = []
        if processes.world_size() == 1:
            embeddings = [layer for layer in module.modules() if isinstance(layer, nn.Embedding)]
            self.tables = [layer for layer in embeddings if layer.weight.device.type == "cpu"]

    def step(self, gradients: Gradients, number: int) -> LossTerms:
        """Optimizer step `number` (from 0) of the run; returns the terms of the first pass."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.section.name == "plain" or number % self.section.every:
            passes = [gradients()]
        else:
            # Algorithm 1: the gradient g at w, up to w + epsilon(g), the gradient there, and back to w to the bit. The
            # optimizer then steps from w. Nothing between the two passes may change the weights or draw random numbers.
            with sparse_gradients(self.tables):
                passes = [gradients(is_last=False, row_weights=self.row_weights)]
            with self._uphill():
                self.optimizer.zero_grad(set_to_none=True)
                passes.append(gradients(masks=0 if self.section.replay_dropout else 1))
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
        """Move the weights by their gradients, which are used up; restore the weights at the end, to the bit."""
        parts = [_MovedPart(name, p) for name, p in self.parameters.items() if p.grad is not None]
        if not parts:
            yield
            return
        # The norm adds the parts up in this order; in another one it would round to another number
        parts.sort(key=lambda part: part.rows is not None)
        weights = [part.weights for part in parts]
        originals = [weight.clone() for weight in weights]
        ascend_(weights, [part.gradient for part in parts], self.section.radius, self._scales(parts))
        for part in parts:
            part.write()
        try:
            yield
        finally:
            # The copies, not w + epsilon - epsilon, which rounds. Also after an error in the second pass: a checkpoint
            # or a report may still be written.
            torch._foreach_copy_(weights, originals)
            for part in parts:
                part.write()

    def _scales(self, parts: list[_MovedPart]) -> list[Tensor] | None:
        """Return T of these parts; None if T is 1 throughout."""
        if self.section.name != "asam":
            return None
        eta = self.section.eta
        if eta is None:
            return [part.weights.abs() for part in parts]
        return [
            part.weights.abs().add_(eta) if "weight" in part.name else torch.ones_like(part.weights) for part in parts
        ]


class _MovedPart:
    """What of a parameter moves uphill: the whole of it, or those rows of a token table that the step's texts use.

    The other rows have no gradient, and a pass over all rows would cost more than the rest of the network. `weights`
    are the parameter itself, or a copy of its `rows`, which `write` puts back.
    """

    def __init__(self, name: str, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        self.name = name
        self.parameter = parameter.detach()
        self.gradient = parameter.grad
        self.rows: Tensor | None = None
        self.weights = self.parameter
        if self.gradient.is_sparse:
            gradient = self.gradient.coalesce()  # a token that occurs twice has one row
            self.rows = gradient.indices()[0]
            self.gradient = gradient.values()
            self.weights = self.parameter[self.rows]

    def write(self) -> None:
        """Give the parameter the values of `weights`."""
        if self.rows is not None:
            self.parameter.index_copy_(0, self.rows, self.weights)


@contextmanager
def sparse_gradients(tables: list[nn.Embedding]) -> Iterator[None]:
    """Make the gradients of these tables hold the used rows only; a table with a second use still gets a dense one."""
    settings = [table.sparse for table in tables]
    for table in tables:
        table.sparse = True
    try:
        yield
    finally:
        for table, sparse in zip(tables, settings, strict=True):
            table.sparse = sparse


def ascend_(w: list[Tensor], g: list[Tensor], rho: float, t: list[Tensor] | None = None) -> None:
    """Add epsilon = rho T^2 g / ||T g|| to the weights w in place (ASAM; TALAS, eq. 2). T = 1 is SAM's (eq. 9).

    w, g, t: a tensor for each parameter, the weights, their gradients and T; the norm is over all of them together.
    Uses the gradients up. Gradients of zero move nothing. The length stays on the device, so no step waits for it.
    """
    # In place throughout: at this moment the gradients, the weights and their copies are in memory already.
    if t is not None:
        torch._foreach_mul_(g, t)  # T g
    length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))
    torch._foreach_mul_(g, rho / (length + 1e-12))  # rho T g / ||T g||
    if t is None:
        torch._foreach_add_(w, g)
    else:
        torch._foreach_addcmul_(w, t, g)


def source_balance(variance: float) -> RowWeights:
    """Return a function to the row weights of DISAM, from the losses and sources of a step's rows.

    DISAM goes up the loss mean(L) - v Var(L_1, ..., L_M), where L_d is the mean loss of source d (TALAS, eq. 10 to 12:
    the double sum over 2 M^2 is the population variance of M sources). Its gradient is a weighted sum of the rows'
    gradients. With N rows, n of them of source d, the weight is 1/N - v 2/M (L_d - mean of all L_d) / n. So the rows of
    a step may come in several micro-batches, and no step waits for the device.
    """

    def row_weights(losses: Float[Tensor, " rows"], sources: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
        is_same_source = (sources[:, None] == sources).to(losses.dtype)
        rows = is_same_source.sum(1)  # n, of each row's source
        source_means = is_same_source @ losses / rows
        source_count = (1 / rows).sum()  # M
        deviations = source_means - (source_means / rows).sum() / source_count
        return 1 / len(losses) - variance * 2 / source_count * deviations / rows

    return row_weights


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
        if deferred is None:
            deferred = accelerator.device.type == "cuda" and isinstance(optimizer, torch.optim.AdamW)
        self.deferred = deferred
        self.failed = torch.zeros((), device=accelerator.device)  # 1 from the first failed step on
        self.failed_step: int | None = None  # from 1; `problem` sets it
        self.unread: list[tuple[int, LossTerms]] = []  # step (from 1) and terms of all passes since the flag was read
        if self.deferred:
            optimizer.found_inf = self.failed  # type: ignore[attr-defined]

    def allows(self, number: int, passes: list[LossTerms]) -> bool:
        """Return whether to call the optimizer in step `number` (from 0); always if the device decides itself."""
        self.unread += [(number + 1, terms) for terms in passes]
        is_finite = torch.stack([values.sum().isfinite() for terms in passes for values in terms.values()])
        failed = 1 - is_finite.all().float()
        # In place: the optimizer holds this very tensor as its `found_inf`
        self.failed.copy_(torch.maximum(self.failed, failed))
        return self.deferred or not self.failed

    def problem(self) -> str | None:
        """Describe the first failed step; None if all steps were finite. Waits for the device."""
        unread = self.unread
        self.unread = []
        if not self.failed:
            return None
        for step, terms in unread:
            means = {name: float(values.float().mean()) for name, values in terms.items()}
            if not np.isfinite([*means.values()]).all():
                self.failed_step = step
                loss = sum(means.values())  # nan or inf
                listed = ", ".join(f"{name} {mean:.4g}" for name, mean in means.items())
                return f"loss is {loss} at step {step} (terms: {listed})"
        return "loss is not finite"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether every number that this process holds is finite. A finite sum proves it at less cost."""
    parts = [local_part(tensor).detach() for tensor in tensors]
    if not parts:
        return True
    sums = torch.stack([part.sum(dtype=torch.float32) for part in parts])
    if bool(sums.isfinite().all()):
        return True
    return all(bool(part.isfinite().all()) for part in parts)  # a sum of finite numbers may overflow
