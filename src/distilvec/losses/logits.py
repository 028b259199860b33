"""Distributions over different vocabularies (or classes): KL, ULD's sorted probabilities, the three levels of MultiLevelOT."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.losses.padding import from_first_token, shared_mask, token_mean

PerText = Float[Tensor, " batch"]
Mask = Bool[Tensor, "batch tokens"]
OtherMask = Bool[Tensor, "batch others"]


def soft_kl(
    student: Float[Tensor, "examples classes"], teacher: Float[Tensor, "examples classes"], temperature: float
) -> Float[Tensor, " examples"]:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) of logits (Hinton et al. 2015; T^2 keeps the gradient's size)."""
    ours, theirs = ((logits / temperature).log_softmax(-1) for logits in (student, teacher))
    return temperature**2 * F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)


def sorted_probabilities(
    logits: Float[Tensor, "batch tokens classes"], temperature: float
) -> Float[Tensor, "batch tokens classes"]:
    """softmax(logits / temperature), each token's in descending order: which class is which no longer counts (ULD)."""
    return (logits / temperature).softmax(-1).sort(-1, descending=True).values


def scaled_probabilities(
    logits: Float[Tensor, "batch tokens classes"], temperature: float
) -> Float[Tensor, "batch tokens classes"]:
    """softmax of logits over their standard deviation + 1e-4, no mean removed (MultiLevelOT's official code)."""
    return (logits / (logits.std(-1, keepdim=True) + 1e-4) / temperature).softmax(-1)


def heaviest_columns(
    probabilities: Float[Tensor, "batch tokens classes"], mask: Mask, count: int
) -> Float[Tensor, "batch tokens kept"]:
    """The `count` classes with the most probability over all tokens of the whole batch, the heaviest first (MultiLevelOT)."""
    order = probabilities.where(mask[..., None], 0.0).sum((0, 1)).argsort(descending=True, stable=True)
    return probabilities[..., order[:count]]


def absolute_gaps(
    student: Float[Tensor, "batch tokens classes"],
    teacher: Float[Tensor, "batch others different"],
    student_mask: Mask,
    teacher_mask: OtherMask,
) -> PerText:
    """sum over classes of |p_s - p_t|, k-th token against k-th token, the mean over the shorter length; fewer classes get zeros."""
    ours, theirs, both = _kth_with_kth(student, teacher, student_mask, teacher_mask)
    return token_mean((ours - theirs).abs().sum(-1), both)


def swapped_cross_entropy(
    student: Float[Tensor, "batch tokens classes"],
    teacher: Float[Tensor, "batch others different"],
    student_mask: Mask,
    teacher_mask: OtherMask,
) -> PerText:
    """-sum softmax(p_s) log softmax(p_t), k-th token against k-th token, the mean over the shorter length (MultiLevelOT's KL_wo).

    Note: as in the official code, on probabilities (a softmax of a softmax) and with the student's as the target. That code
    also averages over padded positions; this one does not.
    """
    ours, theirs, both = _kth_with_kth(student, teacher, student_mask, teacher_mask)
    return token_mean(-(ours.softmax(-1) * theirs.log_softmax(-1)).sum(-1), both)


def normalised_plan_cost(
    student: Float[Tensor, "batch tokens classes"],
    teacher: Float[Tensor, "batch others different"],
    student_mask: Mask,
    teacher_mask: OtherMask,
    entropy: float = 0.1,
    rounds: int = 10,
) -> PerText:
    """<P, C>: C the L1 distances of tokens, P = exp(-C / entropy) after `rounds` of row, then column normalisation (MultiLevelOT).

    The tokens' rows are softmax(p / 2). Rows of P are the teacher's tokens, columns the student's, each of mass 1: the plan
    has the mass of the student's length, not 1, as in the official code; gradients run through the rounds. Note: the
    official code carries padded positions along as tokens with uniform rows; here they have no mass.
    """
    ours, theirs = ((p / 2).softmax(-1) for p in _same_width(student, teacher))
    cost = (theirs[:, :, None] - ours[:, None]).abs().sum(-1)  # torch.cdist has no second derivative
    plan = (-cost / entropy).exp() * (teacher_mask[:, :, None] & student_mask[:, None, :])
    for _ in range(rounds):
        plan = plan / plan.sum(2, keepdim=True).where(teacher_mask[:, :, None], 1.0)
        plan = plan / plan.sum(1, keepdim=True).where(student_mask[:, None, :], 1.0)
    return (plan * cost).sum((1, 2))


def _kth_with_kth(
    student: Float[Tensor, "batch tokens classes"],
    teacher: Float[Tensor, "batch others different"],
    student_mask: Mask,
    teacher_mask: OtherMask,
) -> tuple[Float[Tensor, "batch common most"], Float[Tensor, "batch common most"], Bool[Tensor, "batch common"]]:
    """Both from their first token on, padded to the larger number of classes; True where both have a token."""
    common = shared_mask(student_mask, teacher_mask)
    ours, theirs = (
        from_first_token(p, mask, common.shape[1]) for p, mask in ((student, student_mask), (teacher, teacher_mask))
    )
    return *_same_width(ours, theirs), common


def _same_width(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros behind the narrower one's columns."""
    most = max(student.shape[-1], teacher.shape[-1])
    return F.pad(student, (0, most - student.shape[-1])), F.pad(teacher, (0, most - teacher.shape[-1]))
