"""MultiLevelOT: transport between tokens, distributions and sequences, over classes ordered by their probability."""

from __future__ import annotations

from torch import Tensor

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Count, Positive, Share
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import (
    absolute_gaps,
    heaviest_columns,
    normalised_plan_cost,
    scaled_probabilities,
    swapped_cross_entropy,
)
from distilvec.methods.base.terms import Tokens, bibtex, task_shares, task_term
from distilvec.methods.base.token_or_logit_kd import On, TokenOrLogitKD

LOSSES = {"absolute": absolute_gaps, "cross_entropy": swapped_cross_entropy, "sinkhorn": normalised_plan_cost}
LEVELS = {"absolute": 1.0, "cross_entropy": 0.1, "sinkhorn": 0.1 * 0.001}


class MultilevelOt(TokenOrLogitKD):
    """Learns the teacher's class logits in order of size, by optimal transport.

    absolute, cross_entropy, sinkhorn: the three levels, on the most probable classes, as in the official code.

    Args:
        on: class logits or token states; "auto" takes logits if there are any
        distillation_weight: of the levels, 1 : 0.1 : 0.0001 among themselves
        kept: number of classes, the most probable ones of the whole batch, for student and teacher separately
        temperature: of the softmax, after logits are divided by their standard deviation

    Note: a text's value depends on the other texts of the batch, as in the paper.
    Note: sinkhorn is averaged over the batch, as in EMO's version; the official code sums. Padding, which the official
    code takes along in cross_entropy and sinkhorn, is left out.
    Note: two logits divided by their deviation always have the same distance. On two classes the loss is a step
    function.
    Note: on class logits a sequence has one row and sinkhorn's plan is 1. The paper has logits only; on token states
    each dimension of the last hidden state is a class.
    """

    needs_fixed_batch = True
    citation = bibtex("cui2025multilevelot")

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        on: On = "auto",
        distillation_weight: Share | None = None,
        kept: Count = 50,
        temperature: Positive = 1.0,
    ) -> None:
        super().__init__(
            context, weights, on, task_shares(distillation_weight), dict.fromkeys(("logits", "hidden"), LEVELS)
        )
        self.kept = kept
        self.temperature = temperature
        if any(self.has_weight(name) for name in LEVELS):
            self.require(states=self.form == "hidden", logits=self.form == "logits")
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the three levels, and the task's loss."""
        terms = self.weighted_terms(task=lambda: task_term(batch, student))
        levels = [name for name in LEVELS if self.has_weight(name)]
        if levels:
            student_tokens, teacher_tokens = self.compared(student, teacher)
            p_student = self._top_classes(student_tokens)
            p_teacher = self._top_classes(teacher_tokens)
            for name in levels:
                terms[name] = LOSSES[name](p_student, p_teacher, student_tokens.mask, teacher_tokens.mask)
        return terms

    def _top_classes(self, tokens: Tokens) -> Tensor:
        """Return the probabilities of the `kept` most probable classes of the batch, in descending order."""
        return heaviest_columns(scaled_probabilities(tokens.states, self.temperature), tokens.mask, self.kept)
