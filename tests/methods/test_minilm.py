"""MiniLM on redact: the terms and weights of the paper, relation heads, padding of either model, what is asked for."""

from __future__ import annotations

import pytest
import torch
from contexts import make_context
from layer_signals import CONTEXT, signals, text_batch
from refusals import refused

from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.distance import cosine_distance, l2_distance
from distilvec.losses.relation_heads import left_align, relation_term
from distilvec.losses.tokens import shared_mask

BATCH = text_batch()


def values(objective, **student):
    return objective(BATCH, signals(1, 12, 4, 2, **student)[0], signals(2, 24, 4, 4)[0])


def test_terms_of_version_1_at_the_last_layers():
    objective = build_objective("minilm", {}, {}, CONTEXT)
    assert objective.weights == {"distance": 1.0, "attention": 1.0, "value": 1.0}
    assert objective.student_outputs == objective.teacher_outputs == OutputSpec(embedding=True, projection_layers=(-1,))
    (student, _), (teacher, _) = signals(1, 12, 4, 2), signals(2, 24, 4, 4)
    terms = objective(BATCH, student, teacher)
    torch.testing.assert_close(terms["distance"], l2_distance(student.embedding, teacher.embedding))
    mask = shared_mask(student.mask, teacher.mask)
    ours, theirs = (
        left_align(student.projections[2], student.mask, 5),
        left_align(teacher.projections[4], teacher.mask, 5),
    )
    for name in ("attention", "value"):
        torch.testing.assert_close(terms[name], relation_term(name, ours, theirs, mask))


def test_version_2_takes_other_heads_and_a_layer_below_the_last():
    context = make_context(CONTEXT, teacher_heads=6)
    objective = build_objective("minilm", {"relation_heads": 3, "teacher_layer": 3, "distance": "cosine"}, {}, context)
    assert objective.weights == {"distance": 1.0, "query": 1.0, "key": 1.0, "value": 1.0}
    assert objective.teacher_outputs.projection_layers == (3,) and objective.student_outputs.projection_layers == (-1,)
    (student, _), (teacher, _) = signals(1, 12, 4, 2), signals(2, 24, 6, 4)
    terms = objective(BATCH, student, teacher)
    torch.testing.assert_close(terms["distance"], cosine_distance(student.embedding, teacher.embedding))
    mask = shared_mask(student.mask, teacher.mask)
    ours, theirs = (
        left_align(student.projections[2], student.mask, 5),
        left_align(teacher.projections[3], teacher.mask, 5),
    )
    for name in ("query", "key", "value"):
        torch.testing.assert_close(terms[name], relation_term(name, ours, theirs, mask, 3))


@pytest.mark.parametrize("options", [{}, {"relation_heads": 6}])
def test_padding_of_either_model_changes_neither_value_nor_gradient(options):
    objective = build_objective("minilm", options, {}, CONTEXT)
    (student, leaves), (teacher, _) = signals(1, 12, 4, 2, grad=True), signals(2, 24, 4, 4)
    expected = objective(BATCH, student, teacher)
    gradients = torch.autograd.grad(weighted_loss(expected, objective.weights), leaves, allow_unused=True)
    assert all(torch.isfinite(g).all() for g in gradients if g is not None)
    for left, columns, their_left, their_columns in (
        (False, 8, False, 5),
        (True, 7, False, 9),
        (False, 5, True, 6),
        (True, 6, True, 6),
    ):
        student, leaves = signals(1, 12, 4, 2, columns, left, grad=True)
        found = objective(BATCH, student, signals(2, 24, 4, 4, their_columns, their_left)[0])
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-5)
        for one, other in zip(
            torch.autograd.grad(weighted_loss(found, objective.weights), leaves, allow_unused=True),
            gradients,
            strict=True,
        ):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_a_term_of_weight_0_is_not_computed():
    objective = build_objective("minilm", {}, {"attention": 0.0, "distance": 0.0}, CONTEXT)
    assert set(values(objective)) == {"value"}


def test_without_relations_it_is_redact_and_needs_nothing_of_the_teachers_inside():
    alone = make_context(CONTEXT, teacher_layers=None, teacher_hidden_size=None, same_tokenizer=False)
    objective = build_objective("minilm", {}, {"attention": 0.0, "value": 0.0}, alone)
    assert objective.student_outputs == objective.teacher_outputs == OutputSpec(embedding=True)
    assert set(values(objective)) == {"distance"}


@pytest.mark.parametrize("heads", [0, 5, 24])
def test_relation_heads_must_divide_both_widths(heads):
    with refused("method.options.relation_heads", f"found {heads}"):
        build_objective("minilm", {"relation_heads": heads}, {}, CONTEXT)


@pytest.mark.parametrize("layer", [0, 5, -5])
def test_the_teachers_layer_must_be_there(layer):
    with refused("method.options.teacher_layer", f"found {layer}"):
        build_objective("minilm", {"teacher_layer": layer}, {}, CONTEXT)
