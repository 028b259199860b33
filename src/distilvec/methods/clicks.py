"""Clicks: queries learn to find the stored documents that answer them, held to the teacher's vectors.

A stage after a distillation, whose student it begins with. Documents keep their stored vectors: the student embeds
queries, and stored texts for the distance to the teacher alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Positive
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.contrastive import answer_loss, search_scores, true_negatives
from distilvec.losses.distance import l2_distance
from distilvec.methods.base.terms import bibtex, embeddings


class Clicks(Objective):
    """Trains queries to find their answers among stored vectors, and stored texts to keep the teacher's vectors.

    l2: the distance to the teacher's vector, of stored texts; answers: cross-entropy of a query's answer among the
    answers of other queries and mined or stated negatives, times the pair's weight.

    Args:
        temperature: of answers
    """

    default_weights = {"l2": 1.0, "answers": 0.1}
    needs_fixed_batch = True
    reads_pairs = True
    citation = bibtex("yi2019", "moreira2024")

    def __init__(self, context: ObjectiveContext, weights: Weights, temperature: Positive = 0.05) -> None:
        super().__init__(context, weights)
        self.temperature = temperature

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return one value per text: 0 for the term that is not its own."""
        assert batch.pairs is not None  # without pairs the recipe was refused
        y, y_hat = embeddings(student, teacher)
        is_query = batch.pairs.is_query
        return self.weighted_terms(
            l2=lambda: l2_distance(y, y_hat).masked_fill(is_query, 0.0),
            answers=lambda: self._answers(batch, y).masked_fill(~is_query, 0.0),
        )

    def _answers(self, batch: TextBatch, y: Tensor) -> Tensor:
        pairs = batch.pairs
        assert pairs is not None
        with torch.no_grad():
            directions = F.normalize(pairs.candidates, dim=-1)
            likeness = directions[pairs.answers] @ directions.T
            cosines = F.normalize(y.float(), dim=-1) @ directions.T
            is_negative = true_negatives(cosines, likeness, pairs.answers, pairs.may_be_negative, pairs.is_mined)
        scores = search_scores(y.float(), pairs.candidates, self.context.teacher.similarity) / self.temperature
        return pairs.weights * answer_loss(scores, pairs.answers, is_negative, pairs.log_frequency)
