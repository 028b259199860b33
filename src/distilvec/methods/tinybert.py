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
    """Learns the teacher's vector, and its attention and hidden states layer by layer.

    distance: as redact; attention: squared gaps of Q K' / sqrt(d) (eq. 10); hidden: of states (eq. 9); weights 1.

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
        student_layers = context.student.layers
        teacher_layers = self.teacher_layers
        if teacher_layers % student_layers:
            divisors = [number for number in range(1, teacher_layers + 1) if teacher_layers % number == 0]
            raise DistilvecError(
                f"layers are compared at equal steps; found {student_layers} (student) and {teacher_layers} (teacher) "
                "layers.",
                f"Give the student a number of layers among {', '.join(map(str, divisors))}.",
                key="student.layers",
            )

        # g(l) by l, the student's layer; layer 0, the embedding output, has no attention
        layer_map = uniform_map(student_layers, teacher_layers)
        upper_layers = {layer: layer_map[layer] for layer in layer_map if layer > 0}
        self.hidden: dict[int, int] = {}
        self.attended: dict[int, int] = {}
        if "hidden" in self.terms:
            self.hidden = layer_map if include_embeddings else upper_layers
            self.projection = nn.Linear(context.student.hidden_size, self.teacher_size, bias=False)
        if "attention" in self.terms:
            self.require_same_heads()
            self.attended = upper_layers
        self.student_outputs |= OutputSpec(
            hidden_layers=tuple(self.hidden),
            projection_layers=tuple(self.attended),
        )
        self.teacher_outputs |= OutputSpec(
            hidden_layers=tuple(self.hidden.values()),
            projection_layers=tuple(self.attended.values()),
        )

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the distance of the embeddings, the gaps of attention scores (eq. 10) and of hidden states (eq. 9)."""
        mask = common_mask(student, teacher) if self.terms else batch.mask
        return self.weighted_terms(
            distance=lambda: self.distance_term(student, teacher),
            attention=lambda: self._attention(student, teacher, mask),
            hidden=lambda: self._hidden(student, teacher, mask),
        )

    def _attention(self, student: ModelOutputs, teacher: ModelOutputs, mask: Mask) -> PerRow:
        gaps = []
        for student_layer, teacher_layer in self.attended.items():
            student_heads = self.projections(student, student_layer, mask)
            teacher_heads = self.projections(teacher, teacher_layer, mask)
            student_scores = relation_scores(student_heads.query, student_heads.key)
            teacher_scores = relation_scores(teacher_heads.query, teacher_heads.key)
            gaps.append(score_gap(student_scores, teacher_scores, mask))
        return torch.stack(gaps).mean(0)

    def _hidden(self, student: ModelOutputs, teacher: ModelOutputs, mask: Mask) -> PerRow:
        gaps = []
        for student_layer, teacher_layer in self.hidden.items():
            h_student = self.states(student, student_layer, mask)
            h_teacher = self.states(teacher, teacher_layer, mask)
            gaps.append(hidden_gap(self.projection(h_student), h_teacher, mask))
        return torch.stack(gaps).mean(0)
