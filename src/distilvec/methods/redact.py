"""REDACT (published as LEAF): the student approximates the teacher's embedding map, nothing else.

Paper: "Knowledge Distillation of Text Embedding Models with Teacher-Aligned Representations", sections 3 and 3.2.
The student lives in the teacher's space, so queries can be encoded by the student and documents by the teacher.
"""

from __future__ import annotations

from typing import Literal

from distilvec.core.objective import Sizes
from distilvec.losses.distance import cosine_distance, l2_distance, mean_squared_error
from distilvec.methods.base.embedding_regression import Pointwise

DISTANCES = {"l2": l2_distance, "mse": mean_squared_error, "cosine": cosine_distance}


class Redact(Pointwise):
    """The distance of the student's embedding to the cached teacher embedding (eq. 3), a term that is called by its name.

    Options: `distance` is "l2" (the paper's un-squared norm), "mse" or "cosine".
    Note: the paper has one teacher. With several, the student lives in the first one's space; see Pointwise for the others.
    """

    citation = """@misc{leaf2025,
  title = {LEAF: Knowledge Distillation of Text Embedding Models with Teacher-Aligned Representations},
  year = {2025}
}"""

    def __init__(self, sizes: Sizes, distance: Literal["l2", "mse", "cosine"] = "l2") -> None:
        super().__init__(sizes, distance, DISTANCES[distance])
