"""REDACT (published as LEAF, sections 3 and 3.2): the student approximates the teacher's embedding, nothing else.

The student is in the teacher's space, so that queries can be encoded by the student and documents by the teacher.
Where the equations are: y (eq. 1) are the modules that students/build.py puts together, eq. 3 is `l2_distance` of
losses/distance.py, and the learning rate of section 3.2 is "cycles" of train/optimizer.py.
"""

from __future__ import annotations

from distilvec.core.objective import ObjectiveContext, Weights
from distilvec.losses.distance import DISTANCES, DistanceName
from distilvec.methods.base.embedding_regression import EmbeddingRegression
from distilvec.methods.base.terms import bibtex


class Redact(EmbeddingRegression):
    """Trains the student to give the teacher's vector for every text (eq. 3). The term has the distance's name.

    Args:
        distance: "l2", not squared (paper), "mse" or "cosine"

    Note: the paper has one teacher. With several, the student is in the first one's space (see EmbeddingRegression).
    """

    citation = bibtex("leaf2025")

    def __init__(self, context: ObjectiveContext, weights: Weights, distance: DistanceName = "l2") -> None:
        super().__init__(context, weights, distance, DISTANCES[distance])
