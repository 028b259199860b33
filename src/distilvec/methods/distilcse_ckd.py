"""DistilCSE's contrastive distillation: a text's teacher vector against those of other texts, now and before.

Not DistillCSE (Xu et al. 2023), which is `distillcse`. Needs cached vectors only.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, Projection, TextBatch, Weights
from distilvec.core.options import Positive
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import mean_squared_error
from distilvec.methods.base.terms import bibtex, embeddings


class DistilCseCkd(Objective):
    """ckd: InfoNCE of the projected student with teacher vectors, of the batch and of a queue; mse: weight 0.

    The queue serves a batch first and then takes its vectors, in training only. It holds a text at most once and leaves
    the batch's own texts out of the negatives. So no text is its own negative, and SAM's second pass adds nothing.
    Checkpoints hold the queue.

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

    queue_vectors: Tensor
    queue_rows: Tensor  # corpus rows; -1: not filled yet
    queue_count: Tensor  # of all vectors ever taken

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        queue: Annotated[int, Field(ge=0)] = 50_000,
        scale: Positive = 20.0,
    ) -> None:
        super().__init__(context, weights)
        self.projection = nn.Linear(context.student_dim, context.teacher.dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))
        self.register_buffer("queue_vectors", torch.zeros(queue, context.teacher.dim, dtype=torch.float16))
        self.register_buffer("queue_rows", torch.full((queue,), -1))
        self.register_buffer("queue_count", torch.tensor(0))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        vector, target = embeddings(student, teacher)
        projected = self.projection(F.normalize(vector, dim=-1) * vector.shape[-1] ** 0.5)
        return self.weighted_terms(
            ckd=lambda: self._contrast(batch.rows, projected, target), mse=lambda: mean_squared_error(projected, target)
        )

    def space_projection(self) -> Projection | None:
        """Return the trained projection of an embedding at length 1."""
        return Projection(self.projection.weight * self.projection.in_features**0.5, self.projection.bias)

    def _contrast(self, rows: Int[Tensor, " batch"], projected: Tensor, target: Tensor) -> Tensor:
        loss = info_nce(projected, target, torch.exp(-self.log_scale), *self.negatives(rows))
        if self.training:
            self.take_up(rows, target)
        return loss

    def negatives(self, rows: Int[Tensor, " batch"]) -> tuple[Float[Tensor, "queue dim"], Bool[Tensor, " queue"]]:
        """Return the queue's vectors, and a mask of those that are filled and not of these corpus rows.

        On a CPU, which waits for nothing, slots that were never filled are left out.
        """
        slots = len(self.queue_rows)
        if rows.device.type == "cpu":
            slots = min(slots, int(self.queue_count))
        kept = self.queue_rows[:slots]
        return self.queue_vectors[:slots].float(), (kept >= 0) & (kept[:, None] != rows).all(1)

    @torch.no_grad()
    def take_up(self, rows: Int[Tensor, " batch"], vectors: Float[Tensor, "batch dim"]) -> None:
        """Write the vectors of rows that are not in the queue over the oldest ones.

        Shapes do not depend on the number of new rows: slots that are not needed get their own content again.
        """
        size = len(self.queue_rows)
        new = (rows[:, None] != self.queue_rows).all(1)
        chosen = (~new).int().argsort(stable=True)[:size]  # new rows first, in their order
        order = torch.arange(len(chosen), device=rows.device)
        slots, there = (self.queue_count + order) % max(1, size), order < new.sum()
        content = vectors[chosen].to(self.queue_vectors.dtype)
        self.queue_vectors[slots] = content.where(there[:, None], self.queue_vectors[slots])
        self.queue_rows[slots] = rows[chosen].where(there, self.queue_rows[slots])
        self.queue_count += there.sum()
