"""What a cross-tokenizer method compares: class logits where the task has them, else token states. Shared by several methods."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Sizes, Terms
from distilvec.core.outputs import AlignmentKind, ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.supervised import task_loss

On = Literal["auto", "logits", "hidden"]
Form = Literal["logits", "hidden"]


class Tokens(NamedTuple):
    """One model's side of what is compared: a row a token, False in the mask at padding."""

    states: Float[Tensor, "batch tokens width"]
    mask: Bool[Tensor, "batch tokens"]


def choose_form(on: On, sizes: Sizes, scores: Form | None = None) -> Form:
    """The form that `on` asks for; "auto" is logits where student and teacher both have a class head.

    `scores` is what "auto" takes on a task with one score an example (STS), None where the paper has no form for it.
    Errors: DistilvecError for logits where there are none.
    """
    task = sizes.task
    classes = task is not None and task.kind != "sts" and sizes.teacher_logits
    if on == "auto" and task is not None and task.kind == "sts":
        if scores is None:
            raise DistilvecError(
                "[method.options.on] found a task with one score an example (sts), which has no class logits to compare. "
                "Set on: hidden to compare token states, or take dskd."
            )
        return scores
    if on == "logits" and not classes:
        found = (
            "texts without a task"
            if task is None
            else "sts, one score"
            if task.kind == "sts"
            else "a teacher without a class head"
        )
        raise DistilvecError(
            "[method.options.on] class logits need a classification or pair task and a teacher fine-tuned for it (distilvec finetune); "
            f"found {found}. Set on: hidden, or leave it out."
        )
    return "logits" if on == "logits" or (on == "auto" and classes) else "hidden"


def form_wants(form: Form, alignment: AlignmentKind | None = None) -> tuple[OutputSpec, OutputSpec]:
    """What the form needs of the student (its class logits come from the head in any case) and of the teacher."""
    if form == "logits":
        return OutputSpec(), OutputSpec(logits=True)
    return OutputSpec(hidden_layers=(-1,)), OutputSpec(tokens=TokenOutputSpec(alignment=alignment, hidden=(-1,)))


def compared(form: Form, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tokens, Tokens]:
    """Both models' sides in fp32 at least: token states, or class logits as sequences of one row."""
    if form == "logits":
        assert student.logits is not None and teacher.logits is not None
        return _one_row(student.logits), _one_row(teacher.logits)
    assert student.mask is not None and teacher.mask is not None
    ours, theirs = (_precise(model.hidden_layers[-1]) for model in (student, teacher))
    return Tokens(ours, student.mask), Tokens(theirs, teacher.mask)


def task_weights(alpha: float, terms: dict[str, float], sizes: Sizes) -> dict[str, float]:
    """`alpha` for the task and 1 - alpha times each term on a labelled task (EMO, eq. 22), else the terms as they are."""
    if not 0 <= alpha <= 1:
        raise DistilvecError(
            f"[method.options.alpha] found {alpha}; expected a share from 0 (the teacher alone) to 1 (the labels alone)."
        )
    if sizes.task is None:
        return dict(terms)
    return {"task": alpha, **{name: (1 - alpha) * weight for name, weight in terms.items()}}


def task_terms(weights: dict[str, float], batch: TextBatch, student: ModelOutputs) -> Terms:
    """The term "task" where it has a weight."""
    if not weights.get("task"):
        return {}
    assert student.logits is not None and batch.labels is not None
    return {"task": task_loss(student.logits, batch.labels)}


def _one_row(logits: Float[Tensor, "examples classes"]) -> Tokens:
    return Tokens(_precise(logits)[:, None], torch.ones(len(logits), 1, dtype=torch.bool, device=logits.device))


def _precise(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
