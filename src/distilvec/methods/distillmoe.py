"""DistillMoE (paper 001, section 3): an expert for each facet of the teacher's vectors, a gate, and DynamicCKA.

Student and teachers may have different tokenizers. What ships is the student with its experts (models/experts.py), in
its own dim and space. docs/papers/distillmoe.md has more on the options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from distilvec.core.errors import DistilvecError
from distilvec.core.info import TeacherInfo
from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, NonNegative, Positive, Share, option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.distance import cosine_distance
from distilvec.losses.dynamic_cka import RULES, dynamic_cka, kept_tokens, match_weights, token_similarity
from distilvec.losses.moe import (
    contrastive,
    diversity_loss,
    gated_loss,
    pairwise_margin,
    towards_uniform,
    within_margin,
)
from distilvec.methods.base.layerwise import require_student_layers
from distilvec.methods.base.terms import bibtex, simcse_term, task_shares, task_term, weights_with_task

Facet = Literal["pointwise", "contrastive", "pairwise"]
FACETS: tuple[Facet, ...] = ("pointwise", "contrastive", "pairwise")
MOST_WITHIN = 0.95  # share of the teacher's pairs within the margin of their mean, from which a run says so


def moe_weights(beta: float) -> Weights:
    """Return the parts of L_MoE (eq. 7) with their weights.

    L_MoE = sum_k g_k L^(k)  +  L_div  +  beta KL(g || uniform)
            moe                 diversity      uniform (eq. 8); beta is 0 in the paper
    """
    return {"moe": 1.0, "diversity": 1.0, "uniform": beta}


def distillation_weights(moe: Weights, lambda_: float) -> Weights:
    """Return the terms of lambda L_MoE + (1 - lambda) L_CKA (eq. 14) with their weights.

    L = (1 - w) L_task + w (lambda L_MoE + (1 - lambda) L_CKA): `weights_with_task` adds the task and w.
    """
    return {name: lambda_ * weight for name, weight in moe.items()} | {"dynamic_cka": 1 - lambda_}


class DistillMoE(Objective):
    """Learns facets of the teacher's vectors by experts that a gate mixes, and hidden states across tokenizers.

    moe, diversity, uniform: the parts of L_MoE (eq. 7); dynamic_cka: L_CKA (eq. 13). Together they are eq. 14.

    Without a task the loss is the second part of eq. 14 alone. w is `distillation_weight`. With several teachers there
    is an expert for each facet of each teacher, the first teacher's first, and one gate. A teacher's weight, relative
    to the mean weight, multiplies its facets' losses; dynamic_cka is the weighted mean, with a Q for each. The recipe
    may give the projections a learning rate (objective.projections).

    Args:
        distillation_weight: of all terms but the task (0.1 to 0.5, see docs/papers/emo.md)
        mix: lambda, the share of the experts; the rest is dynamic_cka's (authors' code, classification: 0.1)
        facets: of one expert each: pointwise (eq. 1), contrastive (InfoNCE, eq. 3), pairwise (in-batch cosines, eq. 5)
        temperature, margin: of contrastive and of pairwise; 0.1 in the authors' code, not in the paper
        floor: the gate's smallest weight without a loss (eq. 6)
        floor_weight: of that part of diversity; 5 with a floor of 0.25 in the authors' code for pairs
        beta: weight of uniform relative to moe, 0 in the paper: the gate then goes to the smallest loss (theorem 3.2)
        layers: Z, the number of last layers in dynamic_cka
        rule: of matching tokens: "paper" (nucleus of 0.9) or "authors" (0.95, at most 3, of cosine 0.3 at least)
        threshold, match_temperature, most, least: replace parts of the rule
        share_projection: true makes W1, W2 and Q one layer, as in the authors' code
        fix_projections: true leaves W1, W2 and Q as they are drawn, as in the authors' code, where the optimizer does
            not hold them
        manual: fixed weights of the facets on the student's own vector, for a student without experts (table 11)
        simcse: true trains on unlabelled texts, with unsupervised SimCSE as the task (table 14)

    Note: a token with a single match teaches Q nothing: its weight is 1, as soon with "authors". share_projection lets
    Q learn by the facets.
    Note: the authors' code takes the mean over the teacher's states with padding; here it is the teacher's own vector.
    Note: eq. 12 compares the student's own states by text; the authors' code projected ones of the batch with padding.
    Note: the floor is part of eq. 6 for every task; the authors' code leaves it out for STS.
    Note: dynamic_cka needs float16 states in the cache: aggregates are close to each other, so that int8 rounding
    moves the gradient.
    Note: contrastive and pairwise compare texts of like length, as train.window sorts by length (1: at random).
    Note: the gate is one linear layer (the paper's 4.7 M parameters; student.experts.gate_width: 1024 is the code's).
    """

    in_teacher_space = False
    learns_labels = True
    max_teachers = None
    citation = bibtex("distillmoe")

    manual_weights: Tensor | None

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        distillation_weight: Share | None = None,
        mix: Share = 0.8,
        facets: Annotated[Sequence[Facet], Field(min_length=1)] = FACETS,
        temperature: Positive = 0.1,
        margin: NonNegative = 0.1,
        floor: Share = 0.1,
        floor_weight: NonNegative = 1.0,
        beta: NonNegative = 0.0,
        layers: Count = 3,
        rule: Literal["paper", "authors"] = "paper",
        threshold: Annotated[float, Field(gt=0, le=1)] | None = None,
        match_temperature: Positive | None = None,
        most: Count | None = None,
        least: Annotated[float, Field(ge=-1, le=1)] | None = None,
        share_projection: bool = False,
        fix_projections: bool = False,
        manual: Sequence[float] | None = None,
        simcse: bool = False,
    ) -> None:
        l_moe = moe_weights(beta) if manual is None else {"moe": 1.0}  # without experts eq. 7 has its first part alone
        terms = distillation_weights(l_moe, lambda_=mix)
        super().__init__(context, weights, weights_with_task(task_shares(distillation_weight), terms, context, simcse))
        self.facets = facets
        self.temperature = temperature
        self.margin = margin
        self.floor = floor
        self.floor_weight = floor_weight
        self.layers = layers
        self.share_projection = share_projection

        changes: dict[str, Any] = {
            "threshold": threshold,
            "temperature": match_temperature,
            "most": most,
            "least": least,
        }
        self.rule = replace(RULES[rule], **{name: value for name, value in changes.items() if value is not None})

        teachers = context.teachers
        mean_weight = sum(teacher.weight for teacher in teachers) / len(teachers)
        self.shares = [teacher.weight / mean_weight for teacher in teachers]
        self.names: list[str] = list(facets)  # of the experts
        if len(teachers) > 1:
            self.names = [f"{facet}_{number}" for number in range(len(teachers)) for facet in facets]
        if len({*facets}) < len(facets):
            raise option_error("facets", facets, "each facet once")
        if manual is not None and (len(manual) != len(self.names) or context.student.experts):
            expected = (
                f"a weight for each of {', '.join(self.names)}, and a student without experts (student.experts: null)"
            )
            raise option_error("manual", manual, expected)
        manual_weights = None if manual is None else torch.tensor(manual, dtype=torch.float32)
        self.register_buffer("manual_weights", manual_weights, persistent=False)

        self.projections = nn.ModuleDict()
        self.student_outputs = self.teacher_outputs = OutputSpec()
        self.add_task_head()
        self._require_outputs()
        self.projections.requires_grad_(not fix_projections)

    def _require_outputs(self) -> None:
        """Check the models for the terms that have a weight, make their projections and require their outputs."""
        has_moe = bool(self.weights["moe"])
        has_cka = bool(self.weights["dynamic_cka"])
        has_simcse = bool(self.weights.get("simcse"))
        has_manual = self.manual_weights is not None
        reads_experts = not has_manual and any(self.weights[name] for name in ("moe", "diversity", "uniform"))

        experts = self.context.student.experts
        expected = len(self.names)
        if reads_experts and (not experts or (has_moe and experts != expected)):
            raise DistilvecError(
                f"distillmoe needs {expected} experts: {', '.join(self.names)}; found {experts}.",
                f"Set count: {expected}, or method.options.manual, or method.weights: {{moe: 0, diversity: 0}}.",
                key="student.experts",
            )

        for number, teacher in enumerate(self.context.teachers):
            sizes: dict[str, int] = {}  # of what a projection gives: W1, W2, Q
            for facet in ("pointwise", "contrastive"):
                if has_moe and facet in self.facets:
                    sizes[facet] = teacher.dim
            if has_cka:
                sizes["tokens"] = self._state_size(teacher)
            if self.share_projection and len({*sizes.values()}) > 1:
                raise option_error("share_projection", True, f"false for a teacher's dim and hidden size {sizes}")
            for name, size in sizes.items():
                if self._key(name, number) not in self.projections:
                    layer = nn.Linear(self.context.student.hidden_size, size, bias=False)
                    nn.init.xavier_uniform_(layer.weight)
                    self.projections[self._key(name, number)] = layer

        compares_texts = "contrastive" in self.facets or "pairwise" in self.facets
        self.needs_fixed_batch = has_simcse or (has_moe and compares_texts)
        last_layers = tuple(range(-1, -self.layers - 1, -1)) if has_cka else ()
        self.student_outputs |= OutputSpec(
            embedding=has_simcse,
            second_view=has_simcse,
            hidden_layers=last_layers,
            vector=has_moe and has_manual,
            experts=reads_experts,
        )
        tokens = TokenOutputSpec(hidden=last_layers, precision="float16") if has_cka else None
        self.teacher_outputs |= OutputSpec(embedding=has_moe, tokens=tokens)

    def _state_size(self, teacher: TeacherInfo) -> int:
        """Return the hidden size of a teacher that has the layers of dynamic_cka."""
        if teacher.hidden_size is None or teacher.layers is None:
            raise DistilvecError(
                "dynamic_cka reads the teacher's hidden states, but a table of vectors or an API has no such states.",
                "Give a local model as teacher.model, or set method.weights.dynamic_cka=0 to use only cached vectors.",
                key="method.name",
            )
        require_student_layers(self.context)
        most = min(self.context.student.layers, teacher.layers)
        if self.layers > most:
            raise option_error("layers", self.layers, f"1 to {most}, the layers of both models")
        return teacher.hidden_size

    def _key(self, name: str, number: int) -> str:
        return f"{'shared' if self.share_projection else name}_{number}"

    def projection(self, name: str, number: int) -> Float[Tensor, "other hidden"]:
        """Return the weights of W1 ("pointwise"), W2 ("contrastive") or Q ("tokens") of a teacher."""
        layer = self.projections[self._key(name, number)]
        assert isinstance(layer, nn.Linear)
        return layer.weight

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the parts of eq. 7, L_CKA (eq. 13), and the task's loss or SimCSE; `weights` hold eq. 7 and 14."""
        return self.weighted_terms(
            task=lambda: task_term(batch, student),
            simcse=lambda: simcse_term(student),
            moe=lambda: gated_loss(self._gates(student), self._losses(student, teacher)),
            diversity=lambda: self._diversity(student),
            uniform=lambda: towards_uniform(self._gates(student)),
            dynamic_cka=lambda: self._dynamic_cka(student, teacher),
        )

    def _gates(self, student: ModelOutputs) -> Tensor:
        gates = student.gates if self.manual_weights is None else self.manual_weights
        assert gates is not None
        return gates

    def _diversity(self, student: ModelOutputs) -> Float[Tensor, " batch"]:
        assert student.experts is not None
        return diversity_loss(student.experts, self._gates(student), self.floor, self.floor_weight)

    def _losses(self, student: ModelOutputs, teacher: ModelOutputs) -> Float[Tensor, "batch experts"]:
        """Return the loss of each facet of each teacher, in the experts' order, times the teacher's share."""
        losses: list[Tensor] = []
        for number, outputs in enumerate((teacher, *teacher.others)):
            assert outputs.embedding is not None
            for facet in self.facets:
                vector = self._facet_vector(student, len(losses))
                losses.append(self.shares[number] * self._facet(facet, vector, outputs.embedding, number))
        return torch.stack(losses, dim=1)

    def _facet_vector(self, student: ModelOutputs, number: int) -> Float[Tensor, "batch hidden"]:
        """Return the vector of expert `number`; with manual weights the student's own vector for every facet."""
        if self.manual_weights is not None:
            assert student.vector is not None
            return student.vector
        assert student.experts is not None
        return student.experts.unbind(1)[number]

    def _facet(self, facet: Facet, vector: Tensor, y_hat: Tensor, number: int) -> Float[Tensor, " batch"]:
        """Return L^(k) of one facet: eq. 1, 3 or 5; `number` is the teacher's."""
        if facet == "pairwise":
            return pairwise_margin(vector, y_hat, self.margin)
        projected = nn.functional.linear(vector, self.projection(facet, number))
        if facet == "pointwise":
            return cosine_distance(projected, y_hat)
        return contrastive(projected, y_hat, self.temperature)

    def _dynamic_cka(self, student: ModelOutputs, teacher: ModelOutputs) -> Float[Tensor, " batch"]:
        """Return eq. 13: the mean over layers and, weighted, over teachers. All layers are computed as one batch."""
        assert student.mask is not None
        last_layers = range(-self.layers, 0)
        h_student = torch.cat([student.hidden_layers[layer] for layer in last_layers])
        student_mask = student.mask.repeat(self.layers, 1)
        losses: list[Tensor] = []
        for number, outputs in enumerate((teacher, *teacher.others)):
            assert outputs.mask is not None
            h_teacher = torch.cat([outputs.hidden_layers[layer] for layer in last_layers])
            teacher_mask = outputs.mask.repeat(self.layers, 1)
            q = self.projection("tokens", number)
            loss = dynamic_cka(h_student, h_teacher, q, student_mask, teacher_mask, self.rule, self.matmul_dtype)
            losses.append(self.shares[number] * loss.view(self.layers, -1))
        return torch.cat(losses).mean(0)

    def metrics(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """Return numbers of the terms that have a weight.

        Each expert's mean loss; the share of the first teacher's pairs of texts whose cosine is within the margin of
        their mean; the mean number of the teacher's tokens kept for a student token.
        """
        metrics: dict[str, Tensor] = {}
        if self.weights["moe"]:
            losses = self._losses(student, teacher).mean(0)
            metrics = {f"facet_{name}": loss for name, loss in zip(self.names, losses, strict=True)}
            if "pairwise" in self.facets and len(losses) and self.margin:
                assert teacher.embedding is not None
                metrics["within_margin"] = within_margin(teacher.embedding, self.margin)
        if self.weights["dynamic_cka"]:
            assert student.mask is not None and teacher.mask is not None
            q = self.projection("tokens", 0)
            h_student = student.hidden_layers[-1]
            h_teacher = teacher.hidden_layers[-1]
            similarity = token_similarity(h_student, h_teacher, q, self.matmul_dtype)
            alpha = match_weights(similarity, student.mask, teacher.mask, self.rule)
            metrics["kept_tokens"] = kept_tokens(alpha, student.mask)
        return metrics

    def problem(self, metrics: Mapping[str, float]) -> str:
        """Return that the margin of pairwise hides how the teacher's cosines differ."""
        share = metrics.get("within_margin", 0.0)
        if share < MOST_WITHIN:
            return ""
        return (
            f"The margin of the facet pairwise, {self.margin:g}, is wider than the teacher's cosines vary: {share:.0%} "
            "of the pairs of texts are within it of their mean, so that a student with one cosine for all pairs has no "
            "loss. Set [method.options.margin: 0]."
        )
