"""DistilCSE's contrastive distillation: a text's teacher vector against those of other texts, now and before.

Not DistillCSE (Xu et al. 2023), which is `distillcse`. Needs cached vectors only.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Int
from pydantic import Field
from torch import Tensor, nn

from distilvec.core.objective import LossTerms, ObjectiveContext, Projection, TextBatch, Weights
from distilvec.core.options import Positive
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import mean_squared_error
from distilvec.methods.base.queue import QueueObjective
from distilvec.methods.base.terms import bibtex, embeddings


class DistilCseCkd(QueueObjective):
    """Trains the student to tell the teacher's vector of a text from those of other texts.

    ckd: InfoNCE of the projected student with teacher vectors, of the batch and of a queue; mse: weight 0.

    The queue's vectors are further negatives, without those of the batch's own texts.

    Args:
        queue: number of past teacher vectors kept as negatives (float16, as in the cache); 0: none
        scale: initial factor of the cosines, learned as its logarithm

    Note: the paper's queue may hold a text several times if it is longer than the corpus.
    Note: the projection reads the embedding at length sqrt(dim), as a LayerNorm leaves the paper's vector; else its
    bias outweighs the text.
    """

    default_weights = {"ckd": 1.0, "mse": 0.0}
    in_teacher_space = False
    needs_fixed_batch = True
    citation = bibtex("gao2021distilcse")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        queue: Annotated[int, Field(ge=0)] = 50_000,
        scale: Positive = 20.0,
    ) -> None:
        super().__init__(context, weights, queue)
        self.projection = nn.Linear(context.student_dim, context.teacher.dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return InfoNCE of the projected student against teacher vectors, and its squared error to its own."""
        y, y_hat = embeddings(student, teacher)
        projected = self.projection(F.normalize(y, dim=-1) * y.shape[-1] ** 0.5)
        return self.weighted_terms(
            ckd=lambda: self._contrast(batch.rows, projected, y_hat), mse=lambda: mean_squared_error(projected, y_hat)
        )

    def space_projection(self) -> Projection | None:
        """Return the trained projection of an embedding at length 1."""
        return Projection(self.projection.weight * self.projection.in_features**0.5, self.projection.bias)

    def _contrast(self, rows: Int[Tensor, " batch"], projected: Tensor, y_hat: Tensor) -> Tensor:
        negatives, is_negative = self.other_vectors(rows)
        loss = info_nce(projected, y_hat, torch.exp(-self.log_scale), negatives, is_negative)
        if self.training:
            self.enqueue(rows, y_hat)
        return loss
