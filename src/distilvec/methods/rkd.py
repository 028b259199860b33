"""RKD (section 3.2): distances and angles between the texts of a batch; the models' dims may differ."""

from __future__ import annotations

from distilvec.core.objective import LossTerms, Objective, TextBatch
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.relations import rkd_angles, rkd_distances
from distilvec.methods.base.terms import bibtex, embeddings


class Rkd(Objective):
    """Learns the relative distances and the angles between texts that the teacher has.

    distance: relative distances of pairs (eq. 5 and 6); angle: cosines of the angles of triplets (eq. 7 and 8).

    Weights are 1 and 2, as in the paper. The angle term holds batch_size^3 numbers.
    """

    default_weights = {"distance": 1.0, "angle": 2.0}
    in_teacher_space = False
    needs_fixed_batch = True
    citation = bibtex("park2019rkd")

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the distance-wise and the angle-wise loss."""
        y, y_hat = embeddings(student, teacher)
        return self.weighted_terms(distance=lambda: rkd_distances(y, y_hat), angle=lambda: rkd_angles(y, y_hat))
