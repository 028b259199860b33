"""MiniLM with REDACT (appendix B.1): relations between a text's tokens at one layer. Needs a live teacher."""

from __future__ import annotations

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.distance import DistanceName
from distilvec.losses.relation_heads import relation_term
from distilvec.methods.base.layerwise import LayerwiseObjective, common_mask
from distilvec.methods.base.terms import bibtex


class MiniLm(LayerwiseObjective):
    """Learns the teacher's vector, and the attention of one of its layers.

    distance: as redact; attention: KL of softmax(Q K') (eq. 7); value: of softmax(V V') (eq. 5), by head; weights 1.

    Args:
        distance: as redact
        relation_heads: number of heads that the joined queries, keys and values are split into (MiniLM v2), a divisor
            of both hidden sizes. Terms are then query (Q Q'), key (K K') and value (V V'), and the models may differ in
            heads.
        teacher_layer: compared with the student's last one; 1 is the first, -1 the last (MiniLM v2 takes 21 of 24)

    Note: scores are divided by the root of a head's dim and taken over all tokens, also in causal models. Shared keys
    and values (grouped queries) are repeated, as in attention.
    """

    citation = bibtex("wang2020minilm", "wang2021minilmv2")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        distance: DistanceName = "l2",
        relation_heads: Count | None = None,
        teacher_layer: int = -1,
    ) -> None:
        relations = ("attention", "value") if relation_heads is None else ("query", "key", "value")
        super().__init__(context, weights, distance, relations)
        self.relation_heads = relation_heads
        self.teacher_layer = teacher_layer
        if not self.terms:
            return
        layers = self.teacher_layers
        if not 1 <= abs(teacher_layer) <= layers:
            raise option_error("teacher_layer", teacher_layer, f"1 to {layers}, or -1 (the last) to -{layers}")
        if relation_heads is None:
            self.require_same_heads()
        else:
            sizes = context.student.hidden_size, self.teacher_size
            if any(size % relation_heads for size in sizes):
                expected = f"a divisor of both hidden sizes, {sizes[0]} and {sizes[1]}"
                raise option_error("relation_heads", relation_heads, expected)
        self.student_outputs |= OutputSpec(projection_layers=(-1,))
        self.teacher_outputs |= OutputSpec(projection_layers=(teacher_layer,))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the distance of the embeddings, and the divergence of each relation (eq. 5 and 7)."""
        terms = self.weighted_terms(distance=lambda: self.distance_term(student, teacher))
        if self.terms:
            mask = common_mask(student, teacher)
            student_layer = self.projections(student, -1, mask)
            teacher_layer = self.projections(teacher, self.teacher_layer, mask)
            for name in self.terms:
                terms[name] = relation_term(name, student_layer, teacher_layer, mask, self.relation_heads)
        return terms
