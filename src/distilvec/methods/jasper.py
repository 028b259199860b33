"""Jasper and Stella: the teacher's vector, its similarities and their order, on prefixes of the student's vector.

The losses of the paper's first stages, with the public class of RAG-Retrieval for what the paper leaves open. Needs
cached vectors only. The two stages (the new linear layer alone, then everything) are `stages` of the recipe.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, NonNegative, Positive, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import cosine_distance
from distilvec.losses.ranking import relative_triplet
from distilvec.losses.relations import cosine_relations
from distilvec.methods.base.terms import bibtex, embeddings, simcse_term

PREFIXES = (256, 512, 1024, 2048, 3584)  # of the public code


class Jasper(Objective):
    """Learns the teacher's vector, its similarities between texts, and their order.

    cosine: to the teacher's vector; similarity: squared gaps of in-batch cosines; triplet: their order, by a margin.

    simcse, of weight 0 by default: two dropout views, in the second stage of TALAS' comparison (0.4, and 0.6 the rest).

    Args:
        prefixes: numbers of the student's first dimensions, over which similarity and triplet are averaged; default:
            those of 256, 512, 1024, 2048, 3584 below the student's dim, and that dim
        margin: of the triplet
        temperature: of simcse

    Note: the public student's linear layer has a bias, ours (`student.dense`) has none.
    Note: simcse takes the embedding; TALAS' authors take the vector before the linear layers.
    """

    default_weights = {"cosine": 10.0, "similarity": 200.0, "triplet": 20.0, "simcse": 0.0}
    needs_fixed_batch = True
    citation = bibtex("zhang2024jasper")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        prefixes: Annotated[list[Count], Field(min_length=1)] | None = None,
        margin: NonNegative = 0.015,
        temperature: Positive = 0.1,
    ) -> None:
        super().__init__(context, weights)
        dim = context.student_dim
        if prefixes is None:
            self.prefixes = [number for number in PREFIXES if number < dim] + [dim]
        else:
            self.prefixes = prefixes
        if max(self.prefixes) > dim:
            raise option_error("prefixes", prefixes, f"dims from 1 to the student's {dim}")
        self.margin = margin
        self.temperature = temperature
        self.student_outputs = OutputSpec(embedding=True, second_view=bool(self.weights["simcse"]))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the distance to the teacher's vector, the terms on similarities, and SimCSE."""
        y, y_hat = embeddings(student, teacher)
        terms = self.weighted_terms(
            cosine=lambda: cosine_distance(y, y_hat),
            simcse=lambda: simcse_term(student, self.temperature),
        )
        if self.weights["similarity"] or self.weights["triplet"]:
            student_cosines = torch.cat([cosine_relations(y[None, :, :prefix]) for prefix in self.prefixes])
            teacher_cosines = cosine_relations(y_hat[None])[0]
            terms |= self.weighted_terms(
                similarity=lambda: (student_cosines - teacher_cosines).square().mean((0, 2)),
                triplet=lambda: relative_triplet(student_cosines, teacher_cosines, self.margin),
            )
        return terms
