"""REDACT (published as LEAF): the student approximates the teacher's embedding map, nothing else.

Paper: "Knowledge Distillation of Text Embedding Models with Teacher-Aligned Representations", sections 3 and 3.2.
The student lives in the teacher's space, so queries can be encoded by the student and documents by the teacher.
"""

from __future__ import annotations

from typing import Literal

from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.losses.distance import cosine_distance, l2_distance, mean_squared_error
from distilvec.objective import Objective, Sizes, Terms

DISTANCES = {"l2": l2_distance, "mse": mean_squared_error, "cosine": cosine_distance}


class Redact(Objective):
    """The distance of the student's embedding to the cached teacher embedding (eq. 3).

    Options: `distance` is "l2" (the paper's un-squared norm), "mse" or "cosine".
    """

    citation = """@misc{leaf2025,
  title = {LEAF: Knowledge Distillation of Text Embedding Models with Teacher-Aligned Representations},
  year = {2025}
}"""

    def __init__(self, sizes: Sizes, distance: Literal["l2", "mse", "cosine"] = "l2") -> None:
        super().__init__()
        self.distance = distance
        self.student_wants = self.teacher_wants = Wants(embedding=True)
        self.weights = {distance: 1.0}

    def forward(self, batch: TextBatch, student: Encoded, teacher: Encoded) -> Terms:
        """One term, named by the distance."""
        assert student.embedding is not None and teacher.embedding is not None
        return {self.distance: DISTANCES[self.distance](student.embedding, teacher.embedding)}
