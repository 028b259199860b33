"""ULD: sorted probabilities, compared rank by rank; needs no common vocabulary and no alignment."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Positive, Share
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import absolute_gaps, sorted_probabilities
from distilvec.methods.base.terms import bibtex, task_shares, task_term
from distilvec.methods.base.token_or_logit_kd import On, TokenOrLogitKD


class Uld(TokenOrLogitKD):
    """Learns the teacher's class probabilities, sorted by size.

    uld: sum over ranks of |sorted p_s - sorted p_t|, with zeros for missing classes.

    Args:
        on: class logits or token states; "auto" takes logits if there are any
        distillation_weight: of uld (EMO, eq. 22). The official weights are 1 and 1.5.
        student_temperature, teacher_temperature: of the two softmaxes
        reduction: "mean" divides by the number of classes, as EMO's authors do; the official code sums

    Note: the paper has logits only. On token states each dimension of the last hidden state is a class: the sorted
    softmax of the k-th token against that of the teacher's k-th, up to the shorter length. That compares how peaked
    states are, not their directions.
    """

    citation = bibtex("boizard2024uld")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        on: On = "auto",
        distillation_weight: Share | None = None,
        student_temperature: Positive = 1.0,
        teacher_temperature: Positive = 1.0,
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        super().__init__(
            context,
            weights,
            on,
            task_shares(distillation_weight),
            {"logits": {"uld": 1.0}, "hidden": {"uld": 1.0}},
        )
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature
        self.reduction = reduction
        if self.has_weight("uld"):
            self.require(states=self.form == "hidden", logits=self.form == "logits")
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the gaps of sorted probabilities, and the task's loss."""
        return self.weighted_terms(task=lambda: task_term(batch, student), uld=lambda: self._uld(student, teacher))

    def _uld(self, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        student_tokens, teacher_tokens = self.compared(student, teacher)
        p_student = sorted_probabilities(student_tokens.states, self.student_temperature)
        p_teacher = sorted_probabilities(teacher_tokens.states, self.teacher_temperature)
        gaps = absolute_gaps(p_student, p_teacher, student_tokens.mask, teacher_tokens.mask)
        if self.reduction == "mean":
            return gaps / max(p_student.shape[-1], p_teacher.shape[-1])
        return gaps
