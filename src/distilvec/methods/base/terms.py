"""Terms, outputs and citations that many methods share."""

from __future__ import annotations

import re
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from distilvec.core.objective import ObjectiveContext, TextBatch, Weights
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import PerRow, Rows
from distilvec.losses.supervised import task_loss

_REFERENCES = Path(__file__).parents[1] / "references.bib"


def bibtex(*keys: str) -> str:
    """Return entries of methods/references.bib."""
    entries = re.split(r"\n\n(?=@)", _REFERENCES.read_text(encoding="utf-8").strip())
    return "\n\n".join(entry for key in keys for entry in entries if entry.split("{", 1)[1].startswith(f"{key},"))


def embeddings(student: ModelOutputs, teacher: ModelOutputs) -> tuple[Rows, Float[Tensor, "batch other_dim"]]:
    """Return both models' embeddings."""
    assert student.embedding is not None and teacher.embedding is not None
    return student.embedding, teacher.embedding


def task_weights(alpha: float, terms: Weights, context: ObjectiveContext) -> Weights:
    """Return `alpha` for the task and 1 - alpha times the weights of `terms`; without a task the terms alone."""
    if context.task is None:
        return terms
    return {"task": alpha, **{name: (1 - alpha) * weight for name, weight in terms.items()}}


def task_term(batch: TextBatch, student: ModelOutputs) -> PerRow:
    """Return the loss of the head's logits on the labels."""
    assert student.logits is not None and batch.labels is not None
    return task_loss(student.logits, batch.labels)


def simcse_term(student: ModelOutputs, temperature: float) -> PerRow:
    """Return InfoNCE between the student's two dropout views (SimCSE, eq. 4)."""
    assert student.embedding is not None and student.second_view is not None
    return info_nce(student.embedding, student.second_view, temperature)
