"""Entropy-regularised optimal transport (Cuturi 2013) of a batch at once: Sinkhorn's iterations with masses 0 at padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Domain = Literal["auto", "kernel", "log"]
Cost = Float[Tensor, "batch student teacher"]
StudentMasses = Float[Tensor, "batch student"]
TeacherMasses = Float[Tensor, "batch teacher"]
Scaling = Callable[[Tensor], Tensor]

# of costs in [0, 1], in fp32: exp(-1 / 0.02) = 2e-22 is still a number, but not its square, by which the gradient divides
SMALLEST_KERNEL_EPSILON = 0.02
SMALLEST_UNROLLED_EPSILON = 0.05
NOTHING = -1e9  # the logarithm of no mass: finite, so that it is never subtracted from itself to NaN
BETWEEN_CHECKS = 10  # iterations


def emo_cost(
    student: Float[Tensor, "batch student width"],
    teacher: Float[Tensor, "batch teacher width"],
    teacher_mask: Bool[Tensor, "batch teacher"],
) -> Cost:
    """1 - softmax of <student, teacher> / sqrt(width) over the teacher's tokens (EMO, eq. 17 and 18); 1 at its padding.

    `teacher` are hidden states in the student's width.
    """
    student, teacher = student.float(), teacher.float()
    bias = torch.zeros((), device=teacher.device).where(teacher_mask, NOTHING)[:, None]
    return 1 - torch.baddbmm(bias, student, teacher.mT, alpha=student.shape[-1] ** -0.5).softmax(-1)


class Settings(TypedDict, total=False):
    """Those of `transport_plan`, which has their defaults."""

    epsilon: float
    iterations: int
    tolerance: float
    domain: Domain


def transport_cost(
    cost: Cost, nu: StudentMasses, mu: TeacherMasses, unroll: bool = False, **settings: Unpack[Settings]
) -> Float[Tensor, " batch"]:
    """<T, C> of the plan T (EMO, eq. 20). The gradient is T itself, as if T were fixed; with `unroll` also through the iterations."""
    with torch.set_grad_enabled(unroll and torch.is_grad_enabled()):
        plan = transport_plan(cost, nu, mu, **settings)
    return (plan * cost).sum((1, 2))


def transport_plan(
    cost: Cost,
    nu: StudentMasses,
    mu: TeacherMasses,
    epsilon: float = 0.1,
    iterations: int = 100,
    tolerance: float = 1e-6,
    domain: Domain = "auto",
) -> Cost:
    """The T of least <T, C> - epsilon H(T) whose rows sum to `nu` and columns to `mu` (EMO, eq. 19, epsilon = 1 / lambda).

    Tokens of mass 0 (padding) neither send nor receive; their costs must be finite. A problem is finished when its columns miss
    `mu` by no more than `tolerance` in all, seen every 10 iterations, or after `iterations`; it keeps the plan that it has then, so no
    problem's plan depends on its company. The loop ends early when all are finished, on a processor only: another device
    would have to be waited for, and runs on for nothing instead. "auto" takes logarithms where the kernel exp(-C / epsilon) of
    costs in [0, 1] could vanish in fp32, or, where gradients go through the iterations, its square could; give "log" for larger costs.
    """
    unrolled = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (cost, nu, mu))
    smallest = SMALLEST_UNROLLED_EPSILON if unrolled else SMALLEST_KERNEL_EPSILON
    logarithms = domain == "log" or (domain == "auto" and epsilon < smallest)
    solve = _log_plan if logarithms else _kernel_plan
    there = nu.any(1, keepdim=True) & mu.any(
        1, keepdim=True
    )  # where one side has no mass: equal ones for the time being
    nu, mu = (masses.where(there, 1 / max(1, masses.shape[1])) for masses in (nu, mu))
    return solve(cost / -epsilon, nu, mu, iterations, tolerance) * there[..., None]


def _kernel_plan(exponents: Cost, nu: StudentMasses, mu: TeacherMasses, iterations: int, tolerance: float) -> Cost:
    kernel = exponents.exp()
    turned = kernel.mT.contiguous()  # a product from the left is faster than one from the right
    sent, wanted = nu[:, None], mu[:, None]

    def column_scale(rows: Tensor) -> Tensor:
        return wanted / torch.bmm(rows, kernel)

    def row_scale(columns: Tensor) -> Tensor:
        return sent / torch.bmm(columns, turned)

    def miss(rows: Tensor, columns: Tensor) -> Tensor:
        return (columns * torch.bmm(rows, kernel) - wanted).abs().sum(2, keepdim=True)

    rows, columns = _iterate((sent > 0).to(kernel.dtype), column_scale, row_scale, miss, iterations, tolerance)
    return rows.mT * kernel * columns


def _log_plan(exponents: Cost, nu: StudentMasses, mu: TeacherMasses, iterations: int, tolerance: float) -> Cost:
    log_nu, log_mu = (
        masses.where(masses > 0, 1.0).log().where(masses > 0, NOTHING) for masses in (nu[..., None], mu[:, None])
    )

    def column_scale(rows: Tensor) -> Tensor:
        return log_mu - (exponents + rows).logsumexp(1, keepdim=True)

    def row_scale(columns: Tensor) -> Tensor:
        return log_nu - (exponents + columns).logsumexp(2, keepdim=True)

    def miss(rows: Tensor, columns: Tensor) -> Tensor:
        received = (columns + (exponents + rows).logsumexp(1, keepdim=True)).exp()
        return (received - mu[:, None]).abs().sum(2, keepdim=True)

    start = torch.zeros_like(log_nu).where(log_nu > NOTHING, NOTHING)
    rows, columns = _iterate(start, column_scale, row_scale, miss, iterations, tolerance)
    carries = (nu > 0)[..., None] & (mu > 0)[:, None]
    return (exponents + rows + columns).where(carries, NOTHING).exp()


def _iterate(
    rows: Tensor,
    column_scale: Scaling,
    row_scale: Scaling,
    miss: Callable[[Tensor, Tensor], Tensor],
    iterations: int,
    tolerance: float,
) -> tuple[Tensor, Tensor]:
    """Scale columns and rows in turn; a problem that is finished no longer changes."""
    columns = column_scale(rows)
    rows = row_scale(columns)
    moving = torch.ones(len(rows), 1, 1, dtype=torch.bool, device=rows.device)
    for done in range(1, iterations, BETWEEN_CHECKS):
        before = rows, columns
        for _ in range(min(BETWEEN_CHECKS, iterations - done)):
            columns = column_scale(rows)
            rows = row_scale(columns)
        rows, columns = rows.where(moving, before[0]), columns.where(moving, before[1])
        with torch.no_grad():
            moving = miss(rows, columns) > tolerance
        if moving.device.type == "cpu" and not moving.numpy().any():
            break
    return rows, columns
