"""Sharpness of a loss at given weights: the Hessian's largest eigenvalue and trace, and the rise of the loss nearby.

A loss is a call that yields its parts, one per micro-batch, whose sum is the loss. Every call must give the same
function of the parameters (fixed rows, replayed dropout). The Hessian is used only in products with flat vectors
(Pearlmutter 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from distilvec.train.update import ascend_

Parts = Callable[[], Iterable[Tensor]]
Parameters = Sequence[Tensor]
Flat = Float[Tensor, " parameters"]
Product = Callable[[Tensor], Tensor]  # a symmetric matrix times a flat vector
Monitor = Callable[[int, float], None]  # (products so far, the estimate after them)


@dataclass(frozen=True)
class Largest:
    """Largest algebraic eigenvalue; an eigenvalue is within `residual` of it. `smallest` estimates the other end."""

    value: float
    residual: float
    smallest: float
    products: int


def loss_value(parts: Parts) -> float:
    """Sum of the parts in double precision."""
    with torch.no_grad():
        return sum(float(part) for part in parts())


def gradient(parts: Parts, parameters: Parameters) -> list[Tensor]:
    """Gradient, one tensor per parameter; zeros for parameters that the loss does not depend on."""
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for part in parts():
        for found, share in zip(sums, torch.autograd.grad(part, list(parameters), allow_unused=True), strict=True):
            if share is not None:
                found += share
    return sums


def hessian_product(parts: Parts, parameters: Parameters, vector: Flat) -> Flat:
    """Hessian times `vector`: the derivative of (gradient · vector), by differentiating twice."""
    directions = _split(vector, parameters)
    product = torch.zeros_like(vector)
    targets = _split(product, parameters)
    for part in parts():
        slopes = torch.autograd.grad(part, list(parameters), create_graph=True, allow_unused=True)
        pairs = zip(slopes, directions, strict=True)
        along = [(slope * direction).sum() for slope, direction in pairs if slope is not None and slope.requires_grad]
        if not along:  # the part is linear
            continue
        shares = torch.autograd.grad(torch.stack(along).sum(), list(parameters), allow_unused=True)
        for target, share in zip(targets, shares, strict=True):
            if share is not None:
                target += share
    return product


def largest_eigenvalue(
    product: Product,
    start: Flat,
    tolerance: float = 1e-2,
    limit: int = 100,
    monitor: Monitor = lambda count, value: None,
) -> Largest:
    """Largest algebraic eigenvalue of a symmetric matrix by Lanczos's recurrence from `start` (TALAS, table 4).

    It stops when the residual is below `tolerance` times the value, or after `limit` products.
    Note: the paper names no method. Power iteration would find the largest in magnitude, another one where negative
    curvature prevails. ARPACK (scipy's eigsh) needs at least 20 products and cannot stop at a residual. Without
    reorthogonalisation, eigenvalues may come twice, never wrong ones.
    """
    vector, previous = start / start.norm(), torch.zeros_like(start)
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    while True:
        image = product(vector)
        diagonal.append(float(image @ vector))
        image -= diagonal[-1] * vector + (off_diagonal[-1] if off_diagonal else 0.0) * previous
        length = float(image.norm())
        values, vectors = eigh_tridiagonal(diagonal, off_diagonal)
        residual = length * abs(float(vectors[-1, -1]))
        largest = Largest(float(values[-1]), residual, float(values[0]), len(diagonal))
        monitor(largest.products, largest.value)
        if residual <= tolerance * abs(largest.value) or largest.products >= limit:
            return largest
        off_diagonal.append(length)
        previous, vector = vector, image / length


def hutchinson_trace(
    product: Product,
    parameters: Parameters,
    draws: int,
    generator: torch.Generator,
    monitor: Monitor = lambda count, value: None,
) -> tuple[float, float]:
    """Trace as mean and standard error of v · Hv over `draws` vectors of random signs (Hutchinson 1990)."""
    found: list[float] = []
    size = sum(parameter.numel() for parameter in parameters)
    for count in range(draws):
        signs = (2 * torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8) - 1).to(parameters[0])
        found.append(float(signs @ product(signs)))
        monitor(count + 1, sum(found) / len(found))
    values = torch.tensor(found, dtype=torch.float64)
    return float(values.mean()), float(values.std() / draws**0.5)


@torch.no_grad()
def rise(parts: Parts, parameters: Parameters, slopes: Parameters, rho: float, adaptive: bool) -> float:
    """L(w + eps) - L(w) for SAM's eps of radius `rho`, or ASAM's; `slopes` is the gradient at w. Weights are restored.

    Note: the papers' sharpness is the largest rise in the whole ball; one ascent step finds a lower bound of it.
    """
    before = loss_value(parts)
    weights = [parameter.detach() for parameter in parameters]
    copies = [weight.clone() for weight in weights]
    try:
        ascend_(weights, [slope.clone() for slope in slopes], rho, [w.abs() for w in weights] if adaptive else None)
        return loss_value(parts) - before
    finally:
        torch._foreach_copy_(weights, copies)


def _split(vector: Flat, parameters: Parameters) -> list[Tensor]:
    """Views of a flat vector, one in the shape of each parameter."""
    pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
