"""Relations between the texts of a batch: cosines, LASD, RKD. A text's value is its row's share of the mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Float[Tensor, "batch dim"]
PerRow = Float[Tensor, " batch"]
# Smaller squared distances, as a share of the mean squared length, are rounding and count as 0
SMALLEST_SQUARED_DISTANCE = 1e-6


def cosine_relations(layers: Float[Tensor, "layers batch dim"]) -> Float[Tensor, "layers batch batch"]:
    """Return R_l, the cosines between all texts in every layer (TALAS, eq. 4), as one product."""
    unit = F.normalize(layers, dim=-1)
    return torch.bmm(unit, unit.mT)


def layer_relation_gaps(layers: Float[Tensor, "layers batch dim"], detach_guide: bool = False) -> PerRow:
    """Return LASD: the mean over adjacent layers of ||R_(l+1) - R_l||^2 / N^2 (TALAS, eq. 5), by rows.

    `detach_guide` sends no gradient into the upper layer of a pair.
    """
    relations = cosine_relations(layers)
    lower = relations[:-1]
    upper = relations[1:].detach() if detach_guide else relations[1:]
    return (upper - lower).square().mean((0, 2))


def similarity_gaps(student: Float[Tensor, "batch dim"], teacher: Float[Tensor, "batch other_dim"]) -> PerRow:
    """Return |cos(s_i, s_j) - cos(t_i, t_j)|, averaged over the other texts j; 0 for a single text. No gradient.

    The distance of a student to a teacher without a common space; rotations do not change it.
    """
    with torch.no_grad():
        student_cosines = cosine_relations(student.float()[None])[0]
        teacher_cosines = cosine_relations(teacher.float()[None])[0]
        gaps = (student_cosines - teacher_cosines).abs().fill_diagonal_(0)
        return gaps.sum(-1) / max(1, len(student) - 1)


def rkd_distances(student: Float[Tensor, "batch dim"], teacher: Float[Tensor, "batch other_dim"]) -> PerRow:
    """Return RKD's distance-wise loss (Park et al. 2019, eq. 5 and 6): Huber on distances in units of their own mean.

    Note: averaged over all N^2 pairs, those of a text with itself (0) included, as in the authors' code.
    """
    target = _relative_distances(teacher).detach()
    return F.smooth_l1_loss(_relative_distances(student), target, reduction="none").mean(-1)


def rkd_angles(student: Float[Tensor, "batch dim"], teacher: Float[Tensor, "batch other_dim"]) -> PerRow:
    """Return RKD's angle-wise loss (Park et al. 2019, eq. 7 and 8): Huber on the cosine of the angle j-i-k.

    A text's share holds the angles at that text. Memory grows with N^3 and not with N^3 x dim: angles come from the
    Gram matrix.
    Note: averaged over all N^3 triplets, degenerate ones (cosine 0) included, as in the authors' code.
    """
    target = _angles(teacher).detach()
    return F.smooth_l1_loss(_angles(student), target, reduction="none").mean((1, 2))


def _relative_distances(x: Rows) -> Float[Tensor, "batch batch"]:
    _, squared, differ = _gram(x)
    distances = squared.sqrt() * differ
    mean = distances.sum() / differ.sum().clamp_min(1)
    return distances / mean.clamp_min(1e-12)


def _angles(x: Rows) -> Float[Tensor, "batch batch batch"]:
    """Return the cosine of the angle j-i-k as [i, j, k]: <x_j - x_i, x_k - x_i> / (||x_j - x_i|| ||x_k - x_i||)."""
    gram, squared, differ = _gram(x)
    products = gram[None] - gram[:, :, None] - gram[:, None, :] + gram.diagonal()[:, None, None]
    inverse = squared.rsqrt() * differ
    return products * inverse[:, :, None] * inverse[:, None, :]


def _gram(x: Rows) -> tuple[Float[Tensor, "batch batch"], Float[Tensor, "batch batch"], Bool[Tensor, "batch batch"]]:
    """Return inner products about the mean text, squared distances (1 for equal texts) and a mask of unequal pairs."""
    centred = x - x.mean(0)
    gram = centred @ centred.T
    lengths = gram.diagonal()
    squared = lengths[:, None] + lengths[None] - 2 * gram
    differ = squared > SMALLEST_SQUARED_DISTANCE * lengths.mean()
    differ = differ & ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    return gram, squared.where(differ, 1.0), differ
