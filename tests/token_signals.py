"""Signals of a student and a teacher with different tokenizers, widths and lengths; arbitrary numbers in the padding of
either.
"""

from __future__ import annotations

import torch
from contexts import make_context

from distilvec.core.batch import Alignment, TextBatch
from distilvec.core.objective import LossTerms, weighted_loss
from distilvec.core.outputs import ModelOutputs
from distilvec.core.task_head import TaskInfo

TEXTS, CLASSES = 4, 3
STUDENT_LENGTHS, TEACHER_LENGTHS = (5, 3, 6, 2), (4, 5, 7, 2)
PAIRS = [[(0, 0), (1, 2), (4, 3)], [(2, 4)], [(0, 0), (2, 1), (3, 2), (5, 6)], []]
CONTEXT = make_context(
    student_hidden_size=6, student_layers=2, teacher_dim=5, teacher_hidden_size=8, teacher_layers=2, student_dim=6
)
TASK = make_context(CONTEXT, task=TaskInfo("classification", CLASSES), teacher_logits=True)
SCORES = make_context(CONTEXT, task=TaskInfo("sts", 1), teacher_logits=True)


def signals(
    student_padding: int = 0, teacher_padding: int = 0, seed: int = 0
) -> tuple[TextBatch, ModelOutputs, ModelOutputs]:
    """Batch, student and teacher in float64; the student's states and logits are leaves. Padding differs in every call."""  # noqa: E501
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def states(lengths, width, padding):
        mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
        values = draw(len(lengths), max(lengths), width)
        padded = torch.cat([values, torch.zeros(len(lengths), padding, width, dtype=torch.float64)], 1)
        return torch.where(mask[..., None], padded, torch.randn_like(padded)), mask

    ours, our_mask = states(STUDENT_LENGTHS, CONTEXT.student.hidden_size, student_padding)
    theirs, their_mask = states(TEACHER_LENGTHS, CONTEXT.teacher.hidden_size, teacher_padding)
    pairs = torch.full((TEXTS, max(map(len, PAIRS)) + student_padding, 2), -1)
    for row, found in enumerate(PAIRS):
        pairs[row, : len(found)] = torch.tensor(found).view(-1, 2)
    student = ModelOutputs(
        embedding=draw(TEXTS, CONTEXT.student_dim).requires_grad_(),
        hidden_layers={-1: ours.requires_grad_()},
        mask=our_mask,
        logits=draw(TEXTS, CLASSES).requires_grad_(),
    )
    teacher = ModelOutputs(
        embedding=torch.nn.functional.normalize(draw(TEXTS, CONTEXT.teacher.dim), dim=-1),
        hidden_layers={-1: theirs},
        mask=their_mask,
        logits=draw(TEXTS, CLASSES),
    )
    tokens = {"input_ids": torch.ones_like(our_mask, dtype=torch.long), "attention_mask": our_mask.long()}
    rows = torch.arange(TEXTS)
    return (
        TextBatch(rows, tokens, torch.zeros_like(rows), labels=rows % CLASSES, alignment=Alignment(pairs)),
        student,
        teacher,
    )


def texts_of(batch: TextBatch, student: ModelOutputs, teacher: ModelOutputs):
    """Text by text: the student's states, the teacher's states and the pairs, all without padding."""
    for row, (ours, theirs) in enumerate(zip(STUDENT_LENGTHS, TEACHER_LENGTHS, strict=True)):
        yield student.hidden_layers[-1][row, :ours], teacher.hidden_layers[-1][row, :theirs], PAIRS[row]


def outcome(objective, student_padding: int, teacher_padding: int) -> tuple[LossTerms, list[torch.Tensor]]:
    """The terms, and the gradients of everything that has one: the student's real tokens, vectors and logits, the
    parameters.
    """
    batch, student, teacher = signals(student_padding, teacher_padding)
    objective.zero_grad()
    terms = objective(batch, student, teacher)
    weighted_loss(terms, objective.weights).backward()
    states = student.hidden_layers[-1].grad
    if states is not None:
        real = student.mask[..., None]
        assert (states.masked_fill(real, 0) == 0).all(), "padding got a gradient"
        states = states[:, : max(STUDENT_LENGTHS)]
    leaves = [states, student.embedding.grad, student.logits.grad, *(p.grad for p in objective.parameters())]
    return {name: values.detach() for name, values in terms.items()}, [leaf for leaf in leaves if leaf is not None]


def assert_padding_is_nothing(objective) -> None:
    """Values and gradients are finite, and the same whatever padding either side has."""
    terms, gradients = outcome(objective, 0, 0)
    gradients = [gradient.clone() for gradient in gradients]
    assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)
    for padding in ((3, 0), (0, 2), (1, 4)):
        other, others = outcome(objective, *padding)
        for name, values in terms.items():
            assert values.shape == (TEXTS,) and torch.isfinite(values).all()
            torch.testing.assert_close(other[name], values, atol=1e-9, rtol=1e-6)
        for one, two in zip(gradients, others, strict=True):
            torch.testing.assert_close(two, one, atol=1e-9, rtol=1e-6)
