"""Linear CKA (Kornblith et al. 2019) through Gram matrices of a few rows, batched, with masked rows.

Rows are tokens (or layers, or texts), the same for both models; the numbers of columns may differ. With K = H A A' H of
either model, CKA = <K_s, K_t> / (||K_s|| ||K_t||): EMO's eq. 12 and 13 without a matrix of the columns' size.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.losses.distance import full_precision

Rows = Float[Tensor, "batch rows _columns"]
Grams = Float[Tensor, "batch rows rows"]
SMALLEST = 1e-12  # norm of a Gram matrix: rows that differ by less than about 1e-6 are equal but for rounding


def centred_gram(rows: Rows, mask: Bool[Tensor, "batch rows"]) -> Grams:
    """Return H A A' H, where H subtracts the mean of the rows in `mask`; 0 at other rows. In fp32, or float64 if given.

    Columns that are 0 in every row, as attention is at padding, change nothing.
    """
    rows = full_precision(rows)
    gram: Tensor = _CentredGram.apply(rows, mask[..., None].to(rows.dtype))  # type: ignore[no-untyped-call]
    return gram


class _CentredGram(torch.autograd.Function):
    """K = C C', C = H A. As dK = dC C' + C dC', an upstream G gives A the gradient H (G + G') C, one large product."""

    @staticmethod
    def forward(context: Any, rows: Rows, here: Float[Tensor, "batch rows 1"]) -> Grams:
        centred = _centred(rows, here)
        context.save_for_backward(rows, here, centred)
        return torch.bmm(centred, centred.mT) * (here * here.mT)

    @staticmethod
    def backward(context: Any, upstream: Grams) -> tuple[Rows, None]:
        rows, here, centred = context.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative
            centred = _centred(rows, here)
        return torch.bmm(_centred((upstream + upstream.mT) * (here * here.mT), here) * here, centred), None


def _centred(rows: Rows, here: Float[Tensor, "batch rows 1"]) -> Rows:
    """Subtract the mean of the rows that are there; the values of the others mean nothing."""
    return rows - torch.bmm(here.mT, rows) / here.sum(1, keepdim=True).clamp_min(1)


def unit_gram(gram: Grams) -> Grams:
    """Return `gram` with Frobenius norm 1; zeros, and no gradient, if its norm is 0 (fewer than two different rows)."""
    squared = gram.square().sum((1, 2), keepdim=True)
    there = squared > SMALLEST**2
    return gram * (there / squared.where(there, 1.0).sqrt())


def root_cka(student: Grams, teacher: Grams) -> Float[Tensor, " batch"]:
    """Return sqrt(CKA), from 0 to 1, of a centred Gram matrix and a teacher's of unit norm.

    The value is 1 if the teacher's is zero: there is nothing to align. All gradients are finite; there is none if the
    student's is zero or has nothing in common with the teacher's.
    """
    cka = (unit_gram(student) * teacher).sum((1, 2))
    there = cka > SMALLEST
    return (cka.where(there, 1.0).sqrt() * there).where(teacher.flatten(1).any(1), 1.0)
