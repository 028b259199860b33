"""REDACT plus the scores of asymmetric retrieval: the student ranks documents of the teacher as the teacher does.

Documents are a queue of cached vectors, so the teacher does not run. After SEED (Fang et al., 2021), which has a
temperature for each model, adds the text's own vector to the queue, and has no distance.
"""

from __future__ import annotations

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, Positive
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.distance import DISTANCES, DistanceName
from distilvec.losses.scores import score_kl
from distilvec.methods.base.queue import QueueObjective
from distilvec.methods.base.terms import bibtex, embeddings


class RedactScores(QueueObjective):
    """Learns the teacher's vector, and its scores against documents.

    l2 (or another distance), as redact; kl: `score_kl` of student and teacher on a queue of the teacher's vectors.

    kl is 0 until the queue is full or holds the whole corpus. A text's own vector, and those of its batch, are no
    documents: the distance covers them, and a text's score with itself would take the teacher's whole softmax. So the
    batch may have any number of rows.

    Args:
        distance: "l2", not squared, "mse" or "cosine"
        queue: number of documents
        temperature: of both softmaxes
    """

    citation = bibtex("leaf2025", "fang2021seed")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        distance: DistanceName = "l2",
        queue: Count = 4096,
        temperature: Positive = 0.05,
    ) -> None:
        super().__init__(context, weights, queue, {distance: 1.0, "kl": 0.1})
        self.distance = distance
        self.temperature = temperature

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the distance of the embeddings, and the divergence of the scores on the queue."""
        y, y_hat = embeddings(student, teacher)
        terms: LossTerms = {}
        if self.weights["kl"]:
            documents, counted = self.other_vectors(batch.rows)
            divergence = score_kl(y, y_hat, documents, counted, self.temperature)
            terms["kl"] = divergence.where(self.filled(batch.rows), 0.0)
        if self.weights[self.distance]:
            terms[self.distance] = DISTANCES[self.distance](y, y_hat)
        if self.training:
            self.enqueue(batch.rows, y_hat)
        return terms
