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
from distilvec.methods.base.layerwise import (
    LayerwiseObjective,
    common_mask,
    projections,
    require_layers,
    require_same_heads,
    states,
)
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
        self.layers: dict[int, int] = {}
        if not self.terms:
            return
        (layers, theirs), ours = require_layers(context.teacher), context.student.layers
        if layers % ours:
            fitting = [number for number in range(1, layers + 1) if layers % number == 0]
            raise DistilvecError(
                f"[student.layers] layers are compared at equal steps; found {ours} (student) and {layers} (teacher) "
                f"layers. Give the student a number of layers among {', '.join(map(str, fitting))}."
            )
        self.layers = uniform_map(ours, layers)
        upper, hidden = range(1, ours + 1), range(0 if include_embeddings else 1, ours + 1)
        self.attended = list(upper) if self.weights["attention"] else []
        self.hidden = list(hidden) if self.weights["hidden"] else []
        if self.attended:
            require_same_heads(context)
        if self.hidden:
            self.projection = nn.Linear(context.student.hidden_size, theirs, bias=False)
        self.student_outputs |= OutputSpec(hidden_layers=tuple(self.hidden), projection_layers=tuple(self.attended))
        self.teacher_outputs |= OutputSpec(
            hidden_layers=tuple(self.layers[layer] for layer in self.hidden),
            projection_layers=tuple(self.layers[layer] for layer in self.attended),
        )

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        return self.weighted_terms(
            distance=lambda: self.distance_term(student, teacher),
            attention=lambda: self._attention(student, teacher),
            hidden=lambda: self._hidden(student, teacher),
        )

    def _attention(self, student: ModelOutputs, teacher: ModelOutputs) -> PerRow:
        mask = common_mask(student, teacher)
        pairs = [
            (projections(student, one, mask), projections(teacher, self.layers[one], mask)) for one in self.attended
        ]
        scores = [[relation_scores(model.query, model.key) for model in pair] for pair in pairs]
        return torch.stack([score_gap(ours, theirs, mask) for ours, theirs in scores]).mean(0)

    def _hidden(self, student: ModelOutputs, teacher: ModelOutputs) -> PerRow:
        mask = common_mask(student, teacher)
        pairs = [(states(student, one, mask), states(teacher, self.layers[one], mask)) for one in self.hidden]
        return torch.stack([hidden_gap(self.projection(ours), theirs, mask) for ours, theirs in pairs]).mean(0)
