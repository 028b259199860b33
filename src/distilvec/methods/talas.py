"""TALAS (paper 004, section 3): upper layers anchored to the teacher's vector, lower ones to the layer above.

ASAM is `train.update`. Needs cached sentence vectors only. What ships is the student in its own dim, without W_l.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import (
    LinearPairs,
    LossTerms,
    Objective,
    ObjectiveContext,
    Projection,
    TextBatch,
    Weights,
)
from distilvec.core.options import Count, Positive, option_error
from distilvec.core.outputs import LayerPooling, ModelOutputs, OutputSpec
from distilvec.losses.distance import cosine_distance
from distilvec.losses.relations import layer_relation_gaps
from distilvec.methods.base.terms import bibtex, simcse_term

INITIAL_DEVIATION = 1e-3  # of W_l; see Talas


class Talas(Objective):
    """simcse: dropout views (eq. 6); tamd: upper layers to the teacher's vector (eq. 3); lasd: adjacent layers (eq. 5).

    Args:
        anchored_layers: K, the number of anchored layers, the last one included (paper: 2)
        include_embeddings: true adds the embedding output to lasd, as in the authors' code; with "cls" pooling it is
            the same vector for every text and pulls towards collapse
        relation_layers: number of layers in lasd, counted from the top; null: all (table 8 counts pairs, one less)
        detach_guide: true sends no gradient into the upper layer of a pair
        layer_pooling: of the layers below the last; "own" as the student pools. With "cls" lower layers hardly separate
            texts.
        temperature: of simcse

    Note: eq. 3 sums k + 1 layers from L - k; K = k + 1, so that the paper's best K = 2 is the last two, as in its code.
    Note: the last layer's vector is the one before the student's linear layer, if it has one; simcse takes the
    embedding.
    Note: W_l begins as N(0, 1e-3^2), as in the authors' code. The cosine has no scale, so that only W_l's own steps
    grow. `student.start: ridge` fits W_l to the teacher's vectors instead.
    """

    default_weights = {"simcse": 0.001, "tamd": 0.75, "lasd": 1.0}
    in_teacher_space = False
    needs_fixed_batch = True
    citation = bibtex("talas")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        anchored_layers: Count = 2,
        include_embeddings: bool = False,
        relation_layers: Annotated[int, Field(ge=2)] | None = None,
        detach_guide: bool = False,
        layer_pooling: LayerPooling = "mean",
        temperature: Positive = 0.1,
    ) -> None:
        super().__init__(context, weights)
        last = self.last = context.student.layers
        if anchored_layers > last:
            raise option_error("anchored_layers", anchored_layers, f"1 to {last}, the student's layers")
        related = list(range(0 if include_embeddings else 1, last + 1))
        if relation_layers is not None and relation_layers > len(related):
            raise option_error("relation_layers", relation_layers, f"2 to {len(related)}, or null for all layers")
        self.anchored = list(range(last - anchored_layers + 1, last + 1))
        self.related = related[-(relation_layers or len(related)) :]
        self.detach_guide, self.temperature = detach_guide, temperature
        size, dim = context.student.hidden_size, context.teacher.dim
        self.anchors = nn.ModuleDict({str(layer): nn.Linear(size, dim, bias=False) for layer in self.anchored})
        for projection in self.anchors.parameters():
            nn.init.normal_(projection, std=INITIAL_DEVIATION)
        simcse, tamd, lasd = (bool(self.weights[name]) for name in ("simcse", "tamd", "lasd"))
        if lasd and len(self.related) < 2:
            raise DistilvecError(
                "method.weights.lasd",
                f"lasd compares adjacent layers; found {last} layer in the student.",
                "Give lasd weight 0, or set [method.options] include_embeddings: true.",
            )
        layers = {*(self.anchored if tamd else ()), *(self.related if lasd else ())}
        self.student_outputs = OutputSpec(
            embedding=simcse,
            pre_dense=bool(layers),
            pooled_layers=tuple(sorted(layers - {last})),
            second_view=simcse,
            layer_pooling=layer_pooling,
        )
        self.teacher_outputs = OutputSpec(embedding=tamd)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        layers = self._layers(student)
        return self.weighted_terms(
            simcse=lambda: simcse_term(student, self.temperature),
            tamd=lambda: self._tamd(layers, teacher),
            lasd=lambda: layer_relation_gaps(torch.stack([layers[layer] for layer in self.related]), self.detach_guide),
        )

    def space_projection(self) -> Projection | None:
        """Return W_L, which anchors the last layer."""
        weight = self.anchors[str(self.last)].weight
        assert isinstance(weight, Tensor)
        return Projection(weight, pre_dense=True) if self.weights["tamd"] else None

    def linear_maps(self) -> dict[str, LinearPairs]:
        """Return the pairs of every W_l: directions of the layer's vector and of the teacher's."""

        def pairs(layer: int) -> LinearPairs:
            def of(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tensor, Tensor]:
                assert teacher.embedding is not None
                return F.normalize(self._layers(student)[layer], dim=-1), F.normalize(teacher.embedding, dim=-1)

            return of

        return {f"anchors.{layer}": pairs(layer) for layer in self.anchored if self.weights["tamd"]}

    def _layers(self, student: ModelOutputs) -> dict[int, Tensor]:
        """Return the pooled vectors by layer."""
        last = {} if student.pre_dense is None else {self.last: student.pre_dense}
        return {**student.pooled_layers, **last}

    def _tamd(self, layers: dict[int, Tensor], teacher: ModelOutputs) -> Tensor:
        assert teacher.embedding is not None
        views = {layer: self.anchors[str(layer)](layers[layer]) for layer in self.anchored}
        return torch.stack([cosine_distance(view, teacher.embedding) for view in views.values()]).mean(0)
