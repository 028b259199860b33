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

from distilvec.losses.cka import centred_gram, root_cka, unit_gram
from distilvec.losses.distance import full_precision

States = Float[Tensor, "batch n d"]
TeacherStates = Float[Tensor, "batch m D"]
Projection = Float[Tensor, "D d"]
Matches = Float[Tensor, "batch n m"]
StudentMask = Bool[Tensor, "batch n"]
TeacherMask = Bool[Tensor, "batch m"]
NOTHING = -1e9  # a logit without weight: finite, so that a difference of two is never NaN
SMALLEST = 1e-12  # norm of a state


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
    states: States,
    teacher: TeacherStates,
    projection: Projection,
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
    similarity = token_similarity(states, teacher, projection, matmul_dtype)
    weights = match_weights(similarity, student_mask, teacher_mask, rule)
    theirs = aggregate_gram(weights, teacher_gram(teacher, teacher_mask), student_mask)
    return 1 - root_cka(centred_gram(states, student_mask), theirs)


# -- cos(Q h_s, h_t) --------------------------------------------------------------------------------------------------


def token_similarity(
    states: States, teacher: TeacherStates, projection: Projection, matmul_dtype: torch.dtype | None = None
) -> Matches:
    """Return cos(Q h_s, h_t) of all pairs of tokens, in fp32 or float64; 0, without gradient, for zero states.

    Products with Q, which take most of the time, are computed in `matmul_dtype` if given. No gradient goes to the
    teacher.
    """
    states, narrow = full_precision(states), narrow_is_cheaper(states.shape, teacher.shape)
    inputs = states, teacher.to(states.dtype), projection.to(states.dtype)
    found: Tensor = _Cosines.apply(*inputs, matmul_dtype or states.dtype, narrow)  # type: ignore[no-untyped-call]
    return found


class _Factors(NamedTuple):
    """c_pq = <ours_p, theirs_q> scale_pq: Q h and t in the teacher's space, or h and Q't in the student's."""

    ours: Tensor
    theirs: Tensor
    inverse: Tensor  # r_p = 1 / ||Q h_p||
    scale: Tensor  # r_p / ||t_q||
    rows: Tensor  # multiplied by Q in `matmul_dtype`, as is `matrix`: the student's states, or the teacher's
    matrix: Tensor
    turned: Tensor  # half the gradient of ||Q h||^2: Q h for a, or Q'Q h for h


class _Cosines(torch.autograd.Function):
    """The cosines and their gradient, with fewer passes over all states than autograd needs.

    With a = Q h, r = 1 / ||a|| and s = 1 / ||t||, c_pq = r_p s_q <a_p, t_q>. As dr = -r^3 <a, da>, an upstream G_pq
    gives
    - dL/da_p = sum_q G_pq r_p s_q t_q - g_p a_p, where g_p = r_p^2 sum_q G_pq c_pq;
    - dL/dh_p = Q' dL/da_p = sum_q G_pq r_p s_q (Q't_q) - g_p (Q'Q h_p), which the narrow form has at hand;
    - dL/dQ = sum_p (dL/da_p) h_p' = sum_pq G_pq r_p s_q t_q h_p' - Q sum_p g_p h_p h_p', the narrow form.
    """

    @staticmethod
    def forward(
        context: Any,
        states: States,
        teacher: TeacherStates,
        projection: Projection,
        matmul_dtype: torch.dtype,
        narrow: bool,
    ) -> Matches:
        factors = (_narrow if narrow else _wide)(states, teacher, projection, matmul_dtype)
        cosines = torch.bmm(factors.ours, factors.theirs.mT) * factors.scale
        context.matmul_dtype, context.narrow = matmul_dtype, narrow
        context.save_for_backward(states, teacher, projection, cosines, *factors)
        return cosines

    @staticmethod
    def backward(context: Any, upstream: Matches) -> tuple[States, None, Projection, None, None]:
        states, teacher, projection, cosines, *saved = context.saved_tensors
        factors = _Factors(*saved)
        if torch.is_grad_enabled():  # for a second derivative
            factors = (_narrow if context.narrow else _wide)(states, teacher, projection, context.matmul_dtype)
        _, theirs, inverse, scale, rows, matrix, turned = factors
        along = (upstream * cosines).sum(-1, keepdim=True) * inverse.square()
        upstream = upstream * scale
        of_ours = torch.bmm(upstream, theirs).addcmul_(along, turned, value=-1)
        if not context.narrow:
            of_ours = of_ours.to(rows.dtype)
            of_matrix = of_ours.flatten(0, 1).mT @ rows.flatten(0, 1)
            return (of_ours @ matrix).to(states.dtype), None, of_matrix.to(states.dtype), None, None
        of_theirs = torch.bmm(upstream.mT, states).to(rows.dtype).flatten(0, 1)
        of_square = states.flatten(0, 1).mT @ (along * states).flatten(0, 1)
        of_matrix = rows.flatten(0, 1).mT @ of_theirs - matrix @ of_square.to(rows.dtype)
        return of_ours, None, of_matrix.to(states.dtype), None, None


def _wide(states: States, teacher: TeacherStates, projection: Projection, matmul_dtype: torch.dtype) -> _Factors:
    """Return <Q h_s, h_t>, in the teacher's dim."""
    rows, matrix = states.to(matmul_dtype), projection.to(matmul_dtype)
    ours = (rows @ matrix.mT).to(states.dtype)
    inverse = _inverse(_norms(ours))
    return _Factors(ours, teacher, inverse, inverse * _inverse(_norms(teacher)).mT, rows, matrix, ours)


def _narrow(states: States, teacher: TeacherStates, projection: Projection, matmul_dtype: torch.dtype) -> _Factors:
    """Return <h_s, Q'h_t>, in the student's dim, with ||Q h_s||^2 = <h_s, Q'Q h_s>."""
    rows, matrix = teacher.to(matmul_dtype), projection.to(matmul_dtype)
    theirs = (rows @ matrix).to(states.dtype)
    turned = (states.to(matmul_dtype) @ (matrix.mT @ matrix)).to(states.dtype)
    inverse = _inverse((states * turned).sum(-1, keepdim=True).clamp_min(0).sqrt())
    return _Factors(states, theirs, inverse, inverse * _inverse(_norms(teacher)).mT, rows, matrix, turned)


def narrow_is_cheaper(states: torch.Size, teacher: torch.Size) -> bool:
    """Return whether a training step has fewer multiplications with the similarity in the student's dim.

    The narrow form saves one of three products with Q, over the teacher's tokens instead of the student's, but needs
    Q'Q and a product with it.
    """
    # Measured where it is taken (32 texts of 60 and 48 tokens, one core): 312 to 4096 wide 117 ms instead of 202,
    # 768 to 4096 wide 355 ms instead of 422; in bf16 64 instead of 119, and 197 instead of 222.
    (batch, n, d), (_, m, dim) = states, teacher
    narrow = 2 * d * dim * (batch * m + d) + batch * n * d * (2 * d + 3 * m)
    return narrow < batch * n * dim * (3 * d + 2 * m)


def _norms(rows: Tensor) -> Float[Tensor, "batch rows 1"]:
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True)


def _inverse(norms: Tensor) -> Float[Tensor, "batch rows 1"]:
    """Return 1 / norm; 0 for a norm of 0."""
    there = norms > 2 * SMALLEST
    return there / norms.where(there, 1.0)


# -- alpha and the aggregate's Gram matrix ----------------------------------------------------------------------------


def match_weights(similarity: Matches, student_mask: StudentMask, teacher_mask: TeacherMask, rule: Rule) -> Matches:
    """Return alpha, the softmax of the similarities over the tokens that `rule` keeps (eq. 11); 0 at padding.

    The gradient is that of the weights, with the choice of tokens fixed.
    """
    logits = similarity / rule.temperature
    with torch.no_grad():
        kept = _kept(similarity, logits, teacher_mask[:, None], rule) & student_mask[..., None]
    return logits.where(kept, NOTHING).softmax(-1) * kept


def _kept(
    similarity: Matches, logits: Matches, there: Bool[Tensor, "batch 1 m"], rule: Rule
) -> Bool[Tensor, "batch n m"]:
    """Return the tokens S_p of eq. 11: the first `count` in descending order, of equally similar ones the earlier.

    `count` is the smallest number whose softmax reaches the threshold, then cut by `most` and `least`.
    """
    logits = logits.where(there, NOTHING)
    ranked = _descending(logits)
    before = ranked.softmax(-1).cumsum(-1)[..., :-1]  # what the tokens before each one, from the second on, add up to
    count = (before < rule.threshold).sum(-1, keepdim=True) + 1
    if rule.most is not None:
        count = count.clamp_max(rule.most)
    if rule.least is not None:
        count = count.minimum(((similarity >= rule.least) & there).sum(-1, keepdim=True).clamp_min(1))
    last = ranked.gather(-1, count - 1)  # the smallest logit that is kept, perhaps several times
    above, tied = logits > last, logits == last
    first_tied = tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True))
    return (above | first_tied) & there


def _descending(values: Tensor) -> Tensor:
    """Sort along the last dimension. On a CPU NumPy sorts many short rows 17 times faster than torch."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values


def teacher_gram(teacher: TeacherStates, mask: TeacherMask) -> Float[Tensor, "batch m m"]:
    """Return G, centred and of unit norm, without gradient."""
    with torch.no_grad():
        return unit_gram(centred_gram(teacher, mask))


def aggregate_gram(
    weights: Matches, gram: Float[Tensor, "batch m m"], student_mask: StudentMask
) -> Float[Tensor, "batch n n"]:
    """Return the unit Gram matrix of the aggregate alpha H_t, centred over the student's tokens, from G.

    A token's weights sum to 1, centred ones to 0. So G may be that of centred states, whose rounding does not suffer
    from what all states have in common.
    """
    here = student_mask[..., None].to(weights.dtype)
    centred = (weights - weights.sum(1, keepdim=True) / here.sum(1, keepdim=True).clamp_min(1)) * here
    return unit_gram(centred @ gram.to(weights.dtype) @ centred.mT)


def kept_tokens(weights: Matches, student_mask: StudentMask) -> Float[Tensor, ""]:
    """Return the mean number of teacher tokens that a student token keeps."""
    return (weights > 0).sum() / student_mask.sum().clamp_min(1)
