"""DynamicCKA (DistillMoE, paper 001, section 3.2): each of the student's tokens gathers teacher tokens that it resembles; CKA compares.

The aggregate is never formed: its Gram matrix is alpha G alpha' with the match weights alpha [n, m] and the teacher's own Gram
matrix G [m, m]. Padding may stand anywhere on either side and changes no value and no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.errors import DistilvecError
from distilvec.losses.cka import centred_gram, root_cka, unit_gram

States = Float[Tensor, "batch n d"]
TeacherStates = Float[Tensor, "batch m D"]
Projection = Float[Tensor, "D d"]
Matches = Float[Tensor, "batch n m"]
StudentMask = Bool[Tensor, "batch n"]
TeacherMask = Bool[Tensor, "batch m"]
NOTHING = -1e9  # a logit without weight: finite, so that it is never subtracted from itself to NaN
SMALLEST = 1e-12  # norm of a state


@dataclass(frozen=True)
class Rule:
    """Which teacher tokens a student token gathers: the most similar ones, until their shares of the softmax reach `threshold`.

    `temperature` divides the cosines before the softmax. Of the tokens that the threshold keeps, `most` keeps so many at most and
    `least` only those of at least this cosine, but always the best one.
    """

    threshold: float = 0.9
    temperature: float = 1.0
    most: int | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        limits = {
            "threshold": (0 < self.threshold <= 1, "a share above 0, up to 1"),
            "temperature": (self.temperature > 0, "a number above 0"),
            "most": (self.most is None or self.most >= 1, "1 or more, or none"),
            "least": (self.least is None or -1 <= self.least <= 1, "a cosine, or none"),
        }
        for name, (right, expected) in limits.items():
            if not right:
                raise DistilvecError(
                    f"[method.options] a rule of matching tokens has {name} {getattr(self, name)}; expected {expected}."
                )


RULES = {"paper": Rule(), "authors": Rule(0.95, 1.0, 3, 0.3)}


def token_similarity(
    states: States, teacher: TeacherStates, projection: Projection, products: torch.dtype | None = None
) -> Matches:
    """cos(Q h_s, h_t) of all pairs of tokens; 0, without gradient, where one of them is zero. In fp32, or float64 if given.

    Products with Q, which take most of the time, are made in `products` where it is given. No gradient goes to the teacher.
    """
    exact = torch.promote_types(states.dtype, torch.float32)
    narrow = narrow_is_cheaper(states.shape, teacher.shape)
    inputs = states.to(exact), teacher.to(exact), projection.to(exact)
    found: Tensor = _Cosines.apply(*inputs, products or exact, narrow)  # type: ignore[no-untyped-call]
    return found


class _Cosines(torch.autograd.Function):
    """The cosines in the student's width (`narrow`) or the teacher's; the gradient takes fewer passes over all states than autograd's."""

    @staticmethod
    def forward(
        context: Any,
        states: States,
        teacher: TeacherStates,
        projection: Projection,
        products: torch.dtype,
        narrow: bool,
    ) -> Matches:
        parts = (_narrow if narrow else _wide)(states, teacher, projection, products)
        ours, theirs, _, each, *_ = parts
        cosines = torch.bmm(ours, theirs.mT) * each
        context.products, context.narrow = products, narrow
        context.save_for_backward(states, teacher, projection, cosines, *parts)
        return cosines

    @staticmethod
    def backward(context: Any, gradient: Matches) -> tuple[States, None, Projection, None, None]:
        states, teacher, projection, cosines, *parts = context.saved_tensors
        if torch.is_grad_enabled():  # the gradient's own gradient is asked for
            parts = (_narrow if context.narrow else _wide)(states, teacher, projection, context.products)
        ours, theirs, scale, each, rows, matrix, *turned = parts
        along = (gradient * cosines).sum(-1, keepdim=True) * scale.square()
        gradient = gradient * each
        of_ours = torch.bmm(gradient, theirs).addcmul_(along, turned[0] if turned else ours, value=-1)
        if not context.narrow:
            pull = of_ours.to(rows.dtype)
            of_matrix = pull.flatten(0, 1).mT @ rows.flatten(0, 1)
            return (pull @ matrix).to(states.dtype), None, of_matrix.to(states.dtype), None, None
        of_theirs = torch.bmm(gradient.mT, states).to(rows.dtype).flatten(0, 1)
        of_square = states.flatten(0, 1).mT @ (along * states).flatten(0, 1)
        of_matrix = rows.flatten(0, 1).mT @ of_theirs - matrix @ of_square.to(rows.dtype)
        return of_ours, None, of_matrix.to(states.dtype), None, None


def _wide(states: States, teacher: TeacherStates, projection: Projection, products: torch.dtype) -> tuple[Tensor, ...]:
    """(Q h_s) . h_t: both sides, 1 / ||Q h_s||, the cosines' scale, and what was multiplied in `products`."""
    rows, matrix = states.to(products), projection.to(products)
    ours = (rows @ matrix.mT).to(states.dtype)
    scale = _inverse(ours)
    return ours, teacher, scale, scale * _inverse(teacher).mT, rows, matrix


def _narrow(
    states: States, teacher: TeacherStates, projection: Projection, products: torch.dtype
) -> tuple[Tensor, ...]:
    """h_s . (Q' h_t), with ||Q h_s||^2 = h_s . (Q'Q h_s): the same, and Q'Q h_s."""
    rows, matrix = teacher.to(products), projection.to(products)
    theirs = (rows @ matrix).to(states.dtype)
    turned = (states.to(products) @ (matrix.mT @ matrix)).to(states.dtype)
    scale = _inverse(turned, states)
    return states, theirs, scale, scale * _inverse(teacher).mT, rows, matrix, turned


def narrow_is_cheaper(states: torch.Size, teacher: torch.Size) -> bool:
    """Whether a training step has fewer multiplications with the similarity in the student's width than in the teacher's.

    Forward and backward, where the teacher's states want no gradient: the narrow way saves one of three products with Q, over
    the teacher's tokens instead of the student's, but needs Q'Q and a product with it.
    """
    (batch, n, d), (_, m, width) = states, teacher
    narrow = 2 * d * width * (batch * m + d) + batch * n * d * (2 * d + 3 * m)
    return narrow < batch * n * width * (3 * d + 2 * m)


def match_weights(similarity: Matches, student_mask: StudentMask, teacher_mask: TeacherMask, rule: Rule) -> Matches:
    """alpha: the softmax of the similarities over the teacher tokens that `rule` keeps (eq. 11, renormalised); 0 at padding.

    The gradient is that of the weights with the choice of tokens as it is.
    """
    logits = similarity / rule.temperature
    with torch.no_grad():
        kept = _kept(similarity, logits, teacher_mask[:, None], rule) & student_mask[..., None]
    return logits.where(kept, NOTHING).softmax(-1) * kept


def dynamic_cka(
    states: States,
    teacher: TeacherStates,
    projection: Projection,
    student_mask: StudentMask,
    teacher_mask: TeacherMask,
    rule: Rule,
    products: torch.dtype | None = None,
) -> Float[Tensor, " batch"]:
    """1 - sqrt(CKA) of the student's states and the teacher's aggregated for them (eq. 12 and 13, one layer), from 0 to 1.

    0 where the aggregate has no structure (one token on either side): there is nothing to align.

    Note: eq. 12 compares the student's own states; the authors' code projects them and takes all texts' tokens, padding too, as one text.
    """
    weights = match_weights(token_similarity(states, teacher, projection, products), student_mask, teacher_mask, rule)
    theirs = aggregate_gram(weights, teacher_gram(teacher, teacher_mask), student_mask)
    return 1 - root_cka(centred_gram(states, student_mask), theirs)


def teacher_gram(teacher: TeacherStates, mask: TeacherMask) -> Float[Tensor, "batch m m"]:
    """G, centred and of unit norm, without gradient."""
    with torch.no_grad():
        return unit_gram(centred_gram(teacher, mask))


def aggregate_gram(
    weights: Matches, gram: Float[Tensor, "batch m m"], student_mask: StudentMask
) -> Float[Tensor, "batch n n"]:
    """The unit Gram matrix of the aggregate alpha H_t, centred over the student's tokens, from G.

    A token's weights sum to 1, centred ones to 0: G may be that of centred states, which keeps what the states have in common, often
    far larger than their differences, out of the rounding. As G has unit norm, nothing depends on the states' scale.
    """
    here = student_mask[..., None].to(weights.dtype)
    centred = (weights - weights.sum(1, keepdim=True) / here.sum(1, keepdim=True).clamp_min(1)) * here
    return unit_gram(centred @ gram.to(weights.dtype) @ centred.mT)


def kept_tokens(weights: Matches, student_mask: StudentMask) -> Float[Tensor, ""]:
    """How many teacher tokens a student token keeps on average."""
    return (weights > 0).sum() / student_mask.sum().clamp_min(1)


def _kept(
    similarity: Matches, logits: Matches, there: Bool[Tensor, "batch 1 m"], rule: Rule
) -> Bool[Tensor, "batch n m"]:
    """The tokens that `rule` keeps: the first of a ranking, each condition says how many; of equally similar ones the earlier."""
    logits = logits.where(there, NOTHING)
    ranked = _descending(logits)
    before = ranked.softmax(-1).cumsum(-1)[..., :-1]
    count = (before < rule.threshold).sum(-1, keepdim=True) + 1
    if rule.most is not None:
        count = count.clamp_max(rule.most)
    if rule.least is not None:
        count = count.minimum(((similarity >= rule.least) & there).sum(-1, keepdim=True).clamp_min(1))
    last = ranked.gather(-1, count - 1)
    above, tied = logits > last, logits == last
    return (above | (tied & (tied.cumsum(-1) <= count - above.sum(-1, keepdim=True)))) & there


def _descending(values: Tensor) -> Tensor:
    """`values` sorted along the last dimension. NumPy sorts many short rows 17 times faster than torch does on a processor."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.detach().numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values


def _inverse(rows: Tensor, others: Tensor | None = None) -> Float[Tensor, "batch rows 1"]:
    """1 / ||row||, or 1 / sqrt(row . other); 0 where that is 0."""
    if others is None:
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    else:
        norms = (rows * others).sum(-1, keepdim=True).clamp_min(0).sqrt()
    there = norms > 2 * SMALLEST
    return there / norms.where(there, 1.0)
