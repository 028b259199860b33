"""Entropy-regularised optimal transport (Cuturi 2013) of a batch: Sinkhorn's iterations; marginals are 0 at padding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from distilvec.losses.tokens import NO_WEIGHT

Cost = Float[Tensor, "batch student teacher"]
Nu = Float[Tensor, "batch student"]
Mu = Float[Tensor, "batch teacher"]

# For costs in [0, 1] in fp32: exp(-1 / 0.02) = 2e-22 is a number, but its square, by which the gradient through the
# iterations divides, is not.
SMALLEST_KERNEL_EPSILON = 0.02
SMALLEST_UNROLLED_EPSILON = 0.05
ITERATIONS_PER_CHECK = 10


def transport_cost(
    cost: Cost,
    nu: Nu,
    mu: Mu,
    unroll: bool = False,
    epsilon: float = 0.1,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> Float[Tensor, " batch"]:
    """Return <T, C> of the plan T (EMO, eq. 20 and 21).

    The gradient for C is T, as if T were fixed; with `unroll` also that through the iterations.
    """
    with torch.set_grad_enabled(unroll and torch.is_grad_enabled()):
        plan = transport_plan(cost, nu, mu, epsilon, iterations, tolerance)
    return (plan * cost).sum((1, 2))


def transport_plan(
    cost: Cost,
    nu: Nu,
    mu: Mu,
    epsilon: float = 0.1,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> Cost:
    """Return the T of least <T, C> - epsilon H(T) with row sums `nu` and column sums `mu` (EMO, eq. 19).

    - Tokens with marginal 0 (padding) neither send nor receive; their costs must be finite.
    - A problem is finished when its columns miss `mu` by at most `tolerance` in all, checked every 10 iterations. Its
      plan is that of the check, so no problem depends on the others of the batch. The loop ends early on a CPU only:
      other devices would have to wait.
    - Costs should be in [0, 1]: for those, an `epsilon` at which exp(-C / epsilon), or its square in the unrolled
      gradient, could vanish in fp32 is solved in logarithms.
    """
    unrolled = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (cost, nu, mu))
    smallest_epsilon = SMALLEST_UNROLLED_EPSILON if unrolled else SMALLEST_KERNEL_EPSILON
    in_logarithms = epsilon < smallest_epsilon
    solve = _log_plan if in_logarithms else _kernel_plan

    # A text without mass on either side gets uniform marginals, so that nothing is divided by 0, and no plan at the end
    has_mass = nu.any(1, keepdim=True) & mu.any(1, keepdim=True)
    nu = nu.where(has_mass, 1 / max(1, nu.shape[1]))
    mu = mu.where(has_mass, 1 / max(1, mu.shape[1]))
    return solve(cost / -epsilon, nu, mu, iterations, tolerance) * has_mass[..., None]


def _kernel_plan(exponents: Cost, nu: Nu, mu: Mu, iterations: int, tolerance: float) -> Cost:
    """Return diag(u) K diag(v) with K = exp(-C / epsilon)."""
    kernel = exponents.exp()
    transposed = kernel.mT.contiguous()  # a product from the left is faster than one from the right
    nu, mu = nu[:, None], mu[:, None]
    u, v = _iterate(
        (nu > 0).to(kernel.dtype),
        lambda u: mu / torch.bmm(u, kernel),
        lambda v: nu / torch.bmm(v, transposed),
        lambda u, v: v * torch.bmm(u, kernel) - mu,
        iterations,
        tolerance,
    )
    return u.mT * kernel * v


def _log_plan(exponents: Cost, nu: Nu, mu: Mu, iterations: int, tolerance: float) -> Cost:
    """Return the same plan, with log u, log v and log K throughout."""
    log_nu = _log(nu[..., None])
    log_mu = _log(mu[:, None])
    u, v = _iterate(
        torch.zeros_like(log_nu).where(log_nu > NO_WEIGHT, NO_WEIGHT),
        lambda u: log_mu - (exponents + u).logsumexp(1, keepdim=True),
        lambda v: log_nu - (exponents + v).logsumexp(2, keepdim=True),
        lambda u, v: (v + (exponents + u).logsumexp(1, keepdim=True)).exp() - mu[:, None],
        iterations,
        tolerance,
    )
    both_have_mass = (nu > 0)[..., None] & (mu > 0)[:, None]
    return (exponents + u + v).where(both_have_mass, NO_WEIGHT).exp()


def _log(marginal: Tensor) -> Tensor:
    return marginal.where(marginal > 0, 1.0).log().where(marginal > 0, NO_WEIGHT)


def _iterate(
    u: Tensor,
    scale_columns: Callable[[Tensor], Tensor],
    scale_rows: Callable[[Tensor], Tensor],
    gaps: Callable[[Tensor, Tensor], Tensor],
    iterations: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Scale columns and rows in turn, v from u and u from v; a finished problem no longer changes.

    `gaps` are what the columns miss of their marginal.
    """
    v = scale_columns(u)
    u = scale_rows(v)
    is_moving = torch.ones(len(u), 1, 1, dtype=torch.bool, device=u.device)
    for iteration in range(1, iterations, ITERATIONS_PER_CHECK):
        u_before, v_before = u, v
        for _ in range(min(ITERATIONS_PER_CHECK, iterations - iteration)):
            v = scale_columns(u)
            u = scale_rows(v)
        u = u.where(is_moving, u_before)
        v = v.where(is_moving, v_before)
        with torch.no_grad():
            is_moving = gaps(u, v).abs().sum(2, keepdim=True) > tolerance
        # Only a CPU reads the result: any other device would have to wait for it (tests/methods/test_no_sync.py)
        if is_moving.device.type == "cpu" and not is_moving.numpy().any():
            break
    return u, v
