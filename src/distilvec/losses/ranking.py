"""Losses on the order of in-batch similarities: Jasper's relative triplets and DistillCSE's group shuffling."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def relative_triplet(
    student: Float[Tensor, "prefixes batch batch"], teacher: Float[Tensor, "batch batch"], margin: float
) -> Float[Tensor, " batch"]:
    """Return the mean hinge over all pairs of pairs of texts, by examples (Jasper and Stella, relative similarity).

    Of two pairs of texts the one that is more similar to the teacher must be so to the student by `margin`: relu(margin
    - (s_more - s_less)), averaged over the P(P-1)/2 pairs of pairs and over the student's matrices, one per prefix. Of
    equal pairs the later one, counted row by row above the diagonal, is the more similar one. Each hinge is shared out
    equally between its four texts. Exact, in O(P log P) time and O(P) memory per prefix, for P = B(B-1)/2.
    """
    batch = len(teacher)
    first, second = torch.triu_indices(batch, batch, 1, device=teacher.device)
    order = teacher[first, second].argsort(stable=True)
    first, second = first[order], second[order]
    # In double precision, since the sums over partners are differences of long prefix sums
    by_prefix: Tensor = _HingeShares.apply(student[:, first, second].double(), margin)  # type: ignore[no-untyped-call]
    shares = by_prefix.sum(0)
    by_text = shares.new_zeros(batch).index_add(0, first, shares).index_add(0, second, shares)
    comparisons = len(order) * (len(order) - 1) // 2
    return (by_text * batch / (2 * len(student) * max(1, comparisons))).to(student.dtype)


class _HingeShares(torch.autograd.Function):
    """For every item k half the sum of relu(margin - (x_j - x_i)) over the active couples, i before j, that k is in.

    A couple is active if x_j < x_i + margin. With a_k active couples where k is the earlier one and b_k where k is the
    later one, and partners p: y_k = ((a_k - b_k) x_k + (a_k + b_k) margin - sum_later x_p + sum_earlier x_p) / 2. A
    couple's hinge is in y_i and in y_j and has the slope +1/2 in x_i, -1/2 in x_j in both. So an upstream g gives x_k
    the gradient ((a_k - b_k) g_k + sum_later g_p - sum_earlier g_p) / 2. The second derivative in x is zero, and
    backward is itself differentiable.
    """

    # Autograd through `_couples` would keep every level of the merge sort in memory.

    @staticmethod
    def forward(context: Any, x: Tensor, margin: float) -> Tensor:
        later, earlier, sum_later, sum_earlier = _couples(x, x, margin)
        context.save_for_backward(x.detach(), later - earlier)
        context.margin = margin
        return 0.5 * ((later - earlier) * x + (later + earlier) * margin - sum_later + sum_earlier)

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, None]:
        x, counts = context.saved_tensors
        # Equal weights, the usual case: the sums over partners are counts, too. Only a CPU can look at the values
        # without waiting for them.
        may_read = upstream.device.type == "cpu" and not upstream.requires_grad
        if may_read and bool((upstream == upstream[:1, :1]).all()):
            return upstream * counts, None
        _, _, sum_later, sum_earlier = _couples(x, upstream, context.margin)
        return 0.5 * (upstream * counts + sum_later - sum_earlier), None


def _couples(
    x: Float[Tensor, "lists items"], weight: Float[Tensor, "lists items"], margin: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return for every item the numbers of its later and earlier partners, then the sums of the weights of both.

    As in merge sort: blocks of doubling size whose halves are sorted. An item's partners are then a prefix of the other
    half (its end, for earlier partners), and their sum a difference of prefix sums.
    """
    lists, items = x.shape
    padded = 1 << max(0, items - 1).bit_length()
    values = F.pad(x, (0, padded - items), value=float("inf"))  # comes last and is never active
    weight = F.pad(weight, (0, padded - items))
    position = torch.arange(padded, device=x.device).expand(lists, -1)
    later, earlier, sum_later, sum_earlier = (torch.zeros_like(weight) for _ in range(4))
    size = 1
    while size < padded:
        halves = values.view(lists, -1, 2, size)
        reach = halves[:, :, 0] + margin
        right = halves[:, :, 1].contiguous()
        ends = torch.searchsorted(right, reach)  # right items below each left item's reach
        starts = torch.searchsorted(reach, right, right=True)  # left items that do not reach each right item
        sums = F.pad(weight.gather(1, position).view_as(halves).cumsum(-1), (1, 0))
        sums_left = sums[:, :, 0]
        sums_right = sums[:, :, 1]

        positions = position.view(lists, -1, 2, size)
        left_items = positions[:, :, 0].reshape(lists, -1)
        right_items = positions[:, :, 1].reshape(lists, -1)
        later = later.scatter_add(1, left_items, ends.to(x.dtype).view(lists, -1))
        earlier = earlier.scatter_add(1, right_items, (size - starts).to(x.dtype).view(lists, -1))
        sum_later = sum_later.scatter_add(1, left_items, sums_right.gather(-1, ends).view(lists, -1))
        below = sums_left[..., -1:] - sums_left.gather(-1, starts)
        sum_earlier = sum_earlier.scatter_add(1, right_items, below.view(lists, -1))

        size *= 2
        values, order = values.view(lists, -1, size).sort(-1)
        position = position.reshape(lists, -1, size).gather(-1, order).view(lists, -1)
        values = values.view(lists, -1)
    return later[:, :items], earlier[:, :items], sum_later[:, :items], sum_earlier[:, :items]


def others(similarities: Float[Tensor, "batch batch"]) -> Float[Tensor, "batch others"]:
    """Return each row without its diagonal entry: the similarities of a text to the other texts of the batch."""
    batch = len(similarities)
    if batch == 1:
        return similarities[:, :0]
    # Without the first entry, each line of batch + 1 numbers ends with a diagonal entry. No index is read, so no wait.
    return similarities.flatten()[1:].view(batch - 1, batch + 1)[:, :-1].reshape(batch, batch - 1)


def listwise_cross_entropy(
    student: Float[Tensor, "batch others"],
    teacher: Float[Tensor, "batch others"],
    student_temperature: float,
    teacher_temperature: float,
) -> Float[Tensor, " batch"]:
    """Return -sum_j softmax(teacher / t')_j log softmax(student / t)_j by rows (DistillCSE)."""
    target = (teacher / teacher_temperature).softmax(-1)
    return -(target * (student / student_temperature).log_softmax(-1)).sum(-1)


def group_shuffled(
    student: Float[Tensor, "batch others"], teacher: Float[Tensor, "batch others"], share: float
) -> Float[Tensor, "batch others"]:
    """Return the student's values, shuffled within groups of neighbours in the teacher's order (DistillCSE, group-p).

    Each group holds `share` of the softmax of the teacher's similarities (temperature 1). The order within a group, in
    which teachers err, is then not learned. The noise comes from torch's global generator.
    """
    ranked, order = teacher.sort(-1, descending=True)
    group = (ranked.softmax(-1).cumsum(-1) / share).floor().clamp_max(math.ceil(1 / share) - 1)
    noise = 0.99 * torch.rand_like(group)  # never rounded up to the next group
    shuffled = order.gather(-1, (group + noise).argsort(-1))
    return torch.empty_like(student).scatter(-1, order, student.gather(-1, shuffled))
