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
    """Mean hinge over all pairs of pairs of texts, by examples (Zhang et al., Jasper and Stella, relative similarity).

    Of two pairs of texts the one that the teacher finds more similar must be so to the student by `margin`:
    relu(margin - (s_more - s_less)), averaged over the P(P-1)/2 pairs of pairs and over the student's matrices, one a
    prefix. Of two pairs that are equal to the teacher the later one, counted row by row above the diagonal, takes the part
    of the more similar one. The hinge of a pair of pairs is shared out equally between its four texts. Exact, in
    O(P log P) time and O(P) memory a prefix, for P = B(B-1)/2.

    Note: the public class compares all pairs of pairs, O(B^4) in time and memory; values and gradients are the same.
    """
    batch = len(teacher)
    first, second = torch.triu_indices(batch, batch, 1, device=teacher.device)
    order = teacher[first, second].argsort(stable=True)
    first, second = first[order], second[order]
    each: Tensor = _HingeShares.apply(student[:, first, second].double(), margin)  # type: ignore[no-untyped-call]
    shares = each.sum(0)
    of_rows = shares.new_zeros(batch).index_add(0, first, shares).index_add(0, second, shares)
    comparisons = len(order) * (len(order) - 1) // 2
    return (of_rows * batch / (2 * len(student) * max(1, comparisons))).to(student.dtype)


class _HingeShares(torch.autograd.Function):
    """For every item half the sum of relu(margin - (x_j - x_i)), i before j, over the couples it is in.

    The hinge is piecewise linear, so the gradient is counts (weighted by what comes from above) and the second
    derivative in x is zero; the backward pass is itself differentiable.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, margin: float) -> Tensor:
        later, earlier, above, below = _couples(x, x, margin)
        context.save_for_backward(x.detach(), later - earlier)
        context.margin = margin
        return 0.5 * ((later - earlier) * x + (later + earlier) * margin - above + below)

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, None]:
        x, counts = context.saved_tensors
        look = (
            upstream.device.type == "cpu" and not upstream.requires_grad
        )  # elsewhere a look would wait for the device
        if look and bool((upstream == upstream[:1, :1]).all()):
            return upstream * counts, None  # all examples weigh the same: the sums over partners are counts too
        _, _, above, below = _couples(x, upstream, context.margin)
        return 0.5 * (upstream * counts + above - below), None


def _couples(
    x: Float[Tensor, "lists items"], weight: Float[Tensor, "lists items"], margin: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Over the active couples (i before j in the list, x_j < x_i + margin): counts and sums of the partners' weights.

    For every item: number of its later partners, of its earlier ones; weight of its later partners, of its earlier ones.
    As merge sort goes: blocks of doubling width, the two halves of each sorted, so that the partners of an item are a
    prefix of the other half (of its end, for earlier partners) and their sum a difference of prefix sums.
    """
    lists, items = x.shape
    padded = 1 << max(0, items - 1).bit_length()
    values = F.pad(x, (0, padded - items), value=float("inf"))  # comes last and is never active
    weight = F.pad(weight, (0, padded - items))
    place = torch.arange(padded, device=x.device).expand(lists, -1)
    later, earlier, above, below = (torch.zeros_like(weight) for _ in range(4))
    width = 1
    while width < padded:
        halves, places = values.view(lists, -1, 2, width), place.view(lists, -1, 2, width)
        reach, right = halves[:, :, 0] + margin, halves[:, :, 1].contiguous()
        ends = torch.searchsorted(right, reach)  # right items below each left item's reach
        starts = torch.searchsorted(reach, right, right=True)  # left items that do not reach each right item
        sums = F.pad(weight.gather(1, place).view_as(halves).cumsum(-1), (1, 0))
        of_left, of_right = (places[:, :, side].reshape(lists, -1) for side in (0, 1))
        later = later.scatter_add(1, of_left, ends.to(x.dtype).view(lists, -1))
        earlier = earlier.scatter_add(1, of_right, (width - starts).to(x.dtype).view(lists, -1))
        above = above.scatter_add(1, of_left, sums[:, :, 1].gather(-1, ends).view(lists, -1))
        below = below.scatter_add(1, of_right, (sums[:, :, 0, -1:] - sums[:, :, 0].gather(-1, starts)).view(lists, -1))
        width *= 2
        values, order = values.view(lists, -1, width).sort(-1)
        place = place.reshape(lists, -1, width).gather(-1, order).view(lists, -1)
        values = values.view(lists, -1)
    return later[:, :items], earlier[:, :items], above[:, :items], below[:, :items]


def others(similarities: Float[Tensor, "batch batch"]) -> Float[Tensor, "batch others"]:
    """Each row without its diagonal entry: the similarities of a text to the other texts of the batch."""
    batch = len(similarities)
    return (
        similarities.flatten()[1:].view(batch - 1, batch + 1)[:, :-1].reshape(batch, batch - 1)
        if batch > 1
        else similarities[:, :0]
    )


def listwise_cross_entropy(
    student: Float[Tensor, "batch others"],
    teacher: Float[Tensor, "batch others"],
    student_temperature: float,
    teacher_temperature: float,
) -> Float[Tensor, " batch"]:
    """-sum_j softmax(teacher / t')_j log softmax(student / t)_j by rows (Xu et al., DistillCSE, the distillation loss)."""
    return -((teacher / teacher_temperature).softmax(-1) * (student / student_temperature).log_softmax(-1)).sum(-1)


def group_shuffled(
    student: Float[Tensor, "batch others"], teacher: Float[Tensor, "batch others"], mass: float
) -> Float[Tensor, "batch others"]:
    """The student's values in random order within groups of neighbours in the teacher's order (DistillCSE, group-p shuffling).

    By rows: the candidates are ranked by the teacher and cut into groups that each hold `mass` of the softmax of the
    teacher's similarities (temperature 1), so that the order within a group, which teachers get wrong, is not learnt. The
    noise comes from torch's global generator.
    """
    ranked, order = teacher.sort(-1, descending=True)
    group = (ranked.softmax(-1).cumsum(-1) / mass).floor().clamp_max(math.ceil(1 / mass) - 1)
    noise = 0.99 * torch.rand_like(group)  # never rounded up to the next group
    drawn = order.gather(-1, (group + noise).argsort(-1))
    return torch.empty_like(student).scatter(-1, order, student.gather(-1, drawn))
