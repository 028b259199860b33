"""The objective of a causal run: next-token cross-entropy as the task, and the same DistillMoE terms beside it (eq. 14)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.info import ObjectiveContext
from distilvec.core.objective import LossTerms, Objective, Weights
from distilvec.core.options import option_error
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.registry import build_objective
from distilvec.experimental.causal.model import CausalEncoded


class CausalObjective(Objective):
    """alpha task + (1 - alpha) times what the method weighs (eq. 14); without a method the task alone.

    task: the mean cross-entropy of a response's tokens. The method sees the responses as its texts: the mean of their last hidden
    states as vectors, their tokens' states as hidden states. `weights` replaces these weights, term by term.

    Note: the paper says that the pipeline is "identical" and gives no more; which tokens are pooled and compared is ours.
    """

    in_teacher_space = False

    def __init__(
        self, context: ObjectiveContext, method: Objective | None, alpha: float = 0.5, weights: Weights | None = None
    ) -> None:
        if not 0 <= alpha <= 1:
            raise option_error("alpha", alpha, "a number from 0 (teacher alone) to 1 (task alone)")
        shares = {} if method is None else {name: (1 - alpha) * weight for name, weight in method.weights.items()}
        super().__init__(context, weights or {}, {"task": 1.0 if method is None else alpha, **shares})
        self.method = method
        self.student_outputs, self.teacher_outputs = OutputSpec(logits=True), OutputSpec()
        if method is not None:
            self.needs_fixed_batch = method.needs_fixed_batch
            self.student_outputs |= method.student_outputs
            self.teacher_outputs = method.teacher_outputs

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """The task's term and the method's."""
        assert isinstance(student, CausalEncoded) and student.losses is not None
        return {"task": student.losses, **(self.method(batch, student, teacher) if self.method is not None else {})}

    def metrics(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> dict[str, Float[Tensor, ""]]:
        """The method's own."""
        return self.method.metrics(batch, student, teacher) if self.method is not None else {}


def build_causal_objective(
    name: str, options: dict[str, Any], weights: dict[str, float], context: ObjectiveContext
) -> CausalObjective:
    """The method `name` beside the task; its option alpha and a weight of "task" are those of the whole. Errors as `build_objective`."""
    own = {term: weight for term, weight in weights.items() if term != "task"}
    method = build_objective(name, {key: value for key, value in options.items() if key != "alpha"}, own, context)
    return CausalObjective(context, method, options.get("alpha", 0.5), weights)
