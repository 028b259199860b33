"""DistilBERT on redact: against a loop by token, the projection, padding of either model, what is asked for."""

from __future__ import annotations

import pytest
import torch
from contexts import make_context
from layer_signals import CONTEXT, LENGTHS, signals, text_batch
from refusals import refused

from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.distance import l2_distance

BATCH = text_batch()


@pytest.mark.parametrize("projection", [False, True])
def test_terms_against_a_loop_of_equation_12(projection):
    width = 24 if projection else 12
    objective = build_objective(
        "distilbert", {"projection": projection}, {}, make_context(CONTEXT, teacher_hidden_size=width)
    )
    assert objective.weights == {"distance": 1.0, "cosine": 1.0}
    assert objective.student_outputs == objective.teacher_outputs == OutputSpec(embedding=True, hidden_layers=(-1,))
    (student, _), (teacher, _) = signals(1, 12, 4, 2), signals(2, width, 4, 4)
    terms = objective(BATCH, student, teacher)
    torch.testing.assert_close(terms["distance"], l2_distance(student.embedding, teacher.embedding))
    expected = []
    for text, length in enumerate(LENGTHS):
        cosines = []
        for token in range(length):
            ours, theirs = student.hidden_layers[2][text, token], teacher.hidden_layers[4][text, token]
            ours = objective.projection.weight @ ours if projection else ours
            cosines.append(ours @ theirs / ours.norm() / theirs.norm())
        expected.append(1 - torch.stack(cosines).mean())
    torch.testing.assert_close(terms["cosine"], torch.stack(expected))


def test_padding_of_either_model_changes_neither_value_nor_gradient():
    objective = build_objective("distilbert", {}, {}, CONTEXT)
    (student, leaves), (teacher, _) = signals(1, 12, 4, 2, grad=True), signals(2, 24, 4, 4)
    expected = objective(BATCH, student, teacher)
    gradients = torch.autograd.grad(
        weighted_loss(expected, objective.weights), [*leaves, *objective.parameters()], allow_unused=True
    )
    assert all(torch.isfinite(g).all() for g in gradients if g is not None) and gradients[-1] is not None
    for left, columns, their_left, their_columns in (
        (False, 8, False, 5),
        (True, 7, False, 9),
        (False, 5, True, 6),
        (True, 6, True, 6),
    ):
        student, leaves = signals(1, 12, 4, 2, columns, left, grad=True)
        found = objective(BATCH, student, signals(2, 24, 4, 4, their_columns, their_left)[0])
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        again = torch.autograd.grad(
            weighted_loss(found, objective.weights), [*leaves, *objective.parameters()], allow_unused=True
        )
        for one, other in zip(again, gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_without_the_cosine_it_is_redact():
    alone = make_context(CONTEXT, teacher_layers=None, teacher_hidden_size=None, same_tokenizer=False)
    objective = build_objective("distilbert", {}, {"cosine": 0.0}, alone)
    assert objective.teacher_outputs == OutputSpec(embedding=True)
    assert set(objective(BATCH, signals(1, 12, 4, 2)[0], signals(2, 24, 4, 4)[0])) == {"distance"}


def test_other_widths_need_the_projection():
    with refused("method.options.projection", "24"):
        build_objective("distilbert", {"projection": False}, {}, CONTEXT)
