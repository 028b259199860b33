"""Terms, outputs and citations that many methods share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.device import full_precision
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import ObjectiveContext, TextBatch, Weights
from distilvec.core.options import option_error
from distilvec.core.outputs import ModelOutputs
from distilvec.losses.contrastive import info_nce
from distilvec.losses.distance import PerRow, Rows
from distilvec.losses.supervised import task_loss
from distilvec.losses.tokens import pair_states

SIMCSE_TEMPERATURE = 0.05  # of the SimCSE paper
_REFERENCES = Path(__file__).parents[1] / "references.bib"


class Tokens(NamedTuple):
    """One model's tokens: a row per token, False in the mask at padding."""

    states: Float[Tensor, "batch tokens hidden"]
    mask: Bool[Tensor, "batch tokens"]


def bibtex(*keys: str) -> str:
    """Return entries of methods/references.bib."""
    entries = {}
    for entry in re.split(r"\n\n(?=@)", _REFERENCES.read_text(encoding="utf-8").strip()):
        key = entry.split("{", 1)[1].split(",", 1)[0]
        entries[key] = entry
    return "\n\n".join(entries[key] for key in keys)


def embeddings(student: ModelOutputs, teacher: ModelOutputs) -> tuple[Rows, Float[Tensor, "batch other_dim"]]:
    """Return y and y_hat, the student's and the teacher's vectors of the texts."""
    assert student.embedding is not None and teacher.embedding is not None
    return student.embedding, teacher.embedding


def token_states(student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tokens, Tokens]:
    """Return the last hidden states of both models' tokens, in fp32 at least."""
    assert student.mask is not None and teacher.mask is not None
    return (
        Tokens(full_precision(student.hidden_layers[-1]), student.mask),
        Tokens(full_precision(teacher.hidden_layers[-1]), teacher.mask),
    )


def paired_states(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return the last hidden states of aligned tokens, and a mask of the pairs."""
    assert batch.alignment is not None
    student_tokens, teacher_tokens = token_states(student, teacher)
    return pair_states(student_tokens.states, teacher_tokens.states, batch.alignment.pairs)


def class_logits(student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tensor, Tensor]:
    """Return the student's and the teacher's class logits [examples, classes]."""
    assert student.logits is not None and teacher.logits is not None
    return student.logits, teacher.logits


def task_shares(distillation_weight: float | None) -> tuple[float, float]:
    """Return the weights of the task and of all distillation terms together (EMO, eq. 22; DistillMoE, eq. 14).

    The equations print alpha as the task's weight. The authors' code has (1 - kd_rate) task + kd_rate distillation,
    where kd_rate has the values that the papers' tables print as alpha. `distillation_weight` is kd_rate.
    """
    weight = 0.5 if distillation_weight is None else distillation_weight
    return 1 - weight, weight


def weights_with_task(
    shares: tuple[float, float], terms: Weights, context: ObjectiveContext, simcse: bool = False
) -> Weights:
    """Return the weights of the task and of `terms`, each times its part of `shares`; without a task the terms.

    `simcse` adds SimCSE in the role of the task.
    """
    if context.task is not None and simcse:
        raise option_error("simcse", True, "false for a recipe with labels")
    if context.task is None and not simcse:
        return terms
    task_share, distillation_share = shares
    first_term = "simcse" if simcse else "task"
    return {first_term: task_share} | {name: distillation_share * weight for name, weight in terms.items()}


def task_term(batch: TextBatch, student: ModelOutputs) -> PerRow:
    """Return the loss of the head's logits on the labels."""
    if batch.labels is None:
        raise DistilvecError(
            "the method has the term 'task', which learns labels, and the recipe has no task.",
            "Give the recipe a task, or the term no weight (method.weights.task=0).",
            key="method.name",
        )
    assert student.logits is not None
    return task_loss(student.logits, batch.labels, batch.score_range)


def simcse_term(student: ModelOutputs, temperature: float = SIMCSE_TEMPERATURE) -> PerRow:
    """Return InfoNCE between the student's two dropout views (SimCSE, eq. 4)."""
    assert student.embedding is not None and student.second_view is not None
    return info_nce(student.embedding, student.second_view, temperature)
