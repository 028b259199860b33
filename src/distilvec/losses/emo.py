"""EMO (paper 000, section 3), eq. 6 to 18 in the paper's order: importance, attention CKA on aligned tokens, OTIS.

The teacher's half (eq. 6, 8, 10, 15) is computed by `teachers/cached.py` and cached; a training step computes
the student's. Eq. 19 to 21, Sinkhorn's plan and its cost, are `transport_cost` of losses/transport.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from distilvec.core.device import full_precision
from distilvec.losses.cka import Grams, centred_gram, root_cka, unit_gram
from distilvec.losses.tokens import NO_WEIGHT

Pairs = Int[Tensor, "batch pairs 2"]
Importance = Float[Tensor, "batch tokens"]

# -- section 3.1: which tokens, and IRA ------------------------------------------------------------------------------


def importance(attention: Float[Tensor, "batch tokens tokens"], mask: Bool[Tensor, "batch tokens"]) -> Importance:
    """Return eq. 6 with the sum 1 (mu of eq. 15): the attention that each token receives from all tokens; 0 at padding.

    `attention` is the head-averaged map of the teacher's last layer; its rows of padding do not count.
    Note: the authors' code takes the softmax of the sums (`softmax_importance`); the paper divides.
    """
    is_token = mask.to(attention.dtype)
    received = torch.bmm(is_token[:, None], attention)[:, 0] * is_token
    return received / received.sum(1, keepdim=True)


def select(
    pairs: Pairs, importance: Importance, divisor: int, ordinary: Bool[Tensor, "batch tokens"] | None = None
) -> Int[Tensor, "batch selected 2"]:
    """Return the top m = n // divisor of a text's n pairs, by the importance of the teacher's token.

    In descending importance, ties in the order of `pairs`; -1 fills up. The number of columns depends on that of
    `pairs` alone. `ordinary` is False at the teacher's special tokens: their pairs are left out, and a text with m < 2
    has none. Without `ordinary` all pairs count and m is 2 at least.
    """
    teacher_positions = pairs[..., 1].clamp_min(0)
    is_pair = pairs[..., 0] >= 0
    if ordinary is not None:
        is_pair = is_pair & ordinary.gather(1, teacher_positions)
    scores = importance.gather(1, teacher_positions).where(is_pair, -1.0)  # absent pairs come last
    order = scores.argsort(dim=1, descending=True, stable=True)
    columns = min(pairs.shape[1], max(2, pairs.shape[1] // divisor))
    ranked = pairs.gather(1, order[:, :columns, None].expand(-1, -1, 2))

    m = is_pair.sum(1) // divisor
    m = m.clamp_min(2) if ordinary is None else m.where(m > 1, 0)
    is_selected = torch.arange(columns, device=pairs.device) < m[:, None]
    return ranked.where(is_selected[..., None], -1)


def selected_gram(attention: Float[Tensor, "batch tokens tokens"], rows: Int[Tensor, "batch selected"]) -> Grams:
    """Return H A A' H of `rows` (-1 fills up) in a layer of the teacher (eq. 8 and 10), of unit Frobenius norm.

    Note: eq. 9 and 10 multiply from the right, which the shapes forbid; A is centred over the tokens, as in the
    authors' code.
    """
    selected = attention.gather(1, rows.clamp_min(0)[..., None].expand(-1, -1, attention.shape[2]))
    return unit_gram(centred_gram(selected, rows >= 0))


def ira_loss(
    student_rows: Sequence[Float[Tensor, "batch selected tokens"]],
    teacher_grams: Sequence[Float[Tensor, "batch selected selected"]],
    is_selected: Bool[Tensor, "batch selected"],
) -> Float[Tensor, " batch"]:
    """Return L_IRA (eq. 14) of every text: the sum over the layers k of 1 - sqrt(CKA(A_k^Stu, A_M(k)^Tea)).

    `student_rows` are the m selected rows of A^Stu in each layer (eq. 7), `teacher_grams` those of `selected_gram`.
    With K = H A A' H, HSIC (eq. 11) is <K_s, K_t>, and CKA (eq. 12 and 13) is <K_s, K_t> / (||K_s|| ||K_t||).
    """
    layers = len(student_rows)  # all layers are computed as one batch
    k_student = centred_gram(torch.cat(list(student_rows)), is_selected.repeat(layers, 1))  # eq. 9
    k_teacher = torch.cat(list(teacher_grams))  # eq. 10, with ||K_t|| = 1
    by_layer = (1 - root_cka(k_student, k_teacher)).view(layers, -1)
    return by_layer.sum(0)


def over_texts(values: Float[Tensor, " batch"], counted: Bool[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Return values whose mean over the batch is that of the `counted` texts, 0 and without gradient at others."""
    return values.where(counted, 0.0) * (len(values) / counted.sum().clamp_min(1))


# -- section 3.2: OTIS ----------------------------------------------------------------------------------------------


def softmax_importance(share: Importance, mask: Bool[Tensor, "batch tokens"]) -> Importance:
    """Return the softmax of the attention received, of which `share` (`importance`) is the part of each token.

    The sums add up to the number of tokens, as every token gives attention of sum 1. With a token that receives most
    of the attention nearly everything is left to that token.
    """
    received = share * mask.sum(1, keepdim=True)
    return received.where(mask, NO_WEIGHT).softmax(1) * mask


def student_importance(
    importance: Float[Tensor, "batch _teacher_tokens"],
    pairs: Pairs,
    mask: Bool[Tensor, "batch student_tokens"],
    softmax: bool = False,
) -> Float[Tensor, "batch student_tokens"]:
    """Return nu (eq. 16): each of the student's tokens has its partner's importance, others the smallest one; of sum 1.

    `mask` is the student's. The importance of several partners is added up. The smallest is that of tokens, not of
    padding. `softmax` instead of the division by the sum is the authors' code's, and nearly uniform.
    """
    student_positions, teacher_positions = pairs.clamp_min(0).unbind(-1)
    is_pair = (pairs[..., 0] >= 0).to(importance.dtype)
    zeros = importance.new_zeros(mask.shape)
    from_partners = zeros.scatter_add(1, student_positions, importance.gather(1, teacher_positions) * is_pair)
    has_partner = zeros.scatter_add(1, student_positions, is_pair) > 0
    smallest = importance.where(importance > 0, torch.inf).amin(1, keepdim=True)
    nu = from_partners.where(has_partner, smallest) * mask
    if softmax:
        return nu.where(mask, NO_WEIGHT).softmax(1) * mask
    return nu / nu.sum(1, keepdim=True)


def otis_cost(
    h_student: Float[Tensor, "batch student hidden"],
    h_teacher_p: Float[Tensor, "batch teacher hidden"],
    teacher_mask: Bool[Tensor, "batch teacher"],
) -> Float[Tensor, "batch student teacher"]:
    """Return C = 1 - softmax(S) over the teacher's tokens (eq. 18), S=h^S (h^T P)' / sqrt(d_s) (eq. 17); 1 at padding.

    `h_teacher_p` is h^T P, the teacher's last hidden states in the student's hidden size.
    """
    h_student = full_precision(h_student)
    h_teacher_p = full_precision(h_teacher_p)
    zero = torch.zeros((), dtype=h_teacher_p.dtype, device=h_teacher_p.device)
    padding = zero.where(teacher_mask, NO_WEIGHT)[:, None]
    scores = torch.baddbmm(padding, h_student, h_teacher_p.mT, alpha=h_student.shape[-1] ** -0.5)
    return 1 - scores.softmax(-1)


def state_cost(
    h_student_p: Float[Tensor, "batch student teacher_hidden"],
    h_teacher: Float[Tensor, "batch teacher teacher_hidden"],
    teacher_mask: Bool[Tensor, "batch teacher"],
) -> Float[Tensor, "batch student teacher"]:
    """Return half of 1 - cos between states, in [0, 1]; 1 at padding. Not in the paper; it replaces eq. 17 and 18.

    `h_student_p` are the student's last hidden states behind a linear layer to the teacher's hidden size.
    """
    h_student_p = F.normalize(full_precision(h_student_p), dim=-1)
    h_teacher = F.normalize(full_precision(h_teacher), dim=-1)
    return ((1 - h_student_p @ h_teacher.mT) / 2).where(teacher_mask[:, None], 1.0)
