"""DistillMoE's losses on whole texts (paper 001): what each expert learns, and what keeps the experts and their gates apart.

One value per text. The first expert's loss (eq. 1) is `cosine_distance` of losses/distance.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from distilvec.losses.contrastive import info_nce
from distilvec.losses.ranking import others
from distilvec.losses.relations import cosine_relations

PerRow = Float[Tensor, " batch"]
Gates = Float[Tensor, "batch experts"]


def contrastive(
    student: Float[Tensor, "batch width"], teacher: Float[Tensor, "batch width"], temperature: float
) -> PerRow:
    """InfoNCE with the text's own teacher vector as positive and the batch's others as negatives (eq. 3); 0 for a text that is alone."""
    return info_nce(_exact(student), _exact(teacher), temperature)


def pairwise_margin(
    student: Float[Tensor, "batch width"], teacher: Float[Tensor, "batch other"], margin: float
) -> PerRow:
    """relu(|cos(t_i, t_j) - cos(s_i, s_j)| - margin), averaged over the other texts j (eq. 5); 0 for a text that is alone."""
    gaps = others(cosine_relations(_exact(teacher)[None])[0]) - others(cosine_relations(_exact(student)[None])[0])
    return (gaps.abs() - margin).relu().sum(-1) / max(1, len(student) - 1)


def diversity(experts: Float[Tensor, "batch experts width"]) -> PerRow:
    """relu(cos(f_m, f_n)), averaged over ordered pairs of different experts (eq. 6, first part); 0 for a single expert."""
    count = experts.shape[1]
    unit = F.normalize(_exact(experts), dim=-1)
    alike = torch.bmm(unit, unit.mT).relu()
    same = torch.eye(count, dtype=torch.bool, device=experts.device)
    return alike.masked_fill(same, 0.0).sum((1, 2)) / max(1, count * (count - 1))


def gate_floor(gates: Gates, floor: float = 0.1) -> PerRow:
    """relu(floor - gate)^2, summed over the experts (eq. 6, second part): no expert is to be left out.

    Note: the paper prints this part outside the mean over texts although it has their index; it is averaged too, as in the authors' code.
    """
    return (floor - _exact(gates)).relu().square().sum(-1)


def towards_uniform(gates: Gates) -> PerRow:
    """KL(gates || uniform) = log(experts) - entropy (eq. 8), from 0 to log(experts); a gate of 0 adds nothing and has no gradient."""
    gates, count = _exact(gates), gates.shape[1]
    return (gates * (gates.where(gates > 0, 1 / count) * count).log()).sum(-1)


def _exact(x: Tensor) -> Tensor:
    """In fp32, or float64 if given."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
