"""Distributions over different vocabularies (or classes): KL, ULD's sorted probabilities, MultiLevelOT's levels."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.losses.tokens import from_first_token, shared_mask, token_mean

PerText = Float[Tensor, " batch"]
Probabilities = Float[Tensor, "batch tokens classes"]
OtherProbabilities = Float[Tensor, "batch others other_classes"]
Mask = Bool[Tensor, "batch tokens"]
OtherMask = Bool[Tensor, "batch others"]


def soft_kl(
    student: Float[Tensor, "examples classes"], teacher: Float[Tensor, "examples classes"], temperature: float
) -> Float[Tensor, " examples"]:
    """Return T^2 KL(softmax(teacher / T) || softmax(student / T)) of logits (Hinton et al. 2015)."""
    log_student = (student / temperature).log_softmax(-1)
    log_teacher = (teacher / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1)


def soft_binary_kl(
    student: Float[Tensor, "examples classes"], teacher: Float[Tensor, "examples classes"], temperature: float
) -> Float[Tensor, " examples"]:
    """Return T^2 KL(sigmoid(teacher / T) || sigmoid(student / T)) of logits, the mean over classes.

    Each class is a decision of its own, where a text has several.
    """
    ours, theirs = (logits / temperature for logits in (student, teacher))
    yes = theirs.sigmoid() * (F.logsigmoid(theirs) - F.logsigmoid(ours))
    no = (-theirs).sigmoid() * (F.logsigmoid(-theirs) - F.logsigmoid(-ours))
    return temperature**2 * (yes + no).mean(-1)


def sorted_probabilities(logits: Probabilities, temperature: float) -> Probabilities:
    """Return softmax(logits / temperature), each token's in descending order (ULD)."""
    return (logits / temperature).softmax(-1).sort(-1, descending=True).values


def scaled_probabilities(logits: Probabilities, temperature: float) -> Probabilities:
    """Return the softmax of logits over (standard deviation + 1e-4), mean not removed (MultiLevelOT's code)."""
    return (logits / (logits.std(-1, keepdim=True) + 1e-4) / temperature).softmax(-1)


def heaviest_columns(probabilities: Probabilities, mask: Mask, count: int) -> Float[Tensor, "batch tokens count"]:
    """Return the `count` most probable classes over all tokens of the batch, in descending order (MultiLevelOT)."""
    order = probabilities.where(mask[..., None], 0.0).sum((0, 1)).argsort(descending=True, stable=True)
    return probabilities[..., order[:count]]


def absolute_gaps(
    student: Probabilities, teacher: OtherProbabilities, student_mask: Mask, teacher_mask: OtherMask
) -> PerText:
    """Return sum_c |p_s - p_t|, k-th token with k-th token, the mean over the shorter length; missing classes are 0."""
    p_student, p_teacher, mask = _kth_with_kth(student, teacher, student_mask, teacher_mask)
    return token_mean((p_student - p_teacher).abs().sum(-1), mask)


def swapped_cross_entropy(
    student: Probabilities, teacher: OtherProbabilities, student_mask: Mask, teacher_mask: OtherMask
) -> PerText:
    """Return -sum softmax(p_s) log softmax(p_t), tokens as in `absolute_gaps` (MultiLevelOT's KL_wo).

    Note: as in the official code, a softmax of a softmax, with the student's as the target. That code averages over
    padding, too.
    """
    p_student, p_teacher, mask = _kth_with_kth(student, teacher, student_mask, teacher_mask)
    return token_mean(-(p_student.softmax(-1) * p_teacher.log_softmax(-1)).sum(-1), mask)


def normalised_plan_cost(
    student: Probabilities,
    teacher: OtherProbabilities,
    student_mask: Mask,
    teacher_mask: OtherMask,
    entropy: float = 0.1,
    rounds: int = 10,
) -> PerText:
    """Return <P, C> (MultiLevelOT): C the L1 distances of tokens softmax(p / 2), P = exp(-C / entropy), normalised.

    Rows of P are the teacher's tokens, columns the student's; each round normalises rows, then columns, so that the sum
    of P is the student's length. Gradients run through the rounds.
    Note: the official code takes padding as tokens with uniform rows; here padding takes no part.
    """
    p_student, p_teacher = _same_classes(student, teacher)
    p_student = (p_student / 2).softmax(-1)
    p_teacher = (p_teacher / 2).softmax(-1)
    cost = (p_teacher[:, :, None] - p_student[:, None]).abs().sum(-1)  # torch.cdist has no second derivative
    plan = (-cost / entropy).exp() * (teacher_mask[:, :, None] & student_mask[:, None, :])
    for _ in range(rounds):
        plan = plan / plan.sum(2, keepdim=True).where(teacher_mask[:, :, None], 1.0)
        plan = plan / plan.sum(1, keepdim=True).where(student_mask[:, None, :], 1.0)
    return (plan * cost).sum((1, 2))


def _kth_with_kth(
    student: Probabilities, teacher: OtherProbabilities, student_mask: Mask, teacher_mask: OtherMask
) -> tuple[Float[Tensor, "batch common most"], Float[Tensor, "batch common most"], Bool[Tensor, "batch common"]]:
    """Return both from their first token on, with the same classes, and a mask of the positions that both have."""
    common = shared_mask(student_mask, teacher_mask)
    positions = common.shape[1]
    p_student = from_first_token(student, student_mask, positions)
    p_teacher = from_first_token(teacher, teacher_mask, positions)
    return *_same_classes(p_student, p_teacher), common


def _same_classes(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Append zeros to the one with fewer classes."""
    most = max(student.shape[-1], teacher.shape[-1])
    return F.pad(student, (0, most - student.shape[-1])), F.pad(teacher, (0, most - teacher.shape[-1]))
