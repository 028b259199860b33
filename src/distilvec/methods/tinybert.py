"""TinyBERT with REDACT (appendix B.2): attention scores and hidden states of all layers. Needs a live teacher."""

from __future__ import annotations

import torch
from torch import nn

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import DistanceName, PerRow
from distilvec.losses.hidden_states import hidden_gap, score_gap, uniform_map
from distilvec.losses.relation_heads import relation_scores
from distilvec.methods.base.layerwise import LayerwiseObjective, Mask, common_mask
from distilvec.methods.base.terms import bibtex


class TinyBert(LayerwiseObjective):
    """distance: as redact; attention: squared gaps of Q K' / sqrt(d) (eq. 10); hidden: of states (eq. 9); weights 1.

    Layer l of the student is compared with g(l) = (L / L') l of the teacher; L' must divide L. One W for all layers.

    Args:
        distance: as redact
        include_embeddings: true compares the embedding output (layer 0), too, as in TinyBERT; REDACT's sum begins at 1

    Note: both terms are means over tokens, dimensions (heads) and layers. REDACT divides by the teacher's L though it
    sums over the student's L' layers; TinyBERT sums: the weight L' gives its scale. g is TinyBERT's; REDACT credits
    MiniLM. W has no bias.
    """

    citation = bibtex("jiao2020tinybert")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        distance: DistanceName = "l2",
        include_embeddings: bool = False,
    ) -> None:
        super().__init__(context, weights, distance, ("attention", "hidden"))
        if not self.terms:
            return
        ours, theirs = context.student.layers, self.teacher_layers
        if theirs % ours:
            fitting = [number for number in range(1, theirs + 1) if theirs % number == 0]
            raise DistilvecError(
                "student.layers",
                f"layers are compared at equal steps; found {ours} (student) and {theirs} (teacher) layers.",
                f"Give the student a number of layers among {', '.join(map(str, fitting))}.",
            )
        layers = {layer: other for layer, other in uniform_map(ours, theirs).items() if layer or include_embeddings}
        self.hidden = layers if "hidden" in self.terms else {}
        self.attended = {layer: layers[layer] for layer in layers if layer and "attention" in self.terms}
        if self.attended:
            self.require_same_heads()
        if self.hidden:
            self.projection = nn.Linear(context.student.hidden_size, self.teacher_size, bias=False)
        hidden, attended = self.hidden, self.attended
        self.student_outputs |= OutputSpec(hidden_layers=tuple(hidden), projection_layers=tuple(attended))
        self.teacher_outputs |= OutputSpec(
            hidden_layers=tuple(hidden.values()), projection_layers=tuple(attended.values())
        )

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        mask = common_mask(student, teacher) if self.terms else batch.mask
        return self.weighted_terms(
            distance=lambda: self.distance_term(student, teacher),
            attention=lambda: self._attention(student, teacher, mask),
            hidden=lambda: self._hidden(student, teacher, mask),
        )

    def _attention(self, student: ModelOutputs, teacher: ModelOutputs, mask: Mask) -> PerRow:
        gaps = []
        for one, other in self.attended.items():
            both = self.projections(student, one, mask), self.projections(teacher, other, mask)
            ours, theirs = (relation_scores(model.query, model.key) for model in both)
            gaps.append(score_gap(ours, theirs, mask))
        return torch.stack(gaps).mean(0)

    def _hidden(self, student: ModelOutputs, teacher: ModelOutputs, mask: Mask) -> PerRow:
        pairs = [(self.states(student, one, mask), self.states(teacher, two, mask)) for one, two in self.hidden.items()]
        return torch.stack([hidden_gap(self.projection(ours), theirs, mask) for ours, theirs in pairs]).mean(0)
