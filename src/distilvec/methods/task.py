"""The student alone, trained on a task's labels: the baseline of distillation (fine-tuning in EMO's tables)."""

from __future__ import annotations

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import LossTerms, Objective, ObjectiveContext, TextBatch, Weights
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.methods.base.terms import bibtex, task_term


class Task(Objective):
    """Learns the labels of a task, without a teacher.

    task: cross-entropy of a task's classes, squared error of its scores. Reads nothing of a teacher.
    """

    in_teacher_space = False
    default_weights = {"task": 1.0}
    student_outputs = teacher_outputs = OutputSpec()
    citation = bibtex("devlin2019bert")

    def __init__(self, context: ObjectiveContext, weights: Weights) -> None:
        super().__init__(context, weights)
        if context.task is None:
            raise DistilvecError(
                "the method 'task' trains only on labels.",
                "Give the recipe a [task] instead of a corpus.",
                key="method.name",
            )
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the loss on the labels."""
        return {"task": task_term(batch, student)}
