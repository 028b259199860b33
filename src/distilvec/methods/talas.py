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
from distilvec.methods.base.layerwise import require_student_layers
from distilvec.methods.base.terms import bibtex, simcse_term

INITIAL_DEVIATION = 1e-3  # of W_l; see Talas


class Talas(Objective):
    """Learns the teacher's vector in upper layers, in each lower one the geometry of the next; with SimCSE.

    simcse: dropout views (eq. 6); tamd: upper layers to the teacher's vector (eq. 3); lasd: adjacent layers (eq. 5).

    L = 0.001 L_SimCSE + 0.75 L_TAMD + 1.0 L_LASD (eq. 7); the numbers are `default_weights`.

    Args:
        anchored_layers: K, the number of anchored layers, the last one included (paper: 2)
        include_embeddings: true adds the embedding output to lasd, as in the authors' code; with "cls" pooling it is
            the same vector for every text and pulls towards collapse
        relation_layers: number of layers in lasd, counted from the top; null: all (table 8 counts pairs, one less)
        detach_guide: true sends no gradient into the upper layer of a pair
        layer_pooling: of the layers below the last; "own" as the student pools. With "cls" lower layers hardly separate
            texts. The last layer is always pooled as the student pools.
        temperature: of simcse

    Note: eq. 3 sums k + 1 layers from L - k; K = k + 1, so that the paper's best K = 2 is the last two, as in its code.
    Note: the last layer's vector is the one before the student's linear layer, if it has one; simcse takes the
    embedding.
    Note: W_l begins as N(0, 1e-3^2), as in the authors' code, whose learning rate of W_l the recipe has
    (`train.learning_rate_factors`). The cosine has no scale, so that only W_l's own steps grow. `student.start: ridge`
    fits W_l to the teacher's vectors instead.
    """

    default_weights = {"simcse": 0.001, "tamd": 0.75, "lasd": 1.0}  # eq. 7
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
        self.detach_guide = detach_guide
        self.temperature = temperature
        has_simcse = bool(self.weights["simcse"])
        has_tamd = bool(self.weights["tamd"])
        has_lasd = bool(self.weights["lasd"])

        require_student_layers(context)
        self.last = context.student.layers
        if anchored_layers > self.last:
            raise option_error("anchored_layers", anchored_layers, f"1 to {self.last}, the student's layers")
        self.anchored = list(range(self.last - anchored_layers + 1, self.last + 1))

        lasd_layers = list(range(0 if include_embeddings else 1, self.last + 1))
        if relation_layers is not None:
            if relation_layers > len(lasd_layers):
                raise option_error(
                    "relation_layers", relation_layers, f"2 to {len(lasd_layers)}, or null for all layers"
                )
            lasd_layers = lasd_layers[-relation_layers:]
        if has_lasd and len(lasd_layers) < 2:
            raise DistilvecError(
                f"lasd compares adjacent layers; found {self.last} layer in the student.",
                "Give lasd weight 0, or set [method.options] include_embeddings: true.",
                key="method.weights.lasd",
            )
        self.lasd_layers = lasd_layers  # each with the one above it

        # W_l of eq. 3, by layer. A saved objective names them "anchors".
        size = context.student.hidden_size
        dim = context.teacher.dim
        self.anchors = nn.ModuleDict({str(layer): nn.Linear(size, dim, bias=False) for layer in self.anchored})
        for w_l in self.anchors.parameters():
            nn.init.normal_(w_l, std=INITIAL_DEVIATION)

        layers: set[int] = set()
        if has_tamd:
            layers.update(self.anchored)
        if has_lasd:
            layers.update(self.lasd_layers)
        self.student_outputs = OutputSpec(
            embedding=has_simcse,
            pre_dense=bool(layers),
            pooled_layers=tuple(sorted(layers - {self.last})),
            second_view=has_simcse,
            layer_pooling=layer_pooling,
        )
        self.teacher_outputs = OutputSpec(embedding=has_tamd)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms of eq. 7."""
        h = self._layers(student)
        return self.weighted_terms(
            simcse=lambda: simcse_term(student, self.temperature),
            tamd=lambda: self._tamd(h, teacher),
            lasd=lambda: layer_relation_gaps(torch.stack([h[layer] for layer in self.lasd_layers]), self.detach_guide),
        )

    def _tamd(self, h: dict[int, Tensor], teacher: ModelOutputs) -> Tensor:
        """Return L_TAMD (eq. 3): the mean over the anchored layers of 1 - cos(W_l h_l, y_hat)."""
        assert teacher.embedding is not None
        losses = []
        for layer in self.anchored:
            projected = self.anchors[str(layer)](h[layer])
            losses.append(cosine_distance(projected, teacher.embedding))
        return torch.stack(losses).mean(0)

    def _layers(self, student: ModelOutputs) -> dict[int, Tensor]:
        """Return h_l, the pooled vectors by layer."""
        h = dict(student.pooled_layers)
        if student.pre_dense is not None:
            h[self.last] = student.pre_dense
        return h

    # -- for the evaluation and the start of training, not for the loss -----------------------------------------------

    def space_projection(self) -> Projection | None:
        """Return W_L, which anchors the last layer."""
        w_l = self.anchors[str(self.last)].weight
        assert isinstance(w_l, Tensor)
        return Projection(w_l, pre_dense=True) if self.weights["tamd"] else None

    def linear_maps(self) -> dict[str, LinearPairs]:
        """Return the pairs of every W_l: directions of the layer's vector and of the teacher's."""

        def pairs(layer: int) -> LinearPairs:
            def directions(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tensor, Tensor]:
                assert teacher.embedding is not None
                h_l = self._layers(student)[layer]
                return F.normalize(h_l, dim=-1), F.normalize(teacher.embedding, dim=-1)

            return directions

        if not self.weights["tamd"]:
            return {}
        return {f"anchors.{layer}": pairs(layer) for layer in self.anchored}
