"""CDM: one-to-one tokens of equal text, compared in the teacher's space; on class logits plain distillation.

For embeddings as the authors of TALAS use it in their comparison.
"""

from __future__ import annotations

from torch import Tensor, nn

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Positive, Share
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import soft_kl
from distilvec.losses.tokens import token_mean, unit_squares
from distilvec.methods.base.terms import (
    bibtex,
    class_logits,
    embeddings,
    paired_states,
    simcse_term,
    task_shares,
    task_term,
)
from distilvec.methods.base.token_or_logit_kd import Form, On, TokenOrLogitKD


class Cdm(TokenOrLogitKD):
    """Trains the student on tokens that both tokenizers spell alike, or on the teacher's class logits.

    tokens: squared error of the unit states of paired tokens; sentence: of sentence vectors; kl: of class logits.

    Squared errors are means over the teacher's dimensions, after a linear layer from the student's.

    Args:
        on: class logits or token states; "auto" takes logits if there are any, else states, also for STS
        distillation_weight: of kl, or of 100 tokens + sentence
        temperature: of kl, which is multiplied by temperature^2
        simcse: with texts without labels, unsupervised SimCSE in the role of the task (DistillMoE, table 14)

    Note: pairs are the "strict" ones of the alignment. The paper's time warping and its map between vocabularies need a
    distribution over tokens, which embedding models lack.
    Note: both models have the same classes, so that on class logits only kl is left of the method.
    Note: the official code multiplies the teacher's log-probabilities by temperature^2, an error.
    Note: values are averaged text by text, not over all pairs of the batch.
    """

    citation = bibtex("chen2025cdm")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        on: On = "auto",
        distillation_weight: Share | None = None,
        temperature: Positive = 2.0,
        simcse: bool = False,
    ) -> None:
        terms: dict[Form, Weights] = {"hidden": {"tokens": 100.0, "sentence": 1.0}, "logits": {"kl": 1.0}}
        super().__init__(context, weights, on, task_shares(distillation_weight), terms, scores="hidden", simcse=simcse)
        self.temperature = temperature
        if self.form == "hidden":
            self.token_projection = nn.Linear(context.student.hidden_size, context.state_size)
            self.sentence_projection = nn.Linear(context.student_dim, context.teacher.dim)
        self.require(
            states=self.has_weight("tokens"),
            logits=self.has_weight("kl"),
            embedding=self.has_weight("sentence"),
            alignment="strict",
        )
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return kl on class logits, else tokens and sentence; and the task's loss."""
        return self.weighted_terms(
            simcse=lambda: simcse_term(student),
            task=lambda: task_term(batch, student),
            kl=lambda: soft_kl(*class_logits(student, teacher), self.temperature),
            tokens=lambda: self._tokens(batch, student, teacher),
            sentence=lambda: self._sentence(*embeddings(student, teacher)),
        )

    def _tokens(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        h_student, h_teacher, mask = paired_states(batch, student, teacher)
        squared_errors = unit_squares(self.token_projection(h_student), h_teacher)
        return token_mean(squared_errors, mask) / h_teacher.shape[-1]

    def _sentence(self, student: Tensor, teacher: Tensor) -> Tensor:
        return unit_squares(self.sentence_projection(student), teacher) / teacher.shape[-1]
