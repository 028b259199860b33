"""EMO: attention CKA on the most important aligned tokens (IRA) and optimal transport of last hidden states (OTIS).

The equations are in losses/emo.py, in the paper's order. Student and teacher may have different tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from distilvec.core.device import full_precision
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import LinearPairs, LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, NonNegative, Positive, Share, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.emo import (
    ira_loss,
    otis_cost,
    over_texts,
    softmax_importance,
    state_cost,
    student_importance,
)
from distilvec.losses.transport import transport_cost
from distilvec.methods.base.layerwise import require_layers, require_student_layers
from distilvec.methods.base.terms import bibtex, simcse_term, task_shares, task_term, weights_with_task

MOST_IDLE = 0.5  # share of the texts on which ira teaches nothing, from which a run says so


class Emo(Objective):
    """Learns labels, and the teacher's attention and hidden states across tokenizers.

    task: labels; ira: 1 - sqrt(CKA) of attention rows, summed over layers (eq. 14); otis: transport cost (eq. 21).

    L = (1 - w) L_task + w (L_IRA + L_OTIS) with w = `distillation_weight` (eq. 22), or L_IRA + L_OTIS without a task.
    The projection P (eq. 17) learns here; the recipe gives it a learning rate of its own.

    Args:
        distillation_weight: of ira and otis together (0.1 or 0.5, see docs/papers/emo.md); a weight that
            `method.weights` states for one of them replaces its product with this one and `ira_weight`
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
            themselves, the student's behind a linear layer with the teacher's (docs/papers/emo.md)
        epsilon: 1 / lambda of eq. 19, which the paper does not print; 0.1 in the authors' code
        iterations: of Sinkhorn
        unroll: true sends a gradient through the iterations, too, as the authors' code does
        drop_special: true leaves the special tokens that begin and end a text out of otis
        simcse: with texts without labels, unsupervised SimCSE in the role of the task (TALAS, table 1)

    Note: the authors' code also lower-cases the texts of ira, strips punctuation and stop words before it ranks tokens,
    and gives a token's importance to all tokens of the nearest type. These have no option.
    """

    in_teacher_space = False
    learns_labels = True
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
        simcse: bool = False,
    ) -> None:
        shares = task_shares(distillation_weight)
        super().__init__(context, weights, weights_with_task(shares, {"ira": ira_weight, "otis": 1.0}, context, simcse))
        self.divisor = divisor
        self.ira_special_tokens = ira_special_tokens
        self.ira_reduction = ira_reduction
        self.importance = importance
        self.cost = cost
        self.epsilon = epsilon
        self.iterations = iterations
        self.unroll = unroll
        self.drop_special = drop_special
        require_student_layers(context)
        if ira_layers > context.student.layers:
            raise option_error("ira_layers", ira_layers, f"1 to {context.student.layers}, the student's layers")

        # P maps the teacher's states to the student's hidden size (eq. 17); with cost "cosine" it is a layer the other
        # way round, from the student's states to the teacher's hidden size
        student_size = context.student.hidden_size
        teacher_size = context.state_size
        if cost == "cosine":
            self.projection = nn.Linear(student_size, teacher_size, bias=False)
        else:
            self.projection = nn.Linear(teacher_size, student_size, bias=False)

        has_ira = bool(self.weights["ira"])
        has_otis = bool(self.weights["otis"])
        if has_otis and drop_special and None in (context.student.special_tokens, context.teacher.special_tokens):
            raise option_error("drop_special", True, "false: the tokenizers' special tokens are not known")
        if has_ira or has_otis:
            require_layers(context.teacher)
        self.ira_layer_map = _layer_map(context, ira_layers, layer_map) if has_ira else {}
        state_layers: tuple[int, ...] = (-1,) if has_otis else ()
        tokens = TokenOutputSpec(
            alignment=alignment,
            hidden=state_layers,
            importance=has_otis,
            gram_layers=tuple(self.ira_layer_map.values()),
            divisor=divisor,
            # Without ira this means nothing. The value is part of the cache's name, so it is always the same one.
            special_tokens=not has_ira or ira_special_tokens == "keep",
        )
        has_simcse = bool(self.weights.get("simcse"))
        self.needs_fixed_batch = has_simcse
        self.student_outputs = OutputSpec(
            embedding=has_simcse,
            second_view=has_simcse,
            hidden_layers=state_layers,
            attention_layers=tuple(self.ira_layer_map),
        )
        self.teacher_outputs = OutputSpec(tokens=tokens if has_ira or has_otis else None)
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return L_IRA (eq. 14), L_OTIS (eq. 21) and the task's loss or SimCSE, the terms of eq. 22."""
        return self.weighted_terms(
            simcse=lambda: simcse_term(student),
            task=lambda: task_term(batch, student),
            ira=lambda: self._ira(batch, student, teacher),
            otis=lambda: self._otis(batch, student, teacher),
        )

    def _ira(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        """Return L_IRA (eq. 14) by text; texts with m < 2 do not count in the batch's mean."""
        assert teacher.selected is not None
        student_rows = [student.attentions[layer] for layer in self.ira_layer_map]  # eq. 7
        teacher_grams = [teacher.grams[layer] for layer in self.ira_layer_map.values()]  # eq. 8 and 10
        losses = ira_loss(student_rows, teacher_grams, teacher.selected[..., 0] >= 0)
        has_rows = self._rows(batch, teacher) > 1
        losses = over_texts(losses, has_rows)
        if self.ira_reduction == "sum":  # the mean over the counted texts becomes their sum
            return losses * has_rows.sum()
        return losses

    def _rows(self, batch: TextBatch, teacher: ModelOutputs) -> Int[Tensor, " batch"]:
        """Return m, the aligned tokens of each text that ira compares: CKA of fewer than two rows compares nothing."""
        assert teacher.selected is not None and batch.alignment is not None
        m = (teacher.selected[..., 0] >= 0).sum(1)
        if self.ira_special_tokens == "keep":  # `select` takes 2 pairs at least, also where n // divisor is less
            m = m.minimum((batch.alignment.pairs[..., 0] >= 0).sum(1) // self.divisor)
        return m

    def metrics(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """Return the shares of texts that ira teaches nothing.

        without_ira: of texts with too few mapped tokens (m < 2), which add nothing to its mean; ira_of_two: of texts
        with two, whose CKA is 1 whatever their rows are.
        """
        if not self.ira_layer_map:
            return {}
        m = self._rows(batch, teacher)
        return {"without_ira": (m < 2).float().mean(), "ira_of_two": (m == 2).float().mean()}

    def problem(self, metrics: Mapping[str, float]) -> str:
        """Return that ira teaches nothing on most texts, since they are short."""
        idle = metrics.get("without_ira", 0.0) + metrics.get("ira_of_two", 0.0)
        if idle < MOST_IDLE:
            return ""
        return (
            f"ira teaches nothing on {idle:.0%} of the texts: of their mapped tokens fewer than three are compared "
            f"(one in {self.divisor}). Compare all [method.options.divisor: 1], give pairs as one input [task.encode: "
            "joint], or leave ira out [method.weights.ira: 0]."
        )

    def linear_maps(self) -> dict[str, LinearPairs]:
        """Return the pairs of P: last hidden states of aligned tokens."""

        def pairs(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tensor, Tensor]:
            assert batch.alignment is not None
            student_positions, teacher_positions = batch.alignment.pairs.unbind(-1)
            text, pair = (student_positions >= 0).nonzero(as_tuple=True)
            h_student = student.hidden_layers[-1][text, student_positions[text, pair]]
            h_teacher = teacher.hidden_layers[-1][text, teacher_positions[text, pair]]
            return (h_student, h_teacher) if self.cost == "cosine" else (h_teacher, h_student)

        return {"projection": pairs} if self.weights["otis"] else {}

    def _otis(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        """Return L_OTIS (eq. 21) by text."""
        student_mask, teacher_mask, mu = student.mask, teacher.mask, teacher.importance
        assert batch.alignment is not None and student_mask is not None
        assert teacher_mask is not None and mu is not None  # eq. 15
        if self.drop_special:
            student_mask = _without_special(student_mask, self.context.student.special_tokens)
            teacher_mask = _without_special(teacher_mask, self.context.teacher.special_tokens)
            mu = mu * teacher_mask
            mu = (mu / mu.sum(1, keepdim=True)).nan_to_num(0.0)  # 0 for a text of special tokens alone
        is_softmax = self.importance == "softmax"
        if is_softmax:
            mu = softmax_importance(mu, teacher_mask)
        nu = student_importance(mu, batch.alignment.pairs, student_mask, is_softmax).nan_to_num(0.0)  # eq. 16

        h_student = full_precision(student.hidden_layers[-1])
        h_teacher = full_precision(teacher.hidden_layers[-1])
        if self.cost == "cosine":
            cost = state_cost(self.projection(h_student), h_teacher, teacher_mask)
        else:
            cost = otis_cost(h_student, self.projection(h_teacher), teacher_mask)  # eq. 17 and 18
        return transport_cost(cost, nu, mu, self.unroll, self.epsilon, self.iterations)  # eq. 19 to 21


def _layer_map(context: ObjectiveContext, count: int, kind: Literal["paper", "last_aligned"]) -> dict[int, int]:
    """Return M(k), the teacher's layer for each of the student's last `count` layers, all numbered from 1."""
    last = context.student.layers
    teacher_layers = context.teacher.layers or 0
    step = teacher_layers // last
    if step == 0:
        raise DistilvecError(
            f"ira maps the student's layers to the teacher's; found {last} and {teacher_layers}.",
            "Take a student with no more layers than the teacher (student.layers), or set method.weights.ira=0.",
            key="method.name",
        )
    shift = teacher_layers - step * last if kind == "last_aligned" else 0
    return {layer: step * layer + shift for layer in range(last - count + 1, last + 1)}


def _without_special(
    mask: Bool[Tensor, "batch tokens"], special: tuple[int, int] | None
) -> Bool[Tensor, "batch tokens"]:
    """Return `mask` without the special tokens that begin and end each text; `special` are their numbers."""
    assert special is not None
    leading, trailing = special
    positions = torch.arange(mask.shape[1], device=mask.device)
    return mask & (positions >= leading) & (positions < mask.sum(1, keepdim=True) - trailing)
