"""DynamicCKA as the paper says it: text by text, token by token, CKA through matrices of the widths' size.

What the batched form (distilvec.losses.dynamic_cka) is measured and tested against.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from distilvec.losses.dynamic_cka import Rule


@dataclass(frozen=True)
class Case:
    """A batch: states of both sides, Q, masks; `sizes` are the texts' lengths."""

    states: Tensor
    teacher: Tensor
    projection: Tensor
    student_mask: Tensor
    teacher_mask: Tensor
    sizes: list[tuple[int, int]]

    def single(self, text: int) -> Case:
        """One of its texts, with gradients that reach this batch."""
        one = slice(text, text + 1)
        tensors = (self.states[one], self.teacher[one], self.projection, self.student_mask[one], self.teacher_mask[one])
        return Case(*tensors, self.sizes[one])

    def doubled(self) -> Case:
        """The same in float64."""
        return replace(
            self, states=self.states.double(), teacher=self.teacher.double(), projection=self.projection.double()
        )

    def wanting(self) -> Case:
        """The same, its states and Q with gradients of their own."""
        return replace(
            self, states=self.states.clone().requires_grad_(), projection=self.projection.clone().requires_grad_()
        )


def draw(texts: int, student: int, teacher: int, width: int, teacher_width: int) -> Case:
    """Random states of texts of three quarters of the lengths up to all of them."""
    generator = torch.Generator().manual_seed(0)
    ours = torch.randint(3 * student // 4, student + 1, (texts,), generator=generator)
    theirs = torch.randint(3 * teacher // 4, teacher + 1, (texts,), generator=generator)
    ours[0], theirs[0] = student, teacher
    student_mask, teacher_mask = torch.arange(student) < ours[:, None], torch.arange(teacher) < theirs[:, None]
    shapes = ((texts, student, width), (texts, teacher, teacher_width), (teacher_width, width))
    states, others, projection = (torch.randn(*shape, generator=generator) for shape in shapes)
    sizes = list(zip(ours.tolist(), theirs.tolist(), strict=True))
    return Case(states, others, projection * width**-0.5, student_mask, teacher_mask, sizes)


def aggregation_by_loop(case: Case, rule: Rule) -> Tensor:
    """The aggregates of all texts, one below the other. All tokens go through Q at once, which the paper does not say."""  # noqa: E501
    ours = case.states @ case.projection.T
    pairs = [(ours[text, :n], case.teacher[text, :m]) for text, (n, m) in enumerate(case.sizes)]
    cosines = [F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T for first, second in pairs]
    return torch.cat(aggregates(cosines, case, rule))


def aggregates(cosines: list[Tensor], case: Case, rule: Rule) -> list[Tensor]:
    """Each text's aggregate [n, teacher's width] from its cosines [n, m]."""
    return [
        torch.stack([aggregate(row, case.teacher[text, : case.sizes[text][1]], rule) for row in rows])
        for text, rows in enumerate(cosines)
    ]


def aggregate(cosines: Tensor, teacher: Tensor, rule: Rule) -> Tensor:
    """What one of the student's tokens gathers (eq. 11 and below): the most probable tokens until their mass suffices."""  # noqa: E501
    shares = (cosines / rule.temperature).softmax(0)
    ranked, order = shares.sort(descending=True, stable=True)
    kept, mass = list[int](), 0.0
    for share, place in zip(ranked.tolist(), order.tolist(), strict=True):
        kept.append(place)
        mass += share
        if mass >= rule.threshold or len(kept) == rule.most:
            break
    if rule.least is not None:
        kept = [place for place in kept if cosines[place].item() >= rule.least] or kept[:1]
    return (shares[kept] / shares[kept].sum()) @ teacher[kept]


def value_by_loop(case: Case, rule: Rule) -> Tensor:
    """1 - sqrt(CKA) of each text by eq. 12: norms of matrices of the widths' size."""
    rows = torch.split(aggregation_by_loop(case, rule), [n for n, _ in case.sizes])
    return torch.stack(
        [1 - in_feature_space(case.states[text, : len(theirs)], theirs).sqrt() for text, theirs in enumerate(rows)]
    )


def in_feature_space(first: Tensor, second: Tensor) -> Tensor:
    """CKA of two matrices with the same rows."""
    first, second = first - first.mean(0), second - second.mean(0)
    return torch.linalg.norm(first.T @ second) ** 2 / (
        torch.linalg.norm(first.T @ first) * torch.linalg.norm(second.T @ second)
    )
