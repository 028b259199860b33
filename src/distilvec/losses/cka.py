"""Linear CKA (Kornblith et al. 2019) through Gram matrices of a few rows, batched, with masked rows.

The rows are tokens (or layers, or texts); both sides have the same rows and may have columns of any number. With K = H A A' H
for either side, CKA = <K_s, K_t> / (||K_s|| ||K_t||): eq. 12 of EMO without a matrix that has the columns' size.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Float[Tensor, "batch rows _columns"]
Grams = Float[Tensor, "batch rows rows"]
SMALLEST = 1e-12  # norm of a Gram matrix: rows that differ by less than about 1e-6 are equal but for rounding


def centred_gram(rows: Rows, mask: Bool[Tensor, "batch rows"]) -> Grams:
    """H A A' H, where H takes from each of the rows in `mask` their mean; 0 at all other rows. In fp32, or float64 if given.

    Columns that are 0 in every row, as attention is at padding, change nothing.

    Note: EMO's eq. 9-10 multiply from the right, which the shapes forbid; centred over the tokens, as in the authors' code.
    """
    exact = torch.promote_types(rows.dtype, torch.float32)
    gram: Tensor = _CentredGram.apply(rows.to(exact), mask[..., None].to(exact))  # type: ignore[no-untyped-call]
    return gram


class _CentredGram(torch.autograd.Function):
    """The gradient in one product: with K = C C' and C = H A it is H (dK + dK') C, where H acts on the rows of the small matrix."""

    @staticmethod
    def forward(context: Any, rows: Rows, here: Float[Tensor, "batch rows 1"]) -> Grams:
        centred = _centred(rows, here)
        context.save_for_backward(rows, here, centred)
        return torch.bmm(centred, centred.mT) * (here * here.mT)

    @staticmethod
    def backward(context: Any, gradient: Grams) -> tuple[Rows, None]:
        rows, here, centred = context.saved_tensors
        if torch.is_grad_enabled():  # the gradient's own gradient is asked for
            centred = _centred(rows, here)
        return torch.bmm(_centred((gradient + gradient.mT) * (here * here.mT), here) * here, centred), None


def _centred(rows: Rows, here: Float[Tensor, "batch rows 1"]) -> Rows:
    """Without the mean of the rows that are there; what stands at the others is meaningless."""
    return rows - torch.bmm(here.mT, rows) / here.sum(1, keepdim=True).clamp_min(1)


def unit_gram(gram: Grams) -> Grams:
    """`gram` with Frobenius norm 1; zeros, and no gradient, where it has none (fewer than two rows, or equal ones)."""
    squared = gram.square().sum((1, 2), keepdim=True)
    there = squared > SMALLEST**2
    return gram * (there / squared.where(there, 1.0).sqrt())


def root_cka(student: Grams, teacher: Grams) -> Float[Tensor, " batch"]:
    """sqrt(CKA) of a centred Gram matrix and a teacher's of unit norm, from 0 to 1 (EMO, eq. 14).

    Where the teacher's is zero there is nothing to align, and the value is 1. Gradients are finite everywhere: none is sent
    where the student's Gram matrix is zero, or has nothing of the teacher's.
    """
    cka = (unit_gram(student) * teacher).sum((1, 2))
    there = cka > SMALLEST
    root = cka.where(there, 1.0).sqrt() * there
    return root.where(teacher.flatten(1).any(1), 1.0)


def linear_cka(
    first: Rows, second: Float[Tensor, "batch rows _others"], mask: Bool[Tensor, "batch rows"]
) -> Float[Tensor, " batch"]:
    """CKA of two sets of columns over the same rows (EMO, eq. 12), without root."""
    return (unit_gram(centred_gram(first, mask)) * unit_gram(centred_gram(second, mask))).sum((1, 2))
