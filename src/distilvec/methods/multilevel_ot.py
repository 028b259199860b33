"""MultiLevelOT: token by token, distribution by distribution, sequence by sequence, over columns ordered by their mass.

Paper: Cui, Zhu, Qin, Xie, Zhou, Li: "Multi-Level Optimal Transport for Universal Cross-Tokenizer Knowledge Distillation on
Language Models", AAAI 2025, as its official code computes it. In EMO's comparison it takes the class logits.
"""

from __future__ import annotations

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import (
    absolute_gaps,
    heaviest_columns,
    normalised_plan_cost,
    scaled_probabilities,
    swapped_cross_entropy,
)
from distilvec.methods.base.token_or_logit_kd import On, choose_form, compared, form_wants, task_terms, task_weights

LOSSES = {"absolute": absolute_gaps, "cross_entropy": swapped_cross_entropy, "sinkhorn": normalised_plan_cost}


class MultilevelOt(Objective):
    """absolute, cross_entropy, sinkhorn: the three levels, on probabilities whose `kept` heaviest classes are kept; task: the labels.

    Options: `on` takes class logits or token states ("auto": logits where there are such). `alpha` is the weight of the task,
    1 - alpha that of the three levels, which are weighted 1, 0.1 and 0.1 x 0.001 among themselves. `temperature` is that of the
    softmax after logits are divided by their standard deviation.

    Note: classes are ordered, and cut to the heaviest, by their mass over the whole batch, student and teacher each for itself, as
    the paper does. A text's value depends on the texts beside it.
    Note: the official code adds sinkhorn up over the batch; here it is averaged, as in EMO's version, so that the batch's size
    does not weigh it. Padding, which the official code takes along in cross_entropy and sinkhorn, is left out.
    Note: two logits divided by their deviation are always the same distance apart: on a task of two classes only their order is
    left, the loss is a step function, and its gradient is large where the logits are near each other and else nearly zero.
    Note: on class logits a sequence has one row, and the plan of sinkhorn is 1: what remains is the distance of the softened rows.
    Note: the paper knows logits only. On token states each dimension of the last hidden state counts as a class.
    """

    compatible = False
    in_batch = True
    citation = """@inproceedings{cui2025multilevelot,
  title = {Multi-Level Optimal Transport for Universal Cross-Tokenizer Knowledge Distillation on Language Models},
  author = {Cui, Xiao and Zhu, Mo and Qin, Yulei and Xie, Liang and Zhou, Wengang and Li, Houqiang},
  booktitle = {AAAI},
  year = {2025}
}"""

    def __init__(
        self, sizes: Sizes, on: On = "auto", alpha: float = 0.5, kept: int = 50, temperature: float = 1.0
    ) -> None:
        super().__init__()
        if kept < 1:
            raise DistilvecError(f"[method.options.kept] found {kept}; expected a number of classes from 1.")
        if temperature <= 0:
            raise DistilvecError(f"[method.options.temperature] found {temperature}; expected a number above 0.")
        self.form = choose_form(on, sizes)
        self.kept, self.temperature = kept, temperature
        self.student_outputs, self.teacher_outputs = form_wants(self.form)
        self.weights = task_weights(alpha, {"absolute": 1.0, "cross_entropy": 0.1, "sinkhorn": 0.1 * 0.001}, sizes)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        (ours, our_mask), (theirs, their_mask) = compared(self.form, student, teacher)
        ours = heaviest_columns(scaled_probabilities(ours, self.temperature), our_mask, self.kept)
        theirs = heaviest_columns(scaled_probabilities(theirs, self.temperature), their_mask, self.kept)
        levels = {name: loss(ours, theirs, our_mask, their_mask) for name, loss in LOSSES.items() if self.weights[name]}
        return {**task_terms(self.weights, batch, student), **levels}
