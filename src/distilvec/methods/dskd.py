"""DSKD: each model's states mapped into the other's space, its tokens attending to those of the other model.

With cross-model attention; for embeddings as the authors of TALAS use it in their comparison.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from distilvec.core.objective import LossTerms, ObjectiveContext, TextBatch, Weights
from distilvec.core.options import Positive, Share
from distilvec.core.outputs import ModelOutputs
from distilvec.core.task_head import TaskHead
from distilvec.losses.logits import soft_kl
from distilvec.losses.supervised import task_loss
from distilvec.losses.tokens import cross_attention, mean_state, token_mean, unit_squares
from distilvec.methods.base.terms import (
    Tokens,
    bibtex,
    class_logits,
    embeddings,
    simcse_term,
    task_shares,
    task_term,
    token_states,
)
from distilvec.methods.base.token_or_logit_kd import Form, On, TokenOrLogitKD

TERMS: dict[Form, tuple[str, ...]] = {
    "logits": ("projected", "student_space", "teacher_space", "probe"),
    "hidden": ("sentence", "token"),
}


class Dskd(TokenOrLogitKD):
    """Learns the teacher's class logits or states in the student's space and in the teacher's, through projections.

    On class logits: projected, student_space, teacher_space, probe; on states: sentence and token, both ways.

    - Class logits: the student's tokens attend to the teacher's and take their projected states. The mean goes through
      the student's frozen head: `projected` is its loss on the labels, and where it is right the student's logits
      follow it (`student_space`). The teacher's tokens attend to the student's; the mean goes through the frozen
      `probe` to the teacher's logits (`teacher_space`).
    - States: squared distances of unit vectors; of sentence vectors after a linear layer either way, and of token
      states and what they take from the other model by attention.

    Args:
        on: class logits or token states; "auto" takes logits if there are any, else states, also for STS
        distillation_weight: of each other term (EMO, eq. 22)
        temperature: of KL, which is multiplied by temperature^2 (Hinton et al. 2015)
        simcse: with texts without labels, unsupervised SimCSE in the role of the task (DistillMoE, table 14)

    Note: attention runs over the tokens of one text. EMO's authors attend across the texts of the batch, from first
    positions.
    Note: keys and queries are last hidden states, the teacher's divided by their root mean square. The paper's are
    embeddings of input and target tokens, divided by a deviation over the batch.
    Note: the teacher's head is not available in training: `probe` learns it from the teacher's mean states and logits,
    with the weight of the other terms, and gives gradient to nothing else.
    Note: TALAS' authors take the mean over dimensions of the squared error, which is small next to a task. Special
    tokens take part here. The layer from teacher to student is a constant (Xavier), as their layer, which is detached,
    never learns.
    """

    citation = bibtex("zhang2024dskd")

    to_student: Tensor

    def __init__(
        self,
        context: ObjectiveContext,
        weights: Weights,
        on: On = "auto",
        distillation_weight: Share | None = None,
        temperature: Positive = 2.0,
        simcse: bool = False,
    ) -> None:
        terms: dict[Form, Weights] = {form: dict.fromkeys(names, 1.0) for form, names in TERMS.items()}
        super().__init__(context, weights, on, task_shares(distillation_weight), terms, scores="hidden", simcse=simcse)
        self.temperature = temperature
        student = context.student.hidden_size
        teacher = context.state_size
        if self.form == "logits":
            assert context.task is not None
            # The order of these lines is the order in which the weights are drawn
            self.query = _linear(student, teacher)
            self.t2s = _linear(teacher, student)
            self.s2t = _linear(student, teacher)
            self.probe = TaskHead(teacher, context.task)
        else:
            student_dim = context.student_dim
            teacher_dim = context.teacher.dim
            self.s2t = _linear(student_dim, teacher_dim)
            self.register_buffer("to_student", _linear(teacher_dim, student_dim).weight.detach().clone())
            self.student_attends = CrossModelAttention(student, teacher, min(student, teacher))
            self.teacher_attends = CrossModelAttention(teacher, student, min(student, teacher))
        on_logits = any(self.has_weight(name) for name in TERMS["logits"])
        self.require(
            states=on_logits or self.has_weight("token"),
            logits=on_logits,
            embedding=self.has_weight("sentence"),
        )
        self.add_task_head()

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return the terms of the form, and the task's loss or SimCSE."""
        terms = self.weighted_terms(
            simcse=lambda: simcse_term(student),
            task=lambda: task_term(batch, student),
            sentence=lambda: self._sentence(*embeddings(student, teacher)),
            token=lambda: self._token(*token_states(student, teacher)),
        )
        if self.teacher_outputs.logits:
            terms |= self._on_logits(batch, student, teacher)
        return terms

    def _on_logits(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> LossTerms:
        """Return dual-space distillation through both heads."""
        assert batch.labels is not None and self.head is not None
        student_logits, teacher_logits = class_logits(student, teacher)
        student_tokens, teacher_tokens = token_states(student, teacher)
        keys = F.rms_norm(teacher_tokens.states, teacher_tokens.states.shape[-1:])
        queries = self.query(student_tokens.states)

        # The teacher's states, projected, at the student's tokens: through the student's head
        teacher_to_student = cross_attention(queries, keys, self.t2s(keys), teacher_tokens.mask)
        projected = _frozen(self.head, mean_state(teacher_to_student, student_tokens.mask))
        is_right = projected.argmax(-1) == batch.labels

        # The student's states, projected, at the teacher's tokens: through the probe, which imitates the teacher's head
        student_to_teacher = cross_attention(keys, queries, self.s2t(student_tokens.states), student_tokens.mask)
        in_teacher_space = _frozen(self.probe, mean_state(student_to_teacher, teacher_tokens.mask))
        probed = self.probe(mean_state(teacher_tokens.states, teacher_tokens.mask))
        return {
            "projected": task_loss(projected, batch.labels),
            "student_space": soft_kl(student_logits, projected.detach(), self.temperature) * is_right,
            "teacher_space": soft_kl(in_teacher_space, teacher_logits, self.temperature),
            "probe": soft_kl(probed, teacher_logits, 1.0),
        }

    def _sentence(self, student: Tensor, teacher: Tensor) -> Tensor:
        gap = unit_squares(self.s2t(student), teacher)
        return gap + unit_squares(student, F.linear(teacher, self.to_student))

    def _token(self, student: Tokens, teacher: Tokens) -> Tensor:
        student_gaps = unit_squares(student.states, self.student_attends(student, teacher))
        teacher_gaps = unit_squares(teacher.states, self.teacher_attends(teacher, student))
        return token_mean(student_gaps, student.mask) + token_mean(teacher_gaps, teacher.mask)


class CrossModelAttention(nn.Module):
    """Attention of one model's tokens over the other's, with outputs in the first one's hidden size."""

    def __init__(self, size: int, other_size: int, inner: int) -> None:
        super().__init__()
        self.query = _linear(size, inner)
        self.key = _linear(other_size, inner)
        self.value = _linear(other_size, size)

    def forward(self, tokens: Tokens, others: Tokens) -> Float[Tensor, "batch tokens hidden"]:
        """Return what each of `tokens` takes from the other model's tokens."""
        queries = self.query(tokens.states)
        return cross_attention(queries, self.key(others.states), self.value(others.states), others.mask)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def _frozen(head: nn.Module, vectors: Float[Tensor, "texts hidden"]) -> Float[Tensor, "examples classes"]:
    """Return the head's logits without gradient for its parameters."""
    frozen = {name: value.detach() for name, value in head.named_parameters()}
    logits: Tensor = functional_call(head, frozen, (vectors,))
    return logits
