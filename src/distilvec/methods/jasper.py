"""Jasper and Stella: the teacher's vector, its similarities and their order, on several widths of the student at once.

Paper: Zhang, Li, Zeng, Wang: "Jasper and Stella: distillation of SOTA embedding models", 2024, the losses of its first
stages; the public class of RAG-Retrieval gives what the paper leaves open. Only cached vectors are needed. The two stages
(the new linear layer alone, then everything) are `stages` of the recipe.
"""

from __future__ import annotations

import torch

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import cosine_distance
from distilvec.losses.ranking import relative_triplet
from distilvec.losses.relations import cosine_relations

WIDTHS = (256, 512, 1024, 2048, 3584)  # of the public code


class Jasper(Objective):
    """cosine: to the teacher's vector; similarity: squared gaps of in-batch cosines; triplet: their order, by a margin.

    Options: `prefixes` are the widths (the student's first so many dimensions, normalised anew) over which similarity and
    triplet are averaged; by default those of 256, 512, 1024, 2048, 3584 below the student's width, and the width itself.
    `margin` is the triplet's.

    Note: the public student has a linear layer with a bias, ours (the student's own, `student.dense`) has none. There a
    Normalize at the end of the starting model is removed, so that the linear layer follows the pooling; ours does so from the
    start, and the Normalize behind it changes no term, since every one normalises.
    """

    in_batch = True
    citation = """@misc{zhang2024jasper,
  title = {Jasper and Stella: distillation of {SOTA} embedding models},
  author = {Zhang, Dun and Li, Jiacheng and Zeng, Ziyang and Wang, Fulong},
  year = {2024},
  eprint = {2412.19048},
  archivePrefix = {arXiv}
}"""

    def __init__(self, sizes: Sizes, prefixes: list[int] | None = None, margin: float = 0.015) -> None:
        super().__init__()
        width = sizes.embedding_width or sizes.teacher_width
        self.prefixes = [*(number for number in WIDTHS if number < width), width] if prefixes is None else prefixes
        if not self.prefixes or not all(1 <= prefix <= width for prefix in self.prefixes):
            raise DistilvecError(
                f"[method.options.prefixes] found {prefixes}; expected widths from 1 to the student's {width}."
            )
        self.margin = margin
        self.student_outputs = self.teacher_outputs = OutputSpec(embedding=True)
        self.weights = {"cosine": 10.0, "similarity": 200.0, "triplet": 20.0}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        assert student.embedding is not None and teacher.embedding is not None
        found: Terms = {}
        if self.weights["cosine"]:
            found["cosine"] = cosine_distance(student.embedding, teacher.embedding)
        if self.weights["similarity"] or self.weights["triplet"]:
            ours = torch.cat([cosine_relations(student.embedding[None, :, :prefix]) for prefix in self.prefixes])
            theirs = cosine_relations(teacher.embedding[None])[0]
        if self.weights["similarity"]:
            found["similarity"] = (ours - theirs).square().mean((0, 2))
        if self.weights["triplet"]:
            found["triplet"] = relative_triplet(ours, theirs, self.margin)
        return found
