"""SimCSE, unsupervised (section 3): two dropout views against other texts of the batch. Needs no teacher."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Positive
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.contrastive import info_nce
from distilvec.methods.base.terms import bibtex


class SimCse(Objective):
    """Brings two dropout views of a text together and other texts apart; no teacher.

    simcse: InfoNCE between the student's embeddings under two dropout masks (eq. 1 and 4).

    Args:
        temperature: of the softmax
        head: "mlp" adds a linear layer and tanh while training, as the paper does; "none" as in TALAS' comparison

    Note: the head reads the embedding at length sqrt(dim), as a LayerNorm leaves the paper's vector, so that tanh is
    not linear.
    """

    default_weights = {"simcse": 1.0}
    in_teacher_space = False
    needs_fixed_batch = True
    student_outputs = OutputSpec(embedding=True, second_view=True)
    teacher_outputs = OutputSpec()
    citation = bibtex("gao2021simcse")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        temperature: Positive = 0.05,
        head: Literal["none", "mlp"] = "none",
    ) -> None:
        super().__init__(context, weights)
        self.temperature = temperature
        dim = context.student_dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.Tanh()) if head == "mlp" else None

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return InfoNCE between the two views."""
        assert student.embedding is not None and student.second_view is not None
        first = self._behind_head(student.embedding)
        second = self._behind_head(student.second_view)
        return {"simcse": info_nce(first, second, self.temperature)}

    def _behind_head(self, embedding: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        if self.mlp is None:
            return embedding
        view: Tensor = self.mlp(F.normalize(embedding, dim=-1) * embedding.shape[-1] ** 0.5)
        return view
