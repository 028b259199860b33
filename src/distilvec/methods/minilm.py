"""MiniLM on top of REDACT: the teacher's relations between the tokens of a text, at one layer, beside its vector.

Papers: Wang et al.: "MiniLM: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers",
section 3, and "MiniLMv2: Multi-Head Self-Attention Relation Distillation for Compressing Pretrained Transformers", section
3; the sum with the distance is REDACT's appendix B.1. Needs the teacher itself while the student trains, not its cache.
"""

from __future__ import annotations

from typing import Literal

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.padding import shared_mask
from distilvec.losses.relation_heads import PARTS, laid_out, relation_term
from distilvec.methods.base.requirements import require_layers, require_same_heads, require_same_tokenizer
from distilvec.methods.redact import DISTANCES


class MiniLm(Objective):
    """distance: as redact; attention: KL of softmax(Q K') (eq. 7); value: of softmax(V V') (eq. 5), at the last layers, by head.

    Options: `distance` is redact's. `relation_heads` joins queries, keys and values of all heads and cuts them into so many
    (MiniLM v2), so that the two models may differ in heads; the terms are then query (Q Q'), key (K K') and value (V V').
    `teacher_layer` is the layer to compare the student's last one with, counted from 1, or from the last with negative
    numbers (MiniLM v2 takes 21 of 24 layers). All weights are 1, as in eq. 8. A term of weight 0 is not computed.

    Note: scores are divided by the root of the head's width and taken over all tokens, also in models that see earlier ones
    only. Heads that share keys and values (grouped queries) have them repeated, as in attention.
    """

    citation = """@inproceedings{wang2020minilm,
  title = {{MiniLM}: Deep Self-Attention Distillation for Task-Agnostic Compression of Pre-Trained Transformers},
  author = {Wang, Wenhui and Wei, Furu and Dong, Li and Bao, Hangbo and Yang, Nan and Zhou, Ming},
  booktitle = {NeurIPS},
  year = {2020}
}

@inproceedings{wang2021minilmv2,
  title = {{MiniLMv2}: Multi-Head Self-Attention Relation Distillation for Compressing Pretrained Transformers},
  author = {Wang, Wenhui and Bao, Hangbo and Huang, Shaohan and Dong, Li and Wei, Furu},
  booktitle = {Findings of ACL-IJCNLP},
  year = {2021}
}"""

    def __init__(
        self,
        sizes: Sizes,
        distance: Literal["l2", "mse", "cosine"] = "l2",
        relation_heads: int | None = None,
        teacher_layer: int = -1,
    ) -> None:
        super().__init__()
        self.sizes, self.distance = sizes, distance
        self.relation_heads, self.teacher_layer = relation_heads, teacher_layer
        self.relations: list[str] = []
        relations = ("attention", "value") if relation_heads is None else ("query", "key", "value")
        self.weights = dict.fromkeys(("distance", *relations), 1.0)

    def settle(self) -> None:
        """Refuse models that cannot be compared; no layer is asked for where no relation has a weight."""
        self.relations = [name for name in PARTS if self.weights.get(name)]
        if not self.relations:
            return
        layers, width = require_layers("minilm", self.sizes)
        require_same_tokenizer("minilm", self.sizes)
        if not (1 <= self.teacher_layer <= layers or -layers <= self.teacher_layer <= -1):
            raise DistilvecError(
                f"[method.options.teacher_layer] found {self.teacher_layer}; expected 1 to {layers}, the teacher's layers, "
                f"or -1 (the last) to -{layers}."
            )
        if self.relation_heads is None:
            require_same_heads("minilm", " and ".join(self.relations), self.sizes)
        elif self.relation_heads < 1 or self.sizes.student_width % self.relation_heads or width % self.relation_heads:
            raise DistilvecError(
                f"[method.options.relation_heads] found {self.relation_heads}; expected a divisor of both hidden widths, "
                f"{self.sizes.student_width} (student) and {width} (teacher)."
            )
        self.student_outputs = OutputSpec(embedding=True, projection_layers=(-1,))
        self.teacher_outputs = OutputSpec(embedding=True, projection_layers=(self.teacher_layer,))

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        terms = Terms()
        if self.weights["distance"]:
            assert student.embedding is not None and teacher.embedding is not None
            terms["distance"] = DISTANCES[self.distance](student.embedding, teacher.embedding)
        if self.relations:
            assert student.mask is not None and teacher.mask is not None
            mask = shared_mask(student.mask, teacher.mask)
            ours = laid_out(student.projections[-1], student.mask, mask.shape[1])
            theirs = laid_out(teacher.projections[self.teacher_layer], teacher.mask, mask.shape[1])
            terms |= {name: relation_term(name, ours, theirs, mask, self.relation_heads) for name in self.relations}
        return terms
