"""Baselines on next-token predictions (paper 001, table 16): ULD, MinED, MultiLevelOT, DSKD.

Row k of both models' predictions is that of the k-th response token. Every term is a mean over a text's tokens.
ULD and MultiLevelOT are the package's methods; MinED and DSKD have a form of their own here, since a prediction has
targets, and both models have output layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.info import ObjectiveContext
from distilvec.core.objective import LossTerms, Objective, Weights
from distilvec.core.options import Positive
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.logits import soft_kl
from distilvec.losses.tokens import cross_attention, token_mean
from distilvec.methods.base.terms import bibtex
from experiments.causal.outputs import CausalOutputs, NextTokens


@dataclass(frozen=True)
class CausalContext(ObjectiveContext):
    """Two language models; `common` holds the ids of the tokens that both vocabularies have, the student's first."""

    common: tuple[Sequence[int], Sequence[int]] = ((), ())


class NextTokenKD(Objective, ABC):
    """Terms from both models' predictions of the response; `aligned` if the batch needs pairs of positions."""

    in_teacher_space = False
    student_outputs = teacher_outputs = OutputSpec(logits=True)
    aligned: ClassVar[bool] = False

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms that have a weight."""
        assert isinstance(student, CausalOutputs) and isinstance(teacher, CausalOutputs)
        assert student.next_tokens is not None and teacher.next_tokens is not None
        with torch.autocast(student.next_tokens.mask.device.type, enabled=False):
            terms = self.terms(batch, student.next_tokens, teacher.next_tokens)
        return {name: values for name, values in terms.items() if self.weights[name]}

    @abstractmethod
    def terms(self, batch: TextBatch, student: NextTokens, teacher: NextTokens) -> LossTerms:
        """Return all terms, also those without a weight."""


class OnPredictions(Objective):
    """A method on token states (`uld`, `multilevel_ot`) that compares the logits of the response's tokens instead.

    Every dimension of a state is a class to these methods. Of logits it is one: that is the papers' own form.
    """

    in_teacher_space = False
    student_outputs = teacher_outputs = OutputSpec(logits=True)

    def __init__(self, method: Objective) -> None:
        super().__init__(method.context, {}, method.weights)
        self.method, self.needs_fixed_batch, self.citation = method, method.needs_fixed_batch, method.citation

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the method's terms."""
        ours, theirs = _logits_as_states(student), _logits_as_states(teacher)
        with torch.autocast(batch.rows.device.type, enabled=False):
            terms: LossTerms = self.method(batch, ours, theirs)
        return terms


def _logits_as_states(model: ModelOutputs) -> ModelOutputs:
    assert isinstance(model, CausalOutputs) and model.next_tokens is not None
    return ModelOutputs(hidden_layers={-1: model.next_tokens.logits}, mask=model.next_tokens.mask)


class Mined(NextTokenKD):
    """mined: KL from the teacher's distribution, mapped to the student's tokens, or from the response's token.

    - Positions whose last token read is paired one to one, and the same, get the teacher's distribution over the tokens
      that both vocabularies have; all other positions get the response's own token, as in FuseLLM.

    Args:
        temperature: of KL, which is multiplied by temperature^2 (Hinton et al. 2015)

    Note: tokens are mapped by equal text and the end of the text by its role; FuseLLM maps others to the token of least
    edit distance.
    """

    default_weights: ClassVar[Weights] = {"mined": 1.0}
    citation = bibtex("wan2024fusellm")
    aligned = True

    ours: Tensor
    theirs: Tensor

    def __init__(self, context: ObjectiveContext, weights: Weights, temperature: Positive = 1.0) -> None:
        super().__init__(context, weights)
        self.temperature = temperature
        assert isinstance(context, CausalContext)
        if not context.common[0]:
            raise DistilvecError(
                "mined needs tokens that both vocabularies have; found none.", "Take uld or dskd.", key="method.name"
            )
        for name, ids in zip(("ours", "theirs"), context.common, strict=True):
            self.register_buffer(name, torch.tensor(ids), persistent=False)

    def terms(self, batch: TextBatch, student: NextTokens, teacher: NextTokens) -> LossTerms:
        """Return the one term."""
        assert batch.alignment is not None
        found = (student.logits / self.temperature).log_softmax(-1)
        gaps = -found.gather(-1, student.targets[..., None])[..., 0]
        text, pair = (batch.alignment.pairs[..., 0] >= 0).nonzero(as_tuple=True)
        own, other = batch.alignment.pairs[text, pair].unbind(-1)
        theirs = (teacher.logits[text, other][:, self.theirs] / self.temperature).log_softmax(-1)
        mapped = (theirs.exp() * (theirs - found[text, own][:, self.ours])).sum(-1)
        return {"mined": token_mean(gaps.index_put((text, own), mapped), student.mask) * self.temperature**2}


class Dskd(NextTokenKD):
    """projected, student_space, teacher_space: distillation in both models' spaces by cross-model attention.

    - Queries are the student's embeddings of the token before and of the target, projected; keys are the teacher's.
    - projected: the teacher's states, projected to the student's space, through the student's frozen output layer, on
      the response's tokens. Where the likeliest token is right, the student follows these logits (student_space).
    - teacher_space: the student's states, projected, through the teacher's output layer, follow the teacher.

    Args:
        temperature: of KL, which is multiplied by temperature^2 (Hinton et al. 2015)

    Note: the teacher's embeddings and states are divided by their standard deviation over the response tokens of the
    batch, as in the official code, which takes padding along. That code does not multiply by temperature^2.
    """

    default_weights: ClassVar[Weights] = {"projected": 1.0, "student_space": 1.0, "teacher_space": 1.0}
    citation = bibtex("zhang2024dskd")

    def __init__(self, context: ObjectiveContext, weights: Weights, temperature: Positive = 2.0) -> None:
        super().__init__(context, weights)
        self.temperature = temperature
        student, teacher = context.student.hidden_size, context.state_size
        self.query = nn.Linear(2 * student, 2 * teacher)
        self.t2s, self.s2t = nn.Linear(teacher, student), nn.Linear(student, teacher)

    def terms(self, batch: TextBatch, student: NextTokens, teacher: NextTokens) -> LossTerms:
        """Return all terms."""
        queries = self.query(torch.cat(student.embeddings, -1))
        keys = _scaled(torch.cat(teacher.embeddings, -1), teacher.mask)
        values = _scaled(teacher.states, teacher.mask) + _scaled(teacher.embeddings[1], teacher.mask)
        lent = student.frozen_head(cross_attention(queries, keys, self.t2s(values), teacher.mask))
        taken = teacher.frozen_head(cross_attention(keys, queries, self.s2t(student.states), student.mask))
        right = student.mask & (lent.argmax(-1) == student.targets)
        count = student.mask.sum(1).clamp_min(1)
        wrong = nn.functional.cross_entropy(lent.mT, student.targets, reduction="none")
        return {
            "projected": token_mean(wrong, student.mask),
            "student_space": (self._kl(student.logits, lent.detach()) * right).sum(1) / count,
            "teacher_space": token_mean(self._kl(taken, teacher.logits), teacher.mask),
        }

    def _kl(self, student: Tensor, teacher: Tensor) -> Float[Tensor, "batch responses"]:
        return soft_kl(student.flatten(0, 1), teacher.flatten(0, 1), self.temperature).view(student.shape[:2])


def _scaled(values: Float[Tensor, "batch responses dim"], mask: Bool[Tensor, "batch responses"]) -> Tensor:
    """Return the values over their standard deviation at real tokens."""
    return values / values[mask].std()


ON_PREDICTIONS = ("uld", "multilevel_ot")
METHODS: dict[str, type[NextTokenKD]] = {"mined": Mined, "dskd": Dskd}
