"""TALAS: the upper layers anchored to the teacher's vector, each lower layer to the geometry of the one above it.

Paper: "TALAS: Teacher-Anchored Layer Alignment with Adaptive Sharpness-Aware Minimization for Embedding Distillation",
section 3; ASAM is `train.update`. Only cached sentence vectors are needed. What ships is the student in its own width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import cosine_distance
from distilvec.losses.relations import layer_relation_gaps

INITIAL_DEVIATION = 1e-3  # of W_l; see Talas


class Talas(Objective):
    """simcse: two dropout views (eq. 6); tamd: upper layers to the teacher's vector (eq. 3); lasd: adjacent layers (eq. 5).

    Options: `anchored_layers` is K, the number of layers that are anchored, the last one included. `include_embeddings`
    adds the embedding output to the layers of lasd (the authors' code does; with "cls" it is the same vector for every text
    and pulls towards collapse). `relation_layers` keeps so many layers of lasd, counted from the top (the authors count
    pairs in their table 8, one less). `detach_guide` sends no gradient into the upper layer of a pair. `layer_pooling` is
    that of the layers below the last, "own" as the student pools: with "cls" lower layers hardly tell texts apart.
    A term of weight 0 is not computed, and nothing is asked of the student for it.

    Note: eq. 3 sums k + 1 layers from L - k; K = k + 1, so that the paper's best K = 2 is the last two, as in its code.
    Note: the last layer's vector is the one the student ships, before its linear layer if it has one; simcse takes the
    student's embedding. Where the last layer is pooled as the others and nothing follows it, as in the paper, all of them agree.
    Note: W_l begins as N(0, 1e-3^2), as in the authors' code. The cosine has no scale, so this changes neither the loss nor the
    student's gradient, and it learns faster: a step of AdamW, which has the size of the learning rate, turns a small W_l
    further.
    """

    compatible = False
    in_batch = True
    citation = """@misc{talas,
  title = {TALAS: Teacher-Anchored Layer Alignment with Adaptive Sharpness-Aware Minimization for Embedding Distillation},
  author = {Dao, Quoc Phong and Nguyen, Hoang Son and Khanh Chi, Pham and Ngo Van, Linh and Nguyen, Diep Thi-Ngoc and Nguyen, Thien Huu
            and Le, Trung}
}"""

    def __init__(
        self,
        sizes: Sizes,
        anchored_layers: int = 2,
        include_embeddings: bool = False,
        relation_layers: int | None = None,
        detach_guide: bool = False,
        layer_pooling: Literal["own", "mean", "cls", "lasttoken"] = "mean",
        temperature: float = 0.1,
    ) -> None:
        super().__init__()
        last = self.last = sizes.student_layers
        if not 1 <= anchored_layers <= last:
            raise DistilvecError(
                f"[method.options.anchored_layers] found {anchored_layers}; expected 1 to {last}, the student's layers."
            )
        related = list(range(0 if include_embeddings else 1, last + 1))
        if relation_layers is not None and not 2 <= relation_layers <= len(related):
            raise DistilvecError(
                f"[method.options.relation_layers] found {relation_layers}; lasd compares adjacent layers, "
                f"and {len(related)} take part: give 2 to {len(related)}, or leave it out for all of them."
            )
        self.anchored = list(range(last - anchored_layers + 1, last + 1))
        self.related = related[-(relation_layers or len(related)) :]
        self.detach_guide, self.layer_pooling, self.temperature = detach_guide, layer_pooling, temperature
        heads = {str(layer): nn.Linear(sizes.student_width, sizes.teacher_width, bias=False) for layer in self.anchored}
        self.anchors = nn.ModuleDict(heads)
        for projection in self.anchors.parameters():
            nn.init.normal_(projection, std=INITIAL_DEVIATION)
        self.weights = {"simcse": 0.001, "tamd": 0.75, "lasd": 1.0}

    def settle(self) -> None:
        """Want what the terms that have a weight need, and no second view or layer for the others."""
        simcse, tamd, lasd = (bool(self.weights[name]) for name in ("simcse", "tamd", "lasd"))
        if lasd and len(self.related) < 2:
            raise DistilvecError(
                f"[method.weights.lasd] lasd compares adjacent layers; found {self.last} layer in the student. "
                "Give lasd weight 0, or set [method.options] include_embeddings: true."
            )
        layers = {*(self.anchored if tamd else ()), *(self.related if lasd else ())}
        self.student_outputs = OutputSpec(
            embedding=simcse,
            pre_dense=bool(layers),
            pooled_layers=tuple(sorted(layers - {self.last})),
            second_view=simcse,
            layer_pooling=self.layer_pooling,
        )
        self.teacher_outputs = OutputSpec(embedding=tamd)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        layers, terms = dict(student.pooled_layers), Terms()
        if student.pre_dense is not None:
            layers[self.last] = student.pre_dense
        if self.weights["simcse"]:
            assert student.embedding is not None and student.second_view is not None
            terms["simcse"] = info_nce(student.embedding, student.second_view, self.temperature)
        if self.weights["tamd"]:
            assert teacher.embedding is not None
            found = [
                cosine_distance(self.anchors[str(layer)](layers[layer]), teacher.embedding) for layer in self.anchored
            ]
            terms["tamd"] = torch.stack(found).mean(0)
        if self.weights["lasd"]:
            terms["lasd"] = layer_relation_gaps(
                torch.stack([layers[layer] for layer in self.related]), self.detach_guide
            )
        return terms
