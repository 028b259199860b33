"""MinED: tokens paired by minimum edit distance; on class logits plain distillation, as in EMO (section 4.2)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Positive, Share
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import soft_binary_kl, soft_kl
from distilvec.losses.tokens import token_mean, unit_squares
from distilvec.methods.base.terms import bibtex, class_logits, paired_states, simcse_term, task_shares, task_term
from distilvec.methods.base.token_or_logit_kd import On, TokenOrLogitKD


class Mined(TokenOrLogitKD):
    """Learns the teacher's class probabilities; without classes, the states of tokens paired by edit distance.

    mined: KL of class logits, or the distance of the states of paired tokens.

    Args:
        on: class logits or token states; "auto" takes logits if there are any
        distillation_weight: of mined (EMO, eq. 22)
        temperature: of KL, which is multiplied by temperature^2 (Hinton et al. 2015); 2 in EMO's scripts
        simcse: with texts without labels, unsupervised SimCSE in the role of the task (DistillMoE, table 14)
        distance: of states: "cosine", 1 - cos, or "mse", the mean squared error

    Note: the paper has logits only. On token states the one-to-one pairs of the "mined" alignment are compared;
    positions without a pair, which get the gold token in the paper, are left out. A linear layer maps the student's
    states to the teacher's hidden size.
    """

    learns_several_classes = True
    citation = bibtex("wan2024fusellm")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        on: On = "auto",
        distillation_weight: Share | None = None,
        temperature: Positive = 2.0,
        distance: Literal["cosine", "mse"] = "cosine",
        simcse: bool = False,
    ) -> None:
        super().__init__(
            context,
            weights,
            on,
            task_shares(distillation_weight),
            {"logits": {"mined": 1.0}, "hidden": {"mined": 1.0}},
            simcse=simcse,
        )
        self.temperature = temperature
        self.distance = distance
        if self.form == "hidden":
            self.projection = nn.Linear(context.student.hidden_size, context.state_size)
        if self.has_weight("mined"):
            self.require(states=self.form == "hidden", logits=self.form == "logits", alignment="mined")
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return mined, on class logits or on states; and the task's loss or SimCSE."""
        return self.weighted_terms(
            simcse=lambda: simcse_term(student),
            task=lambda: task_term(batch, student),
            mined=lambda: self._mined(batch, student, teacher),
        )

    def _mined(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Tensor:
        if self.form == "logits":
            student_logits, teacher_logits = class_logits(student, teacher)
            if self.context.task is not None and self.context.task.kind == "multilabel":
                return soft_binary_kl(student_logits, teacher_logits, self.temperature)
            return soft_kl(student_logits, teacher_logits, self.temperature)
        h_student, h_teacher, mask = paired_states(batch, student, teacher)
        h_student = self.projection(h_student)
        if self.distance == "cosine":
            gaps = unit_squares(h_student, h_teacher) / 2  # 1 - cos
        else:
            gaps = (h_student - h_teacher).square().mean(-1)
        return token_mean(gaps, mask)
