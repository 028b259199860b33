"""ULD: sorted probabilities of student and teacher, compared rank by rank; no vocabulary or alignment is needed.

Paper: Boizard, El Haddad, Hudelot, Colombo: "Towards Cross-Tokenizer Distillation: the Universal Logit Distillation Loss for
LLMs", 2024. In EMO's comparison (its section 4.2) it takes the class logits.
"""

from __future__ import annotations

from typing import Literal

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.logits import absolute_gaps, sorted_probabilities
from distilvec.methods.base.token_or_logit_kd import On, choose_form, compared, form_wants, task_terms, task_weights


class Uld(Objective):
    """uld: sum over ranks of |sorted p_s - sorted p_t|, the smaller side filled up with zeros; task: the labels.

    Options: `on` takes class logits or token states ("auto": logits where there are such). `alpha` is the weight of the task,
    1 - alpha that of uld (EMO, eq. 22). Temperatures are those of the two softmaxes. `reduction` "mean" divides by the number
    of classes, as EMO's authors do in their version for classes; the official code sums.

    Note: the official weights are 1 for the labels and 1.5 for uld; here alpha and 1 - alpha, as in the comparison of EMO.
    Note: the paper knows logits only. On token states each dimension of the last hidden state counts as a class: the sorted
    softmax of the k-th token against that of the teacher's k-th, up to the shorter length, as its sequences of logits. As there,
    the order of dimensions says nothing, so what is matched is how peaked a state is, not where it points: a weak signal.
    """

    compatible = False
    citation = """@misc{boizard2024uld,
  title = {Towards Cross-Tokenizer Distillation: the Universal Logit Distillation Loss for {LLMs}},
  author = {Boizard, Nicolas and El Haddad, Kevin and Hudelot, C{\\'e}line and Colombo, Pierre},
  year = {2024},
  eprint = {2402.12030},
  archivePrefix = {arXiv}
}"""

    def __init__(
        self,
        sizes: Sizes,
        on: On = "auto",
        alpha: float = 0.5,
        student_temperature: float = 1.0,
        teacher_temperature: float = 1.0,
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        super().__init__()
        for key, value in {
            "student_temperature": student_temperature,
            "teacher_temperature": teacher_temperature,
        }.items():
            if value <= 0:
                raise DistilvecError(f"[method.options.{key}] found {value}; expected a number above 0.")
        self.form = choose_form(on, sizes)
        self.student_temperature, self.teacher_temperature, self.reduction = (
            student_temperature,
            teacher_temperature,
            reduction,
        )
        self.student_outputs, self.teacher_outputs = form_wants(self.form)
        self.weights = task_weights(alpha, {"uld": 1.0}, sizes)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The terms that have a weight."""
        found = task_terms(self.weights, batch, student)
        if self.weights["uld"]:
            (ours, our_mask), (theirs, their_mask) = compared(self.form, student, teacher)
            ours, theirs = (
                sorted_probabilities(ours, self.student_temperature),
                sorted_probabilities(theirs, self.teacher_temperature),
            )
            gaps = absolute_gaps(ours, theirs, our_mask, their_mask)
            found["uld"] = gaps / max(ours.shape[-1], theirs.shape[-1]) if self.reduction == "mean" else gaps
        return found
