"""DynamicCKA (paper 001, section 3.2): each student token aggregates similar teacher tokens; CKA compares the two.

The aggregate alpha H_t is never formed: its Gram matrix is alpha G alpha' with the match weights alpha [n, m] and the
teacher's own Gram matrix G [m, m]. Padding may be anywhere in either model and changes no value and no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.device import full_precision
from distilvec.losses.cka import centred_gram, root_cka, unit_gram
from distilvec.losses.tokens import NO_WEIGHT

States = Float[Tensor, "batch n d"]
TeacherStates = Float[Tensor, "batch m D"]
Projection = Float[Tensor, "D d"]
Matches = Float[Tensor, "batch n m"]
StudentMask = Bool[Tensor, "batch n"]
TeacherMask = Bool[Tensor, "batch m"]
SMALLEST_STATE_NORM = 1e-12


@dataclass(frozen=True)
class Rule:
    """The teacher tokens that a student token aggregates: the most similar ones, until their softmax is `threshold`.

    `temperature` divides the cosines before the softmax. `most` limits the number of tokens; `least` is the smallest
    cosine, but the most similar token is always kept.
    """

    threshold: float = 0.9
    temperature: float = 1.0
    most: int | None = None
    least: float | None = None


RULES = {"paper": Rule(), "authors": Rule(0.95, 1.0, 3, 0.3)}


def dynamic_cka(
    h_student: States,
    h_teacher: TeacherStates,
    q: Projection,
    student_mask: StudentMask,
    teacher_mask: TeacherMask,
    rule: Rule,
    matmul_dtype: torch.dtype | None = None,
) -> Float[Tensor, " batch"]:
    """Return 1 - sqrt(CKA) of the student's states and the aggregated ones of the teacher (eq. 12 and 13, one layer).

    0 if the aggregate has no structure (one token in either model): there is nothing to align.
    Note: eq. 12 compares the student's own states; the authors' code projects them and takes all texts' tokens, padding
    too, as one text.
    """
    similarity = token_similarity(h_student, h_teacher, q, matmul_dtype)
    alpha = match_weights(similarity, student_mask, teacher_mask, rule)  # eq. 11
    k_teacher = aggregate_gram(alpha, teacher_gram(h_teacher, teacher_mask), student_mask)
    k_student = centred_gram(h_student, student_mask)
    return 1 - root_cka(k_student, k_teacher)


# -- cos(Q h_s, h_t) --------------------------------------------------------------------------------------------------


def token_similarity(
    h_student: States, h_teacher: TeacherStates, q: Projection, matmul_dtype: torch.dtype | None = None
) -> Matches:
    """Return cos(Q h_s, h_t) of all pairs of tokens, in fp32 or float64; 0, without gradient, for zero states.

    Products with Q, which take most of the time, are computed in `matmul_dtype` if given. No gradient goes to the
    teacher.
    """
    h_student = full_precision(h_student)
    h_teacher = h_teacher.to(h_student.dtype)
    q = q.to(h_student.dtype)
    narrow = narrow_is_cheaper(h_student.shape, h_teacher.shape)
    dtype = matmul_dtype or h_student.dtype
    cosines: Tensor = _Cosines.apply(h_student, h_teacher, q, dtype, narrow)  # type: ignore[no-untyped-call]
    return cosines


class _Factors(NamedTuple):
    """c_pq = <left_p, right_q> scale_pq: left is Q h and right is t, or in the narrow form h and Q't."""

    left: Tensor
    right: Tensor
    inverse: Tensor  # r_p = 1 / ||Q h_p||
    scale: Tensor  # r_p / ||t_q||
    rows: Tensor  # in `matmul_dtype`, what is multiplied by Q: the student's states, or the teacher's
    matrix: Tensor  # Q in `matmul_dtype`
    norm_gradient: Tensor  # half the gradient of ||Q h||^2: Q h with respect to Q h, or Q'Q h with respect to h


class _Cosines(torch.autograd.Function):
    """The cosines and their gradient, with fewer passes over all states than autograd needs.

    With a = Q h, r = 1 / ||a|| and s = 1 / ||t||, c_pq = r_p s_q <a_p, t_q>. As dr = -r^3 <a, da>, an upstream G_pq
    gives
    - dL/da_p = sum_q G_pq r_p s_q t_q - g_p a_p, where g_p = r_p^2 sum_q G_pq c_pq;
    - dL/dh_p = Q' dL/da_p = sum_q G_pq r_p s_q (Q't_q) - g_p (Q'Q h_p), which the narrow form has at hand;
    - dL/dQ = sum_p (dL/da_p) h_p' = sum_pq G_pq r_p s_q t_q h_p' - Q sum_p g_p h_p h_p', the narrow form.
    """

    # As in losses/cka.py, `backward` computes the saved factors again when its own gradient is asked for: the saved
    # tensors have no history, and their derivatives would be lost without an error.

    @staticmethod
    def forward(
        context: Any,
        h_student: States,
        h_teacher: TeacherStates,
        q: Projection,
        matmul_dtype: torch.dtype,
        narrow: bool,
    ) -> Matches:
        factors = (_narrow if narrow else _wide)(h_student, h_teacher, q, matmul_dtype)
        cosines = torch.bmm(factors.left, factors.right.mT) * factors.scale
        context.matmul_dtype = matmul_dtype
        context.narrow = narrow
        context.save_for_backward(h_student, h_teacher, q, cosines, *factors)
        return cosines

    @staticmethod
    def backward(context: Any, upstream: Matches) -> tuple[States, None, Projection, None, None]:
        h_student, h_teacher, q, cosines, *saved = context.saved_tensors
        factors = _Factors(*saved)
        if torch.is_grad_enabled():
            factors = (_narrow if context.narrow else _wide)(h_student, h_teacher, q, context.matmul_dtype)
        dtype = factors.rows.dtype
        g = (upstream * cosines).sum(-1, keepdim=True) * factors.inverse.square()
        upstream = upstream * factors.scale
        d_left = torch.bmm(upstream, factors.right).addcmul_(g, factors.norm_gradient, value=-1)
        if not context.narrow:
            d_left = d_left.to(dtype)
            d_q = d_left.flatten(0, 1).mT @ factors.rows.flatten(0, 1)
            return (d_left @ factors.matrix).to(h_student.dtype), None, d_q.to(h_student.dtype), None, None
        d_right = torch.bmm(upstream.mT, h_student).to(dtype).flatten(0, 1)
        d_square = h_student.flatten(0, 1).mT @ (g * h_student).flatten(0, 1)
        d_q = factors.rows.flatten(0, 1).mT @ d_right - factors.matrix @ d_square.to(dtype)
        return d_left, None, d_q.to(h_student.dtype), None, None


def _wide(h_student: States, h_teacher: TeacherStates, q: Projection, matmul_dtype: torch.dtype) -> _Factors:
    """Return the factors of <Q h_s, h_t>, in the teacher's dim."""
    rows = h_student.to(matmul_dtype)
    matrix = q.to(matmul_dtype)
    projected = (rows @ matrix.mT).to(h_student.dtype)
    inverse = _inverse(_norms(projected))
    scale = inverse * _inverse(_norms(h_teacher)).mT
    return _Factors(projected, h_teacher, inverse, scale, rows, matrix, norm_gradient=projected)


def _narrow(h_student: States, h_teacher: TeacherStates, q: Projection, matmul_dtype: torch.dtype) -> _Factors:
    """Return the factors of <h_s, Q'h_t>, in the student's dim, with ||Q h_s||^2 = <h_s, Q'Q h_s>."""
    rows = h_teacher.to(matmul_dtype)
    matrix = q.to(matmul_dtype)
    projected = (rows @ matrix).to(h_student.dtype)
    squared = (h_student.to(matmul_dtype) @ (matrix.mT @ matrix)).to(h_student.dtype)  # Q'Q h
    inverse = _inverse((h_student * squared).sum(-1, keepdim=True).clamp_min(0).sqrt())
    scale = inverse * _inverse(_norms(h_teacher)).mT
    return _Factors(h_student, projected, inverse, scale, rows, matrix, norm_gradient=squared)


def narrow_is_cheaper(states: torch.Size, teacher: torch.Size) -> bool:
    """Return whether a training step has fewer multiplications with the similarity in the student's dim.

    The narrow form saves one of three products with Q, over the teacher's tokens instead of the student's, but needs
    Q'Q and a product with it.
    """
    batch, n, d = states
    _, m, dim = teacher
    narrow = 2 * d * dim * (batch * m + d) + batch * n * d * (2 * d + 3 * m)
    wide = batch * n * dim * (3 * d + 2 * m)
    return narrow < wide


def _norms(rows: Tensor) -> Float[Tensor, "batch rows 1"]:
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True)


def _inverse(norms: Tensor) -> Float[Tensor, "batch rows 1"]:
    """Return 1 / norm; 0 for a norm of 0."""
    is_nonzero = norms > 2 * SMALLEST_STATE_NORM
    return is_nonzero / norms.where(is_nonzero, 1.0)


# -- alpha and the aggregate's Gram matrix ----------------------------------------------------------------------------


def match_weights(similarity: Matches, student_mask: StudentMask, teacher_mask: TeacherMask, rule: Rule) -> Matches:
    """Return alpha, the softmax of the similarities over the tokens that `rule` keeps (eq. 11); 0 at padding.

    The gradient is that of the weights, with the choice of tokens fixed.
    """
    logits = similarity / rule.temperature
    with torch.no_grad():
        is_matched = _matched_tokens(similarity, logits, teacher_mask[:, None], rule) & student_mask[..., None]
    return logits.where(is_matched, NO_WEIGHT).softmax(-1) * is_matched


def _matched_tokens(
    similarity: Matches, logits: Matches, teacher_mask: Bool[Tensor, "batch 1 m"], rule: Rule
) -> Bool[Tensor, "batch n m"]:
    """Return the tokens S_p of eq. 11: the most similar ones, of equally similar ones the earlier.

    Their number is the smallest whose softmax reaches the threshold, then cut by `most` and `least`.
    """
    logits = logits.where(teacher_mask, NO_WEIGHT)
    ranked = _descending(logits)
    # A token is in S_p while the softmax of the tokens before it is below the threshold; so the first one always is
    mass_before = ranked.softmax(-1).cumsum(-1)[..., :-1]
    count = (mass_before < rule.threshold).sum(-1, keepdim=True) + 1
    if rule.most is not None:
        count = count.clamp_max(rule.most)
    if rule.least is not None:
        similar = (similarity >= rule.least) & teacher_mask
        count = count.minimum(similar.sum(-1, keepdim=True).clamp_min(1))

    smallest = ranked.gather(-1, count - 1)  # the smallest logit in S_p; several tokens may have it
    is_above = logits > smallest
    is_tied = logits == smallest
    room = count - is_above.sum(-1, keepdim=True)
    is_first_tied = is_tied & (is_tied.cumsum(-1) <= room)
    return (is_above | is_first_tied) & teacher_mask


def _descending(values: Tensor) -> Tensor:
    """Sort along the last dimension. On a CPU NumPy sorts many short rows faster than torch."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values


def teacher_gram(h_teacher: TeacherStates, mask: TeacherMask) -> Float[Tensor, "batch m m"]:
    """Return G, centred and of unit norm, without gradient."""
    with torch.no_grad():
        return unit_gram(centred_gram(h_teacher, mask))


def aggregate_gram(
    alpha: Matches, gram: Float[Tensor, "batch m m"], student_mask: StudentMask
) -> Float[Tensor, "batch n n"]:
    """Return the unit Gram matrix of the aggregate alpha H_t, centred over the student's tokens, from G.

    A token's weights sum to 1, centred ones to 0. So G may be that of centred states, whose rounding does not suffer
    from what all states have in common.
    """
    is_token = student_mask[..., None].to(alpha.dtype)
    mean = alpha.sum(1, keepdim=True) / is_token.sum(1, keepdim=True).clamp_min(1)
    centred = (alpha - mean) * is_token
    return unit_gram(centred @ gram.to(alpha.dtype) @ centred.mT)


def kept_tokens(alpha: Matches, student_mask: StudentMask) -> Float[Tensor, ""]:
    """Return the mean number of teacher tokens that a student token aggregates."""
    return (alpha > 0).sum() / student_mask.sum().clamp_min(1)
