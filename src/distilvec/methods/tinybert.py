"""TinyBERT on top of REDACT: every layer's attention scores and hidden states beside those of a teacher's layer.

Paper: Jiao et al.: "TinyBERT: Distilling BERT for Natural Language Understanding", section 3.1; the sum with the distance
is REDACT's appendix B.2. Needs the teacher itself while the student trains, not its cache.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.hidden_states import hidden_gap, layer_mean, score_gap, uniform_map
from distilvec.losses.padding import from_first_token, shared_mask
from distilvec.losses.relation_heads import laid_out, relation_scores
from distilvec.methods.base.requirements import require_layers, require_same_heads, require_same_tokenizer
from distilvec.methods.redact import DISTANCES


class TinyBert(Objective):
    """distance: as redact; attention: squared gaps of Q K' / sqrt(d) before the softmax (eq. 10); hidden: of states under W (eq. 9).

    Layer l of the student goes with g(l) = (L / L') l of the teacher; L' must divide L. One W for all layers maps the
    student's states to the teacher's width. Options: `distance` is redact's; `include_embeddings` adds the embedding output
    (layer 0) to hidden, as TinyBERT has it; REDACT's sum begins at 1. All weights are 1, as in eq. 11. A term of weight 0 is
    not computed.

    Note: both terms are means over a text's tokens (pairs of tokens), dimensions (heads) and the compared layers. REDACT
    divides by the teacher's L though it sums over the student's L' layers; TinyBERT sums over layers: give the terms the
    weight L' for its scale. g is TinyBERT's; REDACT credits it to MiniLM. W has no bias, as in REDACT's eq. 9.
    """

    citation = """@inproceedings{jiao2020tinybert,
  title = {{TinyBERT}: Distilling {BERT} for Natural Language Understanding},
  author = {Jiao, Xiaoqi and Yin, Yichun and Shang, Lifeng and Jiang, Xin and Chen, Xiao and Li, Linlin and Wang, Fang and Liu, Qun},
  booktitle = {Findings of EMNLP},
  year = {2020}
}"""

    def __init__(
        self, sizes: Sizes, distance: Literal["l2", "mse", "cosine"] = "l2", include_embeddings: bool = False
    ) -> None:
        super().__init__()
        self.sizes, self.distance, self.include_embeddings = sizes, distance, include_embeddings
        self.attended: dict[int, int] = {}
        self.hidden: dict[int, int] = {}
        self.weights = {"distance": 1.0, "attention": 1.0, "hidden": 1.0}

    def settle(self) -> None:
        """Refuse models that cannot be compared; want the layers of the terms that have a weight."""
        if not self.weights["attention"] and not self.weights["hidden"]:
            return
        layers, width = require_layers("tinybert", self.sizes)
        require_same_tokenizer("tinybert", self.sizes)
        ours = self.sizes.student_layers
        if layers % ours:
            fitting = [number for number in range(1, layers + 1) if layers % number == 0]
            raise DistilvecError(
                f"[student.layers] tinybert sends every layer of the student to one of the teacher's at even distances; found {ours} and "
                f"{layers} layers. Give the student a number of layers that divides {layers}: {', '.join(map(str, fitting))}."
            )
        pairs = uniform_map(ours, layers)
        if self.weights["attention"]:
            require_same_heads("tinybert", "attention", self.sizes)
            self.attended = {layer: pairs[layer] for layer in range(1, ours + 1)}
        if self.weights["hidden"]:
            self.hidden = {layer: pairs[layer] for layer in range(0 if self.include_embeddings else 1, ours + 1)}
            self.projection = nn.Linear(self.sizes.student_width, width, bias=False)
        self.student_outputs = OutputSpec(
            embedding=True, hidden_layers=tuple(self.hidden), projection_layers=tuple(self.attended)
        )
        self.teacher_outputs = OutputSpec(
            embedding=True, hidden_layers=tuple(self.hidden.values()), projection_layers=tuple(self.attended.values())
        )

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        terms = Terms()
        if self.weights["distance"]:
            assert student.embedding is not None and teacher.embedding is not None
            terms["distance"] = DISTANCES[self.distance](student.embedding, teacher.embedding)
        if self.attended or self.hidden:
            assert student.mask is not None and teacher.mask is not None
            mask = shared_mask(student.mask, teacher.mask)
        if self.attended:
            pairs = [
                (_scores(student, one, mask), _scores(teacher, other, mask)) for one, other in self.attended.items()
            ]
            terms["attention"] = layer_mean([score_gap(ours, theirs, mask) for ours, theirs in pairs])
        if self.hidden:
            states = [
                (_states(student, one, mask), _states(teacher, other, mask)) for one, other in self.hidden.items()
            ]
            terms["hidden"] = layer_mean([hidden_gap(self.projection(ours), theirs, mask) for ours, theirs in states])
        return terms


def _scores(encoded: ModelOutputs, layer: int, shared: Tensor) -> Tensor:
    assert encoded.mask is not None
    found = laid_out(encoded.projections[layer], encoded.mask, shared.shape[1])
    return relation_scores(found.query, found.key)


def _states(encoded: ModelOutputs, layer: int, shared: Tensor) -> Tensor:
    assert encoded.mask is not None
    return from_first_token(encoded.hidden_layers[layer], encoded.mask, shared.shape[1])
