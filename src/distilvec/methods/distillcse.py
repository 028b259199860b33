"""DistillCSE: the teacher's similarities within the batch as soft labels, with their fine order shuffled, and SimCSE.

Not DistilCSE (Gao et al. 2021), which is `distilcse_ckd`. Needs cached vectors only.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, Positive, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.ranking import group_shuffled, listwise_cross_entropy, others
from distilvec.losses.relations import cosine_relations
from distilvec.methods.base.terms import bibtex, embeddings, simcse_term


class DistillCse(Objective):
    """Trains the student to find the texts of a batch as similar to each other as the teacher does.

    distill: cross-entropy of the in-batch similarities, teacher to student (first view); simcse: two dropout views.

    Args:
        student_temperature, teacher_temperature: of distill
        temperature: of simcse
        shuffle: share of softmax probability of a group within which the student's similarities are shuffled while
            training (group-p shuffling); null: not shuffled
        teacher_widths: dims of several teachers whose vectors are concatenated in the cached one; their similarities
            are averaged

    Note: the public student has a projection head while training; ours, as in TALAS' comparison, has none.
    """

    default_weights = {"distill": 1.0, "simcse": 1.0}
    in_teacher_space = False
    needs_fixed_batch = True
    citation = bibtex("xu2023distillcse")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        student_temperature: Positive = 0.025,
        teacher_temperature: Positive = 0.0125,
        temperature: Positive = 0.05,
        shuffle: Annotated[float, Field(gt=0, le=1)] | None = 0.15,
        teacher_widths: list[Count] | None = None,
    ) -> None:
        super().__init__(context, weights)
        self.teacher_widths = teacher_widths or [context.teacher.dim]
        if sum(self.teacher_widths) != context.teacher.dim:
            raise option_error(
                "teacher_widths", teacher_widths, f"dims that add up to the teacher's {context.teacher.dim}"
            )
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature
        self.temperature = temperature
        self.shuffle = shuffle
        self.student_outputs = OutputSpec(embedding=True, second_view=bool(self.weights["simcse"]))
        self.teacher_outputs = OutputSpec(embedding=bool(self.weights["distill"]))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the cross-entropy of the similarities, and SimCSE of the two views."""
        return self.weighted_terms(
            distill=lambda: self._distill(*embeddings(student, teacher)),
            simcse=lambda: simcse_term(student, self.temperature),
        )

    def _distill(self, student: Tensor, teacher: Tensor) -> Tensor:
        student_similarities = others(cosine_relations(student[None])[0])
        teacher_similarities = others(self.similarities(teacher))
        if self.shuffle is not None and self.training:
            student_similarities = group_shuffled(student_similarities, teacher_similarities, self.shuffle)
        return listwise_cross_entropy(
            student_similarities, teacher_similarities, self.student_temperature, self.teacher_temperature
        )

    def similarities(self, vectors: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch batch"]:
        """Return the teacher's cosines, averaged over the teachers that the vector is made of."""
        parts = torch.split(vectors, self.teacher_widths, -1)
        return torch.stack([cosine_relations(part[None])[0] for part in parts]).mean(0)
