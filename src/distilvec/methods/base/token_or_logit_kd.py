"""Cross-tokenizer methods that compare class logits if the task has them, else the states of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from distilvec.core.device import full_precision
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, ObjectiveContext, Weights
from distilvec.core.outputs import AlignmentKind, ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.methods.base.terms import Tokens, class_logits, token_states, weights_with_task

On = Literal["auto", "logits", "hidden"]
Form = Literal["logits", "hidden"]


class TokenOrLogitKD(Objective):
    """The terms of a `form`, logits or hidden, and the task, weighed by `task_shares` (EMO, eq. 22).

    `on` chooses the form; "auto" is logits if student and teacher have a class head, else hidden. `scores` is the form
    of "auto" on a task with scores (STS); None if the paper has none. `simcse`: on texts without labels SimCSE has the
    role of the task (DistillMoE, table 14).
    """

    in_teacher_space = False
    learns_labels = True
    learns_several_classes = False  # whether its terms fit logits of which each has a sigmoid of its own

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        on: On,
        shares: tuple[float, float],
        terms: Mapping[Form, Weights],
        scores: Form | None = None,
        simcse: bool = False,
    ) -> None:
        form = _choose_form(on, context, scores)
        super().__init__(context, weights, weights_with_task(shares, terms[form], context, simcse))
        self.form: Form = form
        several = context.task is not None and context.task.kind == "multilabel"
        if form == "logits" and several and not self.learns_several_classes:
            raise DistilvecError(
                "the method compares distributions over classes; found 'multilabel'.", "Take mined.", key="task.type"
            )
        uses_simcse = self.has_weight("simcse")
        self.needs_fixed_batch = self.needs_fixed_batch or uses_simcse
        self.student_outputs = OutputSpec(embedding=uses_simcse, second_view=uses_simcse)
        self.teacher_outputs = OutputSpec()

    def has_weight(self, term: str) -> bool:
        """Return whether the term is one of this form, and has a weight."""
        return bool(self.weights.get(term))

    def require(
        self,
        states: bool = False,
        logits: bool = False,
        embedding: bool = False,
        alignment: AlignmentKind | None = None,
    ) -> None:
        """Require last hidden states of both models' tokens, the teacher's logits, or both embeddings."""
        layers = (-1,) if states else ()
        tokens = TokenOutputSpec(alignment=alignment, hidden=layers) if states else None
        self.student_outputs |= OutputSpec(embedding=embedding, hidden_layers=layers)
        self.teacher_outputs |= OutputSpec(embedding=embedding, logits=logits, tokens=tokens)

    def compared(self, student: ModelOutputs, teacher: ModelOutputs) -> tuple[Tokens, Tokens]:
        """Return both models' tokens in fp32 at least; class logits are texts of one token."""
        if self.form == "hidden":
            return token_states(student, teacher)
        student_logits, teacher_logits = class_logits(student, teacher)
        mask = torch.ones(len(student_logits), 1, dtype=torch.bool, device=student_logits.device)
        return (
            Tokens(full_precision(student_logits)[:, None], mask),
            Tokens(full_precision(teacher_logits)[:, None], mask),
        )


def _choose_form(on: On, context: ObjectiveContext, scores: Form | None) -> Form:
    """Return the form that `on` means for this task and this teacher; see `TokenOrLogitKD`."""
    task = context.task
    is_sts = task is not None and task.kind == "sts"
    has_class_logits = task is not None and not is_sts and context.teacher.logits
    if (on == "logits" and not has_class_logits) or (on == "auto" and is_sts and scores is None):
        raise DistilvecError(
            "class logits need a task with classes, and a teacher fine-tuned on that task; found "
            f"{'no task' if task is None else task.kind}.",
            "Set on: hidden, or take dskd.",
            key="method.options.on",
        )
    if on == "auto" and is_sts:
        return scores or "hidden"
    return "logits" if on != "hidden" and has_class_logits else "hidden"
