"""The student alone: trained on a task's labels, without a teacher. What every distillation on the task is compared with."""

from __future__ import annotations

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.supervised import task_loss


class Task(Objective):
    """Cross-entropy on a task's classes, squared error on its scores; nothing of a teacher (the plain fine-tuning of EMO's tables)."""

    compatible = False
    citation = """@inproceedings{devlin2019bert,
  title = {{BERT}: Pre-training of Deep Bidirectional Transformers for Language Understanding},
  author = {Devlin, Jacob and Chang, Ming-Wei and Lee, Kenton and Toutanova, Kristina},
  booktitle = {NAACL-HLT},
  year = {2019},
}"""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        if sizes.task is None:
            raise DistilvecError(
                "[method.name] the method 'task' trains on labels alone. Give the recipe a [task] in place of a corpus."
            )
        self.student_outputs, self.teacher_outputs = OutputSpec(), OutputSpec()
        self.weights = {"task": 1.0}

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """The task's loss of each example."""
        assert student.logits is not None and batch.labels is not None
        return {"task": task_loss(student.logits, batch.labels)}
