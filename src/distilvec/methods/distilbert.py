"""DistilBERT with REDACT (appendix B.3): the direction of every token's last hidden state. Needs a live teacher."""

from __future__ import annotations

from torch import nn

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import DistanceName
from distilvec.losses.hidden_states import token_cosine_distance
from distilvec.methods.base.layerwise import LayerwiseObjective, common_mask
from distilvec.methods.base.terms import bibtex


class DistilBert(LayerwiseObjective):
    """Learns the teacher's vector, and the direction of its last hidden state of each token.

    distance: as redact; cosine: 1 - cos of last hidden states, averaged over a text's tokens (eq. 12); weights 1.

    Args:
        distance: as redact
        projection: true maps the student's states by a matrix first, as in REDACT; false, as in DistilBERT, needs equal
            hidden sizes

    Note: eq. 12 is minus the cosine; "1 -" changes no gradient. DistilBERT's other terms need a language model's head.
    """

    citation = bibtex("sanh2019distilbert")

    def __init__(
        self, context: ObjectiveContext, weights: Weights, distance: DistanceName = "l2", projection: bool = True
    ) -> None:
        super().__init__(context, weights, distance, ("cosine",))
        if not self.terms:
            return
        student_size = context.student.hidden_size
        teacher_size = self.teacher_size
        if not projection and student_size != teacher_size:
            raise option_error("projection", projection, f"true for the hidden sizes {student_size} and {teacher_size}")
        self.projection = nn.Linear(student_size, teacher_size, bias=False) if projection else nn.Identity()
        self.student_outputs |= OutputSpec(hidden_layers=(-1,))
        self.teacher_outputs = self.student_outputs

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the distance of the embeddings, and the cosine distance of all tokens' last hidden states (eq. 12)."""
        terms = self.weighted_terms(distance=lambda: self.distance_term(student, teacher))
        if self.terms:
            mask = common_mask(student, teacher)
            h_student = self.states(student, -1, mask)
            h_teacher = self.states(teacher, -1, mask)
            terms["cosine"] = token_cosine_distance(self.projection(h_student), h_teacher, mask)
        return terms
