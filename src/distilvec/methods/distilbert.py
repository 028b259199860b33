"""DistilBERT with REDACT (appendix B.3): the direction of every token's last hidden state. Needs a live teacher."""

from __future__ import annotations

from torch import nn

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import DistanceName, PerRow
from distilvec.losses.hidden_states import token_cosine_distance
from distilvec.methods.base.layerwise import LayerwiseObjective, common_mask, require_layers, states
from distilvec.methods.base.terms import bibtex


class DistilBert(LayerwiseObjective):
    """distance: as redact; cosine: 1 - cos of last hidden states, averaged over a text's tokens (eq. 12); weights 1.

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
        ours, (_, theirs) = context.student.hidden_size, require_layers(context.teacher)
        if not projection and ours != theirs:
            raise option_error(
                "projection", projection, f"true for hidden sizes {ours} (student) and {theirs} (teacher)"
            )
        self.projection = nn.Linear(ours, theirs, bias=False) if projection else nn.Identity()
        self.student_outputs |= OutputSpec(hidden_layers=(-1,))
        self.teacher_outputs = self.student_outputs

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        return self.weighted_terms(
            distance=lambda: self.distance_term(student, teacher), cosine=lambda: self._cosine(student, teacher)
        )

    def _cosine(self, student: ModelOutputs, teacher: ModelOutputs) -> PerRow:
        mask = common_mask(student, teacher)
        return token_cosine_distance(self.projection(states(student, -1, mask)), states(teacher, -1, mask), mask)
