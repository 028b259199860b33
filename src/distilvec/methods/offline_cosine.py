"""Offline embedding distillation (paper 003, sections 3.3 and 3.4): the cosine distance to cached teacher vectors.

A cache of target "pre_dense" holds teacher_embedding_final, too, so that a recipe with target "final" reads the same
cache.
"""

from __future__ import annotations

from typing import Literal

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import ObjectiveContext, Weights
from distilvec.losses.distance import cosine_distance
from distilvec.methods.base.embedding_regression import EmbeddingRegression
from distilvec.methods.base.terms import bibtex


class OfflineCosine(EmbeddingRegression):
    """Learns the direction of the teacher's vector.

    cosine: 1 - cos of the student's vector and the teacher's (eq. 3); one term per teacher (EmbeddingRegression).

    Args:
        target: "final", the models' embeddings, or "pre_dense", the vectors before their first Dense layer. The
            student's linear layers then learn nothing: they are the teacher's (`student.dense: keep`), or trained in a
            further stage.

    Errors: DistilvecError for "pre_dense" if a teacher has no Dense layer, or the student has another hidden size.
    Note: the text under eq. 3 calls the loss largest for orthogonal vectors; it is 1 for them and 2 for opposite ones.
    """

    citation = bibtex("embeddingmagibu2026")

    def __init__(
        self, context: ObjectiveContext, weights: Weights, target: Literal["final", "pre_dense"] = "final"
    ) -> None:
        if target == "pre_dense":
            _check_pre_dense(context)
        super().__init__(context, weights, "cosine", cosine_distance, pre_dense=target == "pre_dense")


def _check_pre_dense(context: ObjectiveContext) -> None:
    """Raise DistilvecError unless every teacher has pre-dense vectors, as wide as the student's hidden states."""
    for number, teacher in enumerate(context.teachers, 1):
        if teacher.pre_dense_dim is None:
            raise DistilvecError(
                f"'pre_dense' needs vectors before a Dense layer; teacher {number} has no such layer, or its table no "
                "column teacher_embedding_pre_dense.",
                "Set target to final.",
                key="method.options.target",
            )
    student_size = context.student.hidden_size
    teacher_size = context.teacher.pre_dense_dim
    if student_size != teacher_size:
        raise DistilvecError(
            f"'pre_dense' needs equal hidden sizes; found {student_size} (student), {teacher_size} (teacher).",
            "Take a student of the teacher's hidden size (student.model=teacher), or set target to final.",
            key="method.options.target",
        )
