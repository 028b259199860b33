"""A plain student step with a task loss, the cheapest there is: which source does a text come from? For benchmarks only."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.objective import Objective, Sizes, Terms


class TaskLoss(Objective):
    """Cross-entropy of a linear layer on the student's embedding; the label is the number of the text's source."""

    compatible = False

    def __init__(self, sizes: Sizes, labels: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(sizes.embedding_width or sizes.teacher_width, labels)
        self.student_wants, self.teacher_wants = Wants(embedding=True), Wants()
        self.weights = {"task": 1.0}

    def forward(self, batch: TextBatch, student: Encoded, teacher: Encoded) -> Terms:
        """One term."""
        return {"task": F.cross_entropy(self.linear(student.embedding), batch.sources, reduction="none")}
