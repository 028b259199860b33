"""Linear CKA (Kornblith et al. 2019) through Gram matrices of a few rows, batched, with masked rows.

Rows are tokens (or layers, or texts), the same for both models; the numbers of columns may differ. With K = H A A' H of
either model, CKA = <K_s, K_t> / (||K_s|| ||K_t||): EMO's eq. 12 and 13 without a matrix of the columns' size.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.device import full_precision

Rows = Float[Tensor, "batch rows _columns"]
Grams = Float[Tensor, "batch rows rows"]
# A Gram matrix of a smaller norm counts as zero: its rows differ by less than about 1e-6, which is rounding
SMALLEST_GRAM_NORM = 1e-12


def centred_gram(rows: Rows, mask: Bool[Tensor, "batch rows"]) -> Grams:
    """Return H A A' H, where H subtracts the mean of the rows in `mask`; 0 at other rows. In fp32, or float64 if given.

    Columns that are 0 in every row, as attention is at padding, change nothing.
    """
    rows = full_precision(rows)
    gram: Tensor = _CentredGram.apply(rows, mask[..., None].to(rows.dtype))  # type: ignore[no-untyped-call]
    return gram


class _CentredGram(torch.autograd.Function):
    """K = C C', C = H A. As dK = dC C' + C dC', an upstream G gives A the gradient H (G + G') C, one large product.

    Autograd would multiply the large matrix twice, once for each C.
    """

    # `backward` must itself be differentiable: experiments/sharpness takes second derivatives. It therefore computes
    # `centred` again from `rows` when a graph is built: the saved tensor has no history, and its derivative would be
    # lost without an error.

    @staticmethod
    def forward(context: Any, rows: Rows, is_row: Float[Tensor, "batch rows 1"]) -> Grams:
        centred = _centred(rows, is_row)
        context.save_for_backward(rows, is_row, centred)
        return torch.bmm(centred, centred.mT) * (is_row * is_row.mT)

    @staticmethod
    def backward(context: Any, upstream: Grams) -> tuple[Rows, None]:
        rows, is_row, centred = context.saved_tensors
        if torch.is_grad_enabled():
            centred = _centred(rows, is_row)
        symmetric = (upstream + upstream.mT) * (is_row * is_row.mT)
        return torch.bmm(_centred(symmetric, is_row) * is_row, centred), None


def _centred(rows: Rows, is_row: Float[Tensor, "batch rows 1"]) -> Rows:
    """Subtract the mean of the masked-in rows from all rows; the result at the other rows means nothing."""
    return rows - torch.bmm(is_row.mT, rows) / is_row.sum(1, keepdim=True).clamp_min(1)


def unit_gram(gram: Grams) -> Grams:
    """Return `gram` with Frobenius norm 1; zeros, and no gradient, if its norm is 0 (fewer than two different rows)."""
    squared_norm = gram.square().sum((1, 2), keepdim=True)
    is_nonzero = squared_norm > SMALLEST_GRAM_NORM**2
    # The root of 1 stands in where the norm is 0: the gradient of a root at 0 is infinite, and 0 * inf is NaN.
    return gram * (is_nonzero / squared_norm.where(is_nonzero, 1.0).sqrt())


def root_cka(student: Grams, teacher: Grams) -> Float[Tensor, " batch"]:
    """Return sqrt(CKA), from 0 to 1, of a centred Gram matrix and a teacher's of unit norm.

    The value is 1 if the teacher's is zero: there is nothing to align. All gradients are finite; there is none if the
    student's is zero or has nothing in common with the teacher's.
    """
    cka = (unit_gram(student) * teacher).sum((1, 2))
    is_positive = cka > SMALLEST_GRAM_NORM
    root = cka.where(is_positive, 1.0).sqrt() * is_positive
    teacher_has_structure = teacher.flatten(1).any(1)
    return root.where(teacher_has_structure, 1.0)
