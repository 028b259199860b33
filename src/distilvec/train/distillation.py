"""Student and objective as the one module that is trained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from distilvec.core.batch import TextBatch
from distilvec.core.method_file import blamed
from distilvec.core.objective import LossTerms, Objective, check_terms
from distilvec.core.outputs import ModelOutputs
from distilvec.students.encoder import Encoder
from distilvec.train.collapse_monitor import Sight, take_sight
from distilvec.train.gate_monitor import with_gates


class Distillation(nn.Module):
    """Student and objective in one module, so optimiser, DDP and checkpoints need no special case.

    Where `watched` is set, the next micro-batch is kept in `sight`.
    """

    def __init__(self, encoder: Encoder, objective: Objective) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective
        self.snapshot_due = False
        self.sight: Sight | None = None

    def forward(self, batch: TextBatch, teacher: ModelOutputs) -> LossTerms:
        """The objective's terms; the student runs under autocast, the objective in fp32 but for products that it makes in `products`."""
        with blamed():
            return self._terms(batch, teacher)

    def _terms(self, batch: TextBatch, teacher: ModelOutputs) -> LossTerms:
        rows = None if teacher.selected is None else teacher.selected[..., 0]
        required = self.objective.student_outputs
        student = self.encoder(
            batch, with_gates(required, self.encoder.experts) if self.snapshot_due else required, rows
        )
        with torch.autocast(batch.rows.device.type, enabled=False):
            if self.objective.head is not None:
                student = replace(student, logits=self.objective.head(student.vector))
            terms: LossTerms = self.objective(batch, student, teacher)
        examples = len(batch) // batch.texts_per_example
        check_terms(self.objective, terms, {examples, len(batch)})
        terms = {
            name: values if len(values) == examples else values.view(batch.texts_per_example, -1).mean(0)
            for name, values in terms.items()
        }
        if self.snapshot_due:
            with torch.no_grad(), torch.autocast(batch.rows.device.type, enabled=False):
                figures = self.objective.metrics(batch, student, teacher)
            self.sight, self.snapshot_due = replace(take_sight(batch, student, teacher), figures=figures), False
        return terms
