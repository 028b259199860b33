"""DSKD: each model's states brought into the other's space, its tokens attending to those of the other model.

Paper: Zhang, Zhang, Sun, Chen, Xu: "Dual-Space Knowledge Distillation for Large Language Models", EMNLP 2024, with cross-model
attention; for embeddings as the authors of TALAS use it in their comparison.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import Objective, Sizes, Terms
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.losses.logits import soft_kl
from distilvec.losses.padding import token_mean
from distilvec.losses.supervised import task_loss
from distilvec.losses.token_states import cross_attention, mean_state, unit_squares
from distilvec.methods.base.token_or_logit_kd import (
    On,
    Tokens,
    choose_form,
    compared,
    form_wants,
    task_terms,
    task_weights,
)


class Dskd(Objective):
    """On class logits: projected (the labels, from the teacher's states in the student's space), student_space and teacher_space
    (KL in either), probe (the teacher's head, learned anew). On states: sentence and token, each in both directions. And task.

    Options: `on` takes class logits or token states ("auto": logits where there are such, else states, also for STS). `alpha`
    is the weight of the task, 1 - alpha that of the others (EMO, eq. 22). `temperature` is that of KL.

    On class logits the student's tokens attend to the teacher's and take on their projected states; their mean goes through the student's
    head, frozen. Where that gets the label right, the student's logits follow it. The teacher's tokens attend to the student's with
    the same scores; the mean of the projected states goes through the teacher's head, frozen, to the teacher's logits.
    On states a text's sentence vectors are compared behind a linear layer either way, and its token states with what they
    take from the other model by attention; all as squared distances of unit vectors.

    Note: attention runs over the tokens of one text. EMO's authors take each text's first position and attend across the texts of the
    batch, which mixes unrelated texts; the paper attends over tokens.
    Note: keys and queries are made of last hidden states; the paper's are embeddings of input and target tokens, and there is no next
    token here. States of the teacher are divided by their root mean square, token by token; the paper divides by a deviation over
    the batch.
    Note: the teacher's head is not at hand in training. `probe` learns it from the teacher's mean states and logits.
    Note: the official loss is 1 - alpha times the sum of the three terms; probe has the same weight and reaches nothing but the probe.
    Note: KL is multiplied by temperature^2 (Hinton et al. 2015).
    Note: TALAS' authors take the mean over dimensions of the squared error, a width-th of the squared distance, hardly felt beside a
    task. Special tokens take part here. The layer from teacher to student, whose output they detach, never learns; here it is a
    constant (Xavier, saved with the checkpoint), and a random projection keeps the teacher's cosines nearly.
    """

    compatible = False
    citation = """@inproceedings{zhang2024dskd,
  title = {Dual-Space Knowledge Distillation for Large Language Models},
  author = {Zhang, Songming and Zhang, Xue and Sun, Zengkui and Chen, Yufeng and Xu, Jinan},
  booktitle = {EMNLP},
  year = {2024}
}"""

    to_student: Tensor

    def __init__(self, sizes: Sizes, on: On = "auto", alpha: float = 0.5, temperature: float = 2.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise DistilvecError(f"[method.options.temperature] found {temperature}; expected a number above 0.")
        self.form, self.temperature = choose_form(on, sizes, scores="hidden"), temperature
        student, teacher = sizes.student_width, sizes.teacher_hidden_width or sizes.teacher_width
        required = OutputSpec(hidden_layers=(-1,)), form_wants("hidden")[1]
        if self.form == "logits":
            from distilvec.core.task_head import TaskHead

            assert sizes.task is not None
            self.query, self.t2s, self.s2t = (
                _linear(student, teacher),
                _linear(teacher, student),
                _linear(student, teacher),
            )
            self.probe = TaskHead(teacher, sizes.task)
            required = required[0], required[1] | OutputSpec(logits=True)
            terms = ["projected", "student_space", "teacher_space", "probe"]
        else:
            inner, vector = min(student, teacher), sizes.embedding_width or sizes.teacher_width
            self.s2t = _linear(vector, sizes.teacher_width)
            self.register_buffer("to_student", _linear(sizes.teacher_width, vector).weight.detach().clone())
            self.student_attends = CrossModelAttention(student, teacher, inner)
            self.teacher_attends = CrossModelAttention(teacher, student, inner)
            required = required[0] | OutputSpec(embedding=True), required[1] | OutputSpec(embedding=True)
            terms = ["sentence", "token"]
        self.student_outputs, self.teacher_outputs = required
        self.weights = task_weights(alpha, dict.fromkeys(terms, 1.0), sizes)

    def forward(self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs) -> Terms:
        """All terms of the form; the task's where it has a weight."""
        ours, theirs = compared("hidden", student, teacher)
        found = task_terms(self.weights, batch, student)
        if self.form == "logits":
            return {**found, **self.on_logits(batch, student, teacher, ours, theirs)}
        return {**found, **self.on_states(student, teacher, ours, theirs)}

    def on_logits(
        self, batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs, ours: Tokens, theirs: Tokens
    ) -> Terms:
        """Dual-space distillation through both heads."""
        assert (
            batch.labels is not None
            and student.logits is not None
            and teacher.logits is not None
            and self.head is not None
        )
        keys = F.rms_norm(theirs.states, theirs.states.shape[-1:])
        queries = self.query(ours.states)
        lent = mean_state(cross_attention(queries, keys, self.t2s(keys), theirs.mask), ours.mask)
        taken = mean_state(cross_attention(keys, queries, self.s2t(ours.states), ours.mask), theirs.mask)
        projected = _frozen(self.head, lent)
        right = projected.argmax(-1) == batch.labels
        return {
            "projected": task_loss(projected, batch.labels),
            "student_space": soft_kl(student.logits, projected.detach(), self.temperature) * right,
            "teacher_space": soft_kl(_frozen(self.probe, taken), teacher.logits, self.temperature),
            "probe": soft_kl(self.probe(mean_state(theirs.states, theirs.mask)), teacher.logits, 1.0),
        }

    def on_states(self, student: ModelOutputs, teacher: ModelOutputs, ours: Tokens, theirs: Tokens) -> Terms:
        """Both directions of sentence vectors and of token states."""
        assert student.embedding is not None and teacher.embedding is not None
        sentence = unit_squares(self.s2t(student.embedding), teacher.embedding)
        sentence = sentence + unit_squares(student.embedding, F.linear(teacher.embedding, self.to_student))
        token = token_mean(unit_squares(ours.states, self.student_attends(ours, theirs)), ours.mask)
        token = token + token_mean(unit_squares(theirs.states, self.teacher_attends(theirs, ours)), theirs.mask)
        return {"sentence": sentence, "token": token}


class CrossModelAttention(nn.Module):
    """What each token of one model takes from the tokens of the other, in its own width."""

    def __init__(self, width: int, other: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value = _linear(width, inner), _linear(other, inner), _linear(other, width)

    def forward(self, own: Tokens, other: Tokens) -> Float[Tensor, "batch tokens width"]:
        """One state for each of the own tokens."""
        return cross_attention(self.query(own.states), self.key(other.states), self.value(other.states), other.mask)


def _linear(width: int, other: int) -> nn.Linear:
    layer = nn.Linear(width, other, bias=False)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def _frozen(head: nn.Module, vectors: Float[Tensor, "texts width"]) -> Float[Tensor, "examples classes"]:
    """The head's answer; its parameters get no gradient from it."""
    answer: Tensor = functional_call(
        head, {name: value.detach() for name, value in head.named_parameters()}, (vectors,)
    )
    return answer
