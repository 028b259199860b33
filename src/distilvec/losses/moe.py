"""DistillMoE's losses on whole texts (paper 001, section 3.1): the experts' facets, their diversity and the gate.

One value per text. The first expert's loss (eq. 1) is `cosine_distance` of losses/distance.py. How the parts add up
(eq. 7 and 14) is in methods/distillmoe.py: the parts are separate terms of the loss, each with a weight.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from distilvec.core.device import full_precision
from distilvec.losses.contrastive import info_nce
from distilvec.losses.ranking import others
from distilvec.losses.relations import cosine_relations

PerRow = Float[Tensor, " batch"]
Gates = Float[Tensor, "batch experts"]


def contrastive(student: Float[Tensor, "batch dim"], teacher: Float[Tensor, "batch dim"], temperature: float) -> PerRow:
    """Return InfoNCE of a text's teacher vector against those of other texts (eq. 3); 0 for a single text."""
    return info_nce(full_precision(student), full_precision(teacher), temperature)


def pairwise_margin(
    student: Float[Tensor, "batch dim"], teacher: Float[Tensor, "batch other_dim"], margin: float
) -> PerRow:
    """Return relu(|cos(t_i, t_j) - cos(s_i, s_j)| - margin), averaged over other texts (eq. 5); 0 for a single one."""
    student_cosines = others(cosine_relations(full_precision(student)[None])[0])
    teacher_cosines = others(cosine_relations(full_precision(teacher)[None])[0])
    gaps = (teacher_cosines - student_cosines).abs()
    return (gaps - margin).relu().sum(-1) / max(1, len(student) - 1)


def within_margin(vectors: Float[Tensor, "batch dim"], margin: float) -> Float[Tensor, ""]:
    """Return the share of pairs of texts whose cosine is within `margin` of the mean cosine; 0 for a single text."""
    cosines = others(cosine_relations(full_precision(vectors)[None])[0])
    if not cosines.numel():
        return cosines.new_zeros(())
    return ((cosines - cosines.mean()).abs() <= margin).float().mean()


def gated_loss(gates: Gates | Float[Tensor, " experts"], losses: Float[Tensor, "batch experts"]) -> PerRow:
    """Return sum_k g_k L^(k), the experts' losses weighed by the gate (eq. 7, first part).

    `gates` without a batch are the same for all texts.
    """
    return (gates * losses).sum(1)


def diversity_loss(
    experts: Float[Tensor, "batch experts dim"], gates: Gates, floor: float = 0.1, floor_weight: float = 1.0
) -> PerRow:
    """Return L_div (eq. 6; eq. 7, second part): experts should differ, and no expert be left out.

    `floor_weight` of the second part is 1 in the paper.
    """
    return diversity(experts) + floor_weight * gate_floor(gates, floor)


def diversity(experts: Float[Tensor, "batch experts dim"]) -> PerRow:
    """Return relu(cos(f_m, f_n)), averaged over pairs of experts (eq. 6, first part); 0 for a single expert."""
    count = experts.shape[1]
    unit = F.normalize(full_precision(experts), dim=-1)
    is_diagonal = torch.eye(count, dtype=torch.bool, device=experts.device)
    cosines = torch.bmm(unit, unit.mT).relu().masked_fill(is_diagonal, 0.0)
    return cosines.sum((1, 2)) / max(1, count * (count - 1))


def gate_floor(gates: Gates, floor: float = 0.1) -> PerRow:
    """Return relu(floor - gate)^2, summed over the experts (eq. 6, second part): no expert may be left out.

    Note: the paper prints this part outside the mean over texts, with their index; it is averaged, as in the authors'
    code.
    """
    return (floor - full_precision(gates)).relu().square().sum(-1)


def towards_uniform(gates: Gates) -> PerRow:
    """Return KL(gates || uniform) = log(experts) - entropy (eq. 8); a gate of 0 adds nothing and has no gradient."""
    gates, count = full_precision(gates), gates.shape[1]
    return (gates * (gates.where(gates > 0, 1 / count) * count).log()).sum(-1)
