"""EMO: attention CKA on the most important aligned tokens (IRA) and optimal transport of last hidden states (OTIS).

The equations are in losses/emo.py, in the paper's order. Student and teacher may have different tokenizers.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import LinearPairs, LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, NonNegative, Positive, Share, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.distance import full_precision
from distilvec.losses.emo import (
    intra_model_relation,
    otis_cost,
    over_texts,
    softmax_importance,
    state_cost,
    student_importance,
)
from distilvec.losses.transport import transport_cost
from distilvec.methods.base.layerwise import require_layers
from distilvec.methods.base.terms import bibtex, task_shares, task_term, task_weights


class Emo(Objective):
    """task: labels; ira: 1 - sqrt(CKA) of attention rows, summed over layers (eq. 14); otis: transport cost (eq. 21).

    The loss is (1 - w) task + w (ira + otis) with w = `distillation_weight` (eq. 22), or ira + otis without a task. The
    projection P (eq. 17) learns here; the recipe gives it a learning rate of its own.

    Args:
        distillation_weight: of ira and otis together (0.1 or 0.5, see docs/token_level.md)
        ira_layers: z, the number of the student's last layers in ira (paper: 2)
        ira_weight: of ira relative to otis
        layer_map: "paper" compares the student's layer k with the teacher's floor(h_t / h_s) k (of 12 and 32 layers the
            12th with the 24th); "last_aligned" counts in the same steps from the teacher's last layer
        divisor: ira takes m = n / divisor of the n mapped tokens (paper: 3)
        ira_special_tokens: "drop" ranks ordinary tokens alone in ira, as the authors' code does; "keep" takes [CLS],
            [SEP] and the like in, which receive most attention
        alignment: of tokens: by character offsets, by minimum edit distance (paper), of these pairs of equal text, or
            "mined_types", token types that are each other's nearest (the authors' code)
        ira_reduction: "sum" adds up the texts of a batch, as the authors' code does, whose ira_weight is 0.1
        importance: mu (eq. 15) as the "share" of the attention received, or the "softmax" of its sums, as in the
            authors' code; nu is then the softmax of the importance that eq. 16 gives to the student's tokens
        cost: of otis: "softmax" (eq. 17 and 18) asks which of a text's tokens go together; "cosine" compares the states
            themselves, the student's behind a linear layer with the teacher's (docs/token_level.md)
        epsilon: 1 / lambda of eq. 19, which the paper does not print; 0.1 in the authors' code
        iterations: of Sinkhorn
        unroll: true sends a gradient through the iterations, too, as the authors' code does
        drop_special: true leaves the special tokens that begin and end a text out of otis

    Note: the authors' code also lower-cases the texts of ira, strips punctuation and stop words before it ranks tokens,
    and gives a token's importance to all tokens of the nearest type. These have no option.
    """

    in_teacher_space = False
    citation = bibtex("emo")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        distillation_weight: Share | None = None,
        ira_layers: Count = 2,
        ira_weight: NonNegative = 1.0,
        layer_map: Literal["paper", "last_aligned"] = "paper",
        divisor: Count = 3,
        ira_special_tokens: Literal["drop", "keep"] = "drop",
        alignment: Literal["offsets", "mined", "mined_types", "strict"] = "offsets",
        ira_reduction: Literal["mean", "sum"] = "mean",
        importance: Literal["share", "softmax"] = "share",
        cost: Literal["softmax", "cosine"] = "softmax",
        epsilon: Positive = 0.1,
        iterations: Count = 100,
        unroll: bool = False,
        drop_special: bool = False,
    ) -> None:
        shares = task_shares(distillation_weight)
        super().__init__(context, weights, task_weights(shares, {"ira": ira_weight, "otis": 1.0}, context))
        if ira_layers > context.student.layers:
            raise option_error("ira_layers", ira_layers, f"1 to {context.student.layers}, the student's layers")
        self.sums_ira, self.softmax = ira_reduction == "sum", importance == "softmax"
        self.drop_special, self.epsilon, self.iterations, self.unroll = drop_special, epsilon, iterations, unroll
        self.compares_states = cost == "cosine"
        source, target = context.state_size, context.student.hidden_size
        if self.compares_states:
            source, target = target, source
        self.projection = nn.Linear(source, target, bias=False)
        ira, is_otis = bool(self.weights["ira"]), bool(self.weights["otis"])
        if is_otis and drop_special and None in (context.student.special_tokens, context.teacher.special_tokens):
            raise option_error("drop_special", True, "false: the tokenizers' special tokens are not known")
        if ira or is_otis:
            require_layers(context.teacher)
        self.layers = _layer_map(context, ira_layers, layer_map) if ira else {}
        states: tuple[int, ...] = (-1,) if is_otis else ()
        self.divisor, self.keeps_special = divisor, not ira or ira_special_tokens == "keep"
        grams = tuple(self.layers.values())
        tokens = TokenOutputSpec(alignment, states, is_otis, grams, divisor, self.keeps_special)
        self.student_outputs = OutputSpec(hidden_layers=states, attention_layers=tuple(self.layers))
        self.teacher_outputs = OutputSpec(tokens=tokens if ira or is_otis else None)
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        return self.weighted_terms(
            task=lambda: task_term(batch, student),
            ira=lambda: self._ira(batch, student, teacher),
            otis=lambda: self._otis(batch, student, teacher),
        )

    def _ira(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        assert teacher.selected is not None
        rows = [student.attentions[layer] for layer in self.layers]
        grams = [teacher.grams[layer] for layer in self.layers.values()]
        values = intra_model_relation(rows, grams, teacher.selected[..., 0] >= 0)
        values = over_texts(values, counted := self._compares(batch, teacher))
        return values * counted.sum() if self.sums_ira else values

    def _compares(self, batch: TextBatch, teacher: ModelOutputs) -> Bool[Tensor, " batch"]:
        """Return whether a text has the m >= 2 tokens that CKA needs."""
        assert teacher.selected is not None and batch.alignment is not None
        selected = (teacher.selected[..., 0] >= 0).sum(1)
        if self.keeps_special:  # 2 are selected of fewer than 2 divisor pairs
            selected = selected.minimum((batch.alignment.pairs[..., 0] >= 0).sum(1) // self.divisor)
        return selected > 1

    def metrics(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """Return the share of texts with too few mapped tokens for ira (m < 2), which add nothing to its mean."""
        return {"without_ira": (~self._compares(batch, teacher)).float().mean()} if self.layers else {}

    def linear_maps(self) -> dict[str, LinearPairs]:
        """Return the pairs of P: last hidden states of aligned tokens."""

        def pairs(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tensor, Tensor]:
            assert batch.alignment is not None
            ours, theirs = batch.alignment.pairs.unbind(-1)
            text, pair = (ours >= 0).nonzero(as_tuple=True)
            ours, theirs = ours[text, pair], theirs[text, pair]
            states = teacher.hidden_layers[-1][text, theirs], student.hidden_layers[-1][text, ours]
            return states[::-1] if self.compares_states else states

        return {"projection": pairs} if self.weights["otis"] else {}

    def _otis(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        ours, theirs, mu = student.mask, teacher.mask, teacher.importance
        assert batch.alignment is not None and ours is not None and theirs is not None and mu is not None
        if self.drop_special:
            ours = _inside(ours, self.context.student.special_tokens)
            theirs = _inside(theirs, self.context.teacher.special_tokens)
            mu = mu * theirs
            mu = (mu / mu.sum(1, keepdim=True)).nan_to_num(0.0)  # 0 for a text of special tokens alone
        if self.softmax:
            mu = softmax_importance(mu, theirs)
        nu = student_importance(mu, batch.alignment.pairs, ours, self.softmax).nan_to_num(0.0)
        own, other = (full_precision(outputs.hidden_layers[-1]) for outputs in (student, teacher))
        if self.compares_states:
            cost = state_cost(self.projection(own), other, theirs)
        else:
            cost = otis_cost(own, self.projection(other), theirs)
        return transport_cost(cost, nu, mu, self.unroll, self.epsilon, self.iterations)  # eq. 19 to 21


def _layer_map(context: ObjectiveContext, count: int, kind: Literal["paper", "last_aligned"]) -> dict[int, int]:
    """Return M(k), the teacher's layer for each of the student's last `count` layers, all numbered from 1."""
    last, teacher_layers = context.student.layers, context.teacher.layers or 0
    step = teacher_layers // last
    if step == 0:
        raise DistilvecError(
            "method.name",
            f"ira maps the student's layers to the teacher's; found {last} and {teacher_layers}.",
            "Take a student with no more layers than the teacher (student.layers), or set method.weights.ira=0.",
        )
    shift = teacher_layers - step * last if kind == "last_aligned" else 0
    return {layer: step * layer + shift for layer in range(last - count + 1, last + 1)}


def _inside(mask: Bool[Tensor, "batch tokens"], special: tuple[int, int] | None) -> Bool[Tensor, "batch tokens"]:
    """Return `mask` without the special tokens that begin and end each text (numbers of both)."""
    assert special is not None
    positions = torch.arange(mask.shape[1], device=mask.device)
    return mask & (positions >= special[0]) & (positions < mask.sum(1, keepdim=True) - special[1])
