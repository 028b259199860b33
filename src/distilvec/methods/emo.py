"""EMO: how a student's important tokens attend (CKA), and its last hidden states brought to the teacher's by optimal transport.

Paper: "EMO: Embedding Model Distillation via Intra-Model Relation and Optimal Transport Alignments", section 3. Student and
teacher may have different tokenizers. What ships is the student in its own width and space.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.cka import centred_gram, root_cka
from distilvec.losses.transport import emo_cost, transport_cost
from distilvec.methods.base.requirements import require_layers
from distilvec.methods.base.token_or_logit_kd import task_terms, task_weights
from distilvec.teachers.token_signals import student_importance


class Emo(Objective):
    """task: the labels; ira: 1 - sqrt(CKA) of attention rows, summed over layers (eq. 14); otis: cost of transport (eq. 21).

    On a labelled task the weights are alpha and 1 - alpha (eq. 22); else ira and otis stand alone. A term of weight 0 is not
    computed, and nothing is asked of student or teacher for it.
    Options: `ira_layers` is z, the number of the student's last layers in ira. `ira_weight` is the weight of ira beside otis,
    0.1 in the authors' code. `layer_map` compares a student's layer k with the teacher's floor(h_t / h_s) k ("paper"; the last
    of 12 with the 24th of 32) or counts in the same steps from the teacher's last layer down ("last_aligned"). `divisor`: ira
    takes an n / divisor of the n mapped tokens. `alignment` says how tokens are mapped. `epsilon` (1 / lambda) and
    `iterations` are Sinkhorn's; `unroll` sends a gradient through them, too. `drop_special` takes the special tokens that begin
    and end a text out of otis.
    The projection P (eq. 17) learns here; the recipe gives it a learning rate of its own.

    Note: tokens are mapped by character offsets, unless `alignment` is "mined". Masses are those of the paper, shares of the
    attention received; the authors' code takes their softmax, which leaves nearly all mass on one token.
    Note: the paper does not print epsilon; 0.1 and 100 iterations are the authors' code's. There the gradient goes through them.
    """

    compatible = False
    citation = """@misc{emo,
  title = {{EMO}: Embedding Model Distillation via Intra-Model Relation and Optimal Transport Alignments},
  author = {Truong, Minh-Phuc and Vu, Hai An and Vu, Tu and Nguyen, Diep Thi-Ngoc and Ngo Van, Linh and Nguyen, Thien Huu and Le, Trung}
}"""

    def __init__(
        self,
        sizes: Sizes,
        alpha: float = 0.5,
        ira_layers: int = 2,
        ira_weight: float = 1.0,
        layer_map: Literal["paper", "last_aligned"] = "paper",
        divisor: int = 3,
        alignment: Literal["offsets", "mined", "strict"] = "offsets",
        epsilon: float = 0.1,
        iterations: int = 100,
        unroll: bool = False,
        drop_special: bool = False,
    ) -> None:
        super().__init__()
        for option, value, largest in (("ira_layers", ira_layers, sizes.student_layers), ("divisor", divisor, None)):
            if value < 1 or (largest is not None and value > largest):
                limits = "1 or more" if largest is None else f"1 to {largest}, the student's layers"
                raise DistilvecError(f"[method.options.{option}] found {value}; expected {limits}.")
        self.sizes, self.ira_layers, self.layer_map = sizes, ira_layers, layer_map
        self.divisor, self.alignment, self.drop_special = divisor, alignment, drop_special
        self.epsilon, self.iterations, self.unroll = epsilon, iterations, unroll
        self.layers: dict[int, int] = {}  # of the student, each with the teacher's that it follows
        self.projection = nn.Linear(sizes.teacher_hidden_width or sizes.teacher_width, sizes.student_width, bias=False)
        self.weights = task_weights(alpha, {"ira": ira_weight, "otis": 1.0}, sizes)
        self.student_outputs = self.teacher_outputs = OutputSpec()

    def settle(self) -> None:
        """Map the layers and want what the terms that have a weight need."""
        ira, otis = bool(self.weights["ira"]), bool(self.weights["otis"])
        if not (ira or otis):
            return
        teacher_layers, _ = require_layers("emo", self.sizes)
        if ira:
            self.layers = self._layers(teacher_layers)
        if otis and self.drop_special and None in (self.sizes.student_special, self.sizes.teacher_special):
            raise DistilvecError(
                "[method.options.drop_special] the tokenizers' special tokens are not known here; leave it out."
            )
        self.student_outputs |= OutputSpec(hidden_layers=(-1,) if otis else (), attention_layers=tuple(self.layers))
        states: tuple[int, ...] = (-1,) if otis else ()
        wanted = TokenOutputSpec(
            self.alignment, states, importance=otis, gram_layers=tuple(self.layers.values()), divisor=self.divisor
        )
        self.teacher_outputs = OutputSpec(tokens=wanted)

    def _layers(self, teacher_layers: int) -> dict[int, int]:
        """M(k) of the student's last layers, all numbered from 1."""
        last = self.sizes.student_layers
        step = teacher_layers // last
        if step == 0:
            raise DistilvecError(
                f"[method.name] ira maps each of the student's layers to one of the teacher's; found {last} and {teacher_layers}. "
                "Take a student with no more layers than the teacher (student.layers), or set method.weights.ira=0."
            )
        shift = teacher_layers - step * last if self.layer_map == "last_aligned" else 0
        return {layer: step * layer + shift for layer in range(last - self.ira_layers + 1, last + 1)}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        terms = task_terms(self.weights, batch, student)
        if self.weights["ira"]:
            terms["ira"] = self._ira(student, teacher)
        if self.weights["otis"]:
            terms["otis"] = self._otis(batch, student, teacher)
        return terms

    def _ira(self, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        """Sum over the layers of 1 - sqrt(CKA) (eq. 14), all of them as one batch."""
        assert teacher.selected is not None
        rows = torch.cat([student.attentions[layer] for layer in self.layers])
        grams = torch.cat([teacher.grams[layer] for layer in self.layers.values()])
        there = (teacher.selected[..., 0] >= 0).repeat(len(self.layers), 1)
        return (1 - root_cka(centred_gram(rows, there), grams)).view(len(self.layers), -1).sum(0)

    def _otis(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        """The cost of transport between the last hidden states, with the masses of eq. 15 and 16."""
        assert (
            batch.alignment is not None
            and teacher.importance is not None
            and student.mask is not None
            and teacher.mask is not None
        )
        ours, theirs, mu = student.mask, teacher.mask, teacher.importance
        if self.drop_special:
            ours, theirs = _inside(ours, self.sizes.student_special), _inside(theirs, self.sizes.teacher_special)
            mu = mu * theirs
            mu = (mu / mu.sum(1, keepdim=True)).nan_to_num(0.0)  # a text of special tokens alone has no masses
        nu = student_importance(mu, batch.alignment.pairs, ours).nan_to_num(0.0)
        cost = emo_cost(student.hidden_layers[-1], self.projection(teacher.hidden_layers[-1].float()), theirs)
        return transport_cost(cost, nu, mu, self.unroll, epsilon=self.epsilon, iterations=self.iterations)


def _inside(mask: Bool[Tensor, "batch tokens"], special: tuple[int, int] | None) -> Bool[Tensor, "batch tokens"]:
    """`mask` without the special tokens that begin and end each text (how many of each)."""
    assert special is not None
    places = torch.arange(mask.shape[1], device=mask.device)
    return mask & (places >= special[0]) & (places < mask.sum(1, keepdim=True) - special[1])
