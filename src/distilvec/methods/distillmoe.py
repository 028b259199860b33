"""DistillMoE: experts that each learn one facet of the teacher's vectors, mixed by a gate, and hidden states aligned by DynamicCKA.

Paper: "DistillMoE: Multi-Faceted Knowledge Distillation for Cross-Tokenizer Embedding Models", section 3. Student and teachers may
have different tokenizers. What ships is the student with its experts (models/experts.py), in its own width and space.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.objective import Objective, OtherTeacher, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import cosine_distance
from distilvec.losses.dynamic_cka import RULES, dynamic_cka, kept_tokens, match_weights, token_similarity
from distilvec.losses.moe import contrastive, diversity, gate_floor, pairwise_margin, towards_uniform
from distilvec.methods.base.token_or_logit_kd import task_terms, task_weights

FACETS = ("pointwise", "contrastive", "pairwise")
SIMCSE_TEMPERATURE = 0.05  # SimCSE's own


class DistillMoE(Objective):
    """task: the labels; moe: the facets' losses, weighed by the gate (eq. 7); diversity: experts that differ and a gate that leaves
    none out (eq. 6); uniform: KL from the gate to equal weights (eq. 8); dynamic_cka: hidden states, token by token (eq. 13).

    Options: eq. 14 weighs the task by `alpha` and the rest by 1 - alpha, of which `mix` (lambda) goes to the experts and the rest
    to dynamic_cka; `beta` weighs uniform beside moe and is 0 in the paper. Without a task, nothing is taken off for it.
    `facets` has an expert for each: pointwise (1 - cosine, eq. 1), contrastive (InfoNCE with `temperature`, eq. 3), pairwise
    (cosines between texts, off by more than `margin`, eq. 5). `floor` is the gate's least weight that costs nothing.
    `layers` is Z, the number of last layers in dynamic_cka, last with last. `rule` says which of the teacher's tokens stand for
    one of the student's: "paper" (nucleus of mass 0.9) or "authors" (0.95, at most 3, of cosine 0.3 at least); `threshold`,
    `match_temperature`, `most`, `least` replace parts of it. `share_projection` makes the layers W1, W2 and Q one.
    `manual` takes fixed weights in place of experts and gate, for a student that has none: all facets act on its vector (table
    11). `simcse` trains on unlabelled texts with unsupervised SimCSE in the task's place (table 14).

    With several teachers there is an expert for each facet of each teacher, the first teacher's first, and one gate. A teacher's
    weight, as a multiple of their mean weight, multiplies its facets' losses; dynamic_cka is the weighted mean, with a Q for each.
    A term of weight 0 is not computed, and nothing is asked of student or teacher for it: moe, diversity and uniform of weight 0
    need no experts, dynamic_cka of weight 0 needs the teacher's vectors alone. The projections learn here; the recipe may give
    them a learning rate of their own (objective.projections).

    Note: with temperature 1, as printed, eq. 11 keeps nine tenths of the teacher's tokens whatever they are (cosines are at most 2
    apart), and every token gets nearly the mean. The authors' code keeps 3 at most; a `match_temperature` of 0.1 keeps few, too.
    Note: a token with one match has weight 1 for it, whatever its cosine, and tells Q nothing. With a random Q no cosine reaches the
    0.3 of "authors", so that there Q stays as it was drawn, unless share_projection teaches it by the facets, as in the authors' code.
    Note: without `beta` the gate goes to the facet whose loss is least (theorem 3.2). Losses differ in size, contrastive being the
    largest and pairwise the smallest, so that within some tens of steps every text is pairwise's, and the other experts learn no
    more; the floor, 0.01 at most for an expert, does not hold them. `beta` 1 does.
    Note: W1, W2 and Q are three layers, as in the paper; the authors' code has one. Its teacher's vector is the mean over states
    with padding; here it is the teacher's own vector.
    Note: CKA compares, text by text, the student's own states without padding (eq. 12). The authors' code takes projected ones, of
    all tokens of the batch together, with padding; it compares two layers, and none are aggregated where lengths happen to agree.
    Note: temperature and margin (0.1 both) are the authors' code's, the paper prints neither. `mix` is 0.1 on classification there.
    Note: the floor is part of eq. 6 for every task; the authors' code leaves it out for STS. The gate is a single linear layer,
    which gives the paper's 4.7 M parameters (student.experts.gate_width: 1024 is the code's).
    Note: the paper says nothing of SimCSE's settings; dropout alone makes the second view, at SimCSE's temperature 0.05.
    """

    compatible = False
    several_teachers = True
    citation = """@misc{distillmoe,
  title = {{DistillMoE}: Multi-Faceted Knowledge Distillation for Cross-Tokenizer Embedding Models},
  author = {Anonymous},
  note = {Under double-blind review}
}"""

    fixed: Tensor | None

    def __init__(
        self,
        sizes: Sizes,
        alpha: float = 0.5,
        mix: float = 0.8,
        facets: Sequence[str] = FACETS,
        temperature: float = 0.1,
        margin: float = 0.1,
        floor: float = 0.1,
        beta: float = 0.0,
        layers: int = 3,
        rule: Literal["paper", "authors"] = "paper",
        threshold: float | None = None,
        match_temperature: float | None = None,
        most: int | None = None,
        least: float | None = None,
        share_projection: bool = False,
        manual: Sequence[float] | None = None,
        simcse: bool = False,
    ) -> None:
        super().__init__()
        first = OtherTeacher(
            sizes.teacher_width,
            sizes.normalized,
            sizes.teacher_hidden_width,
            sizes.teacher_layers,
            sizes.teacher_weight,
        )
        self.sizes, self.teachers, self.simcse, self.share_projection = (
            sizes,
            (first, *sizes.others),
            simcse,
            share_projection,
        )
        self.facets, self.temperature, self.margin, self.floor, self.layers = (
            tuple(facets),
            temperature,
            margin,
            floor,
            layers,
        )
        parts: dict[str, Any] = {"threshold": threshold, "temperature": match_temperature, "most": most, "least": least}
        self.rule = dataclasses.replace(
            RULES[rule], **{name: value for name, value in parts.items() if value is not None}
        )
        mean = sum(teacher.weight for teacher in self.teachers) / len(self.teachers)
        self.shares = [teacher.weight / mean for teacher in self.teachers]
        several = len(self.teachers) > 1
        self.names = [
            f"{facet}_{number}" if several else facet
            for number in range(1, 1 + len(self.teachers))
            for facet in self.facets
        ]
        self._check_options(mix, beta, manual)
        self.manual = manual is not None
        self.register_buffer(
            "fixed", None if manual is None else torch.tensor(manual, dtype=torch.float32), persistent=False
        )
        mixture = {"moe": mix} if self.manual else {"moe": mix, "diversity": mix, "uniform": mix * beta}
        self.weights = task_weights(alpha, {**mixture, "dynamic_cka": 1 - mix}, sizes)
        if simcse:
            self.weights = {"simcse": alpha, **{name: (1 - alpha) * weight for name, weight in self.weights.items()}}
        self.student_outputs = self.teacher_outputs = OutputSpec()
        self.projections = nn.ModuleDict()

    def _check_options(self, mix: float, beta: float, manual: Sequence[float] | None) -> None:
        sizes = self.sizes
        if not 0 <= mix <= 1:
            raise DistilvecError(
                f"[method.options.mix] found {mix}; expected a share from 0 (dynamic_cka alone) to 1 (the experts alone)."
            )
        for facet in self.facets:
            if facet not in FACETS:
                known = ", ".join(FACETS)
                raise DistilvecError(
                    f"[method.options.facets] no facet '{facet}'{nearest(facet, FACETS) or '.'} Known: {known}."
                )
        if not self.facets or len(set(self.facets)) < len(self.facets):
            raise DistilvecError(
                f"[method.options.facets] found {list(self.facets)}; expected one or more, each of them once."
            )
        limits = {
            "temperature": self.temperature > 0,
            "margin": self.margin >= 0,
            "floor": 0 <= self.floor <= 1,
            "beta": beta >= 0,
        }
        for option, right in limits.items():
            if not right:
                found = beta if option == "beta" else getattr(self, option)
                expected = {"temperature": "a number above 0", "floor": "a share from 0 to 1"}.get(option, "0 or more")
                raise DistilvecError(f"[method.options.{option}] found {found}; expected {expected}.")
        if manual is not None and len(manual) != len(self.names):
            raise DistilvecError(
                f"[method.options.manual] found {len(manual)} weights; expected one for each of {', '.join(self.names)}."
            )
        if manual is not None and sizes.experts:
            raise DistilvecError(
                "[method.options.manual] fixed weights stand in the place of experts and gate, and this student has some. "
                "Set student.experts: null, or leave manual out."
            )
        if self.simcse and sizes.task is not None:
            raise DistilvecError(
                "[method.options.simcse] simcse takes the place of a task on unlabelled texts, and this recipe has labels. "
                "Leave simcse out, or give a corpus in place of the task."
            )

    def settle(self) -> None:
        """Check what the terms that have a weight need, make their projections and want their signals."""
        moe, cka = bool(self.weights["moe"]), bool(self.weights["dynamic_cka"])
        mixture = not self.manual and any(self.weights[name] for name in ("moe", "diversity", "uniform"))
        if mixture:
            self._check_experts(moe)
        if cka:
            self._check_layers()
        projected = tuple(facet for facet in ("pointwise", "contrastive") if facet in self.facets) if moe else ()
        for number, teacher in enumerate(self.teachers):
            for name in (*projected, *(("tokens",) if cka else ())):
                width = teacher.hidden_width if name == "tokens" else teacher.width
                assert width is not None
                self._add_projection(name, number, width)
        simcse = self.simcse and bool(self.weights["simcse"])
        self.in_batch = simcse or (moe and bool({"contrastive", "pairwise"} & {*self.facets}))
        states = tuple(range(-1, -self.layers - 1, -1)) if cka else ()
        self.student_outputs |= OutputSpec(
            embedding=simcse, second_view=simcse, hidden_layers=states, vector=moe and self.manual, experts=mixture
        )
        self.teacher_outputs |= OutputSpec(embedding=moe, tokens=TokenOutputSpec(hidden=states) if cka else None)

    def _check_experts(self, moe: bool) -> None:
        found, expected = self.sizes.experts, len(self.names)
        if not found:
            raise DistilvecError(
                f"[student.experts] distillmoe trains a student with experts, one for each of {', '.join(self.names)}; this one has none. "
                f"Set student.experts: {{count: {expected}}}, or method.options.manual (fixed weights and no experts), or "
                "method.weights: {moe: 0, diversity: 0} for dynamic_cka alone."
            )
        if moe and found != expected:
            raise DistilvecError(
                f"[student.experts.count] distillmoe has an expert for each of {len(self.facets)} facets of "
                f"{len(self.teachers)} teacher{'s' * (len(self.teachers) > 1)}; found {found}, expected {expected}. "
                f"Set student.experts.count: {expected}."
            )

    def _check_layers(self) -> None:
        for teacher in self.teachers:
            if teacher.hidden_width is None or teacher.layers is None:
                raise DistilvecError(
                    "[method.name] dynamic_cka reads a teacher's hidden states, and a table of vectors or an API has none. Give a local "
                    "model as teacher.model, or set method.weights.dynamic_cka=0, which runs from any cache of vectors."
                )
            most = min(self.sizes.student_layers, teacher.layers)
            if not 1 <= self.layers <= most:
                raise DistilvecError(
                    f"[method.options.layers] found {self.layers}; expected 1 to {most}: the student has {self.sizes.student_layers} "
                    f"layers, the teacher {teacher.layers}, and dynamic_cka compares the last of both."
                )

    def _add_projection(self, name: str, number: int, width: int) -> None:
        """The layer from the student's width to `width` that `name` reads, or the one that is shared."""
        key = f"{'shared' if self.share_projection else name}_{number}"
        if key not in self.projections:
            layer = nn.Linear(self.sizes.student_width, width, bias=False)
            nn.init.xavier_uniform_(layer.weight)
            self.projections[key] = layer
        elif self.projections[key].out_features != width:
            raise DistilvecError(
                f"[method.options.share_projection] one projection cannot lead both to the teacher's vectors, "
                f"{self.teachers[number].width} wide, and to its hidden states, {width} wide. Leave share_projection out."
            )

    def projection(self, name: str, number: int) -> Float[Tensor, "other width"]:
        """The weights of W1 ("pointwise"), W2 ("contrastive") or Q ("tokens") of a teacher."""
        layer = self.projections[f"{'shared' if self.share_projection else name}_{number}"]
        assert isinstance(layer, nn.Linear)
        return layer.weight

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        weights, terms = self.weights, task_terms(self.weights, batch, student)
        if weights.get("simcse"):
            assert student.embedding is not None and student.second_view is not None
            terms["simcse"] = info_nce(student.embedding, student.second_view, SIMCSE_TEMPERATURE)
        if weights["moe"]:
            gates = self.fixed if self.manual else student.gates
            assert gates is not None
            terms["moe"] = (gates * self._losses(student, teacher)).sum(1)
        if weights.get("diversity"):
            assert student.experts is not None and student.gates is not None
            terms["diversity"] = diversity(student.experts) + gate_floor(student.gates, self.floor)
        if weights.get("uniform"):
            assert student.gates is not None
            terms["uniform"] = towards_uniform(student.gates)
        if weights["dynamic_cka"]:
            terms["dynamic_cka"] = self._dynamic_cka(student, teacher)
        return terms

    def _losses(self, student: ModelOutputs, teacher: ModelOutputs) -> Float[Tensor, "batch experts"]:
        """The loss of each facet of each teacher, in the experts' order, times the teacher's share."""
        experts = () if student.experts is None else student.experts.unbind(1)
        found: list[Tensor] = []
        for number, answer in enumerate((teacher, *teacher.others)):
            assert answer.embedding is not None
            for facet in self.facets:
                vector = student.vector if self.manual else experts[len(found)]
                assert vector is not None
                found.append(self.shares[number] * self._facet(facet, vector, answer.embedding, number))
        return torch.stack(found, dim=1)

    def _facet(self, facet: str, vector: Tensor, target: Tensor, number: int) -> Float[Tensor, " batch"]:
        if facet == "pairwise":
            return pairwise_margin(vector, target, self.margin)
        projected = nn.functional.linear(vector, self.projection(facet, number))
        return (
            cosine_distance(projected, target)
            if facet == "pointwise"
            else contrastive(projected, target, self.temperature)
        )

    def _dynamic_cka(self, student: ModelOutputs, teacher: ModelOutputs) -> Float[Tensor, " batch"]:
        """Eq. 13: the mean over layers and, weighted, over teachers."""
        assert student.mask is not None
        last, found = range(-self.layers, 0), list[Tensor]()
        states, mask = torch.cat([student.hidden_layers[layer] for layer in last]), student.mask.repeat(self.layers, 1)
        for number, answer in enumerate((teacher, *teacher.others)):
            assert answer.mask is not None
            others = torch.cat([answer.hidden_layers[layer] for layer in last])
            gaps = dynamic_cka(
                states,
                others,
                self.projection("tokens", number),
                mask,
                answer.mask.repeat(self.layers, 1),
                self.rule,
                self.products,
            )
            found.append(self.shares[number] * gaps.view(self.layers, -1))
        return torch.cat(found).mean(0)

    def figures(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """The mean loss of each expert, before the gate weighs it, and how many of the first teacher's tokens stand for one of the
        student's in the last layer, on average. What the gates do is in the metrics already (train/monitors.py)."""
        found: dict[str, Tensor] = {}
        if self.weights["moe"]:
            found |= {
                f"facet_{name}": value
                for name, value in zip(self.names, self._losses(student, teacher).mean(0), strict=True)
            }
        if self.weights["dynamic_cka"]:
            assert student.mask is not None and teacher.mask is not None
            last = student.hidden_layers[-1], teacher.hidden_layers[-1]
            similarity = token_similarity(*last, self.projection("tokens", 0), self.products)
            found["kept_tokens"] = kept_tokens(
                match_weights(similarity, student.mask, teacher.mask, self.rule), student.mask
            )
        return found
