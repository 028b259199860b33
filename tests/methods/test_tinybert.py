"""TinyBERT on redact: against loops by text, head and layer, the layer map, padding of either model, what is asked for."""  # noqa: E501

from __future__ import annotations

import pytest
import torch
from contexts import make_context
from layer_signals import CONTEXT, LENGTHS, signals, text_batch

from distilvec.core.errors import DistilvecError
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.distance import l2_distance

BATCH = text_batch()


@pytest.mark.parametrize("embeddings", [False, True])
def test_terms_against_loops_of_equations_9_and_10(embeddings):
    torch.manual_seed(0)
    objective = build_objective("tinybert", {"include_embeddings": embeddings}, {}, CONTEXT)
    assert objective.weights == {"distance": 1.0, "attention": 1.0, "hidden": 1.0}
    (student, _), (teacher, _) = signals(1, 12, 4, 2), signals(2, 24, 4, 4)
    terms = objective(BATCH, student, teacher)
    torch.testing.assert_close(terms["distance"], l2_distance(student.embedding, teacher.embedding))
    layers = [0, 1, 2] if embeddings else [1, 2]
    hidden, attention = [], []
    for text, length in enumerate(LENGTHS):
        gaps = []
        for layer in layers:
            for token in range(length):
                ours = objective.projection.weight @ student.hidden_layers[layer][text, token]
                gaps.append((ours - teacher.hidden_layers[2 * layer][text, token]).square().mean())
        hidden.append(torch.stack(gaps).mean())
        gaps = []
        for layer in (1, 2):
            for head in range(4):
                ours, theirs = (
                    scores(e.projections[n], text, head, length) for e, n in ((student, layer), (teacher, 2 * layer))
                )
                gaps.append((ours - theirs).square().mean())
        attention.append(torch.stack(gaps).mean())
    torch.testing.assert_close(terms["hidden"], torch.stack(hidden))
    torch.testing.assert_close(terms["attention"], torch.stack(attention))


def test_wants_follow_the_layer_map_and_the_weights():
    objective = build_objective("tinybert", {"include_embeddings": True}, {}, make_context(CONTEXT, teacher_layers=6))
    assert objective.student_outputs == OutputSpec(embedding=True, hidden_layers=(0, 1, 2), projection_layers=(1, 2))
    assert objective.teacher_outputs == OutputSpec(embedding=True, hidden_layers=(0, 3, 6), projection_layers=(3, 6))
    hidden = build_objective("tinybert", {}, {"attention": 0.0}, make_context(CONTEXT, teacher_heads=6))
    assert hidden.teacher_outputs == OutputSpec(embedding=True, hidden_layers=(2, 4)), (
        "heads matter to the attention term alone"
    )
    attention = build_objective("tinybert", {}, {"hidden": 0.0}, CONTEXT)
    assert attention.teacher_outputs == OutputSpec(embedding=True, projection_layers=(2, 4))
    assert not list(attention.parameters())
    found = attention(BATCH, signals(1, 12, 4, 2)[0], signals(2, 24, 4, 4)[0])
    assert set(found) == {"distance", "attention"}


def test_without_layers_it_is_redact():
    alone = make_context(CONTEXT, teacher_layers=None, teacher_hidden_size=None, same_tokenizer=False)
    objective = build_objective("tinybert", {}, {"attention": 0.0, "hidden": 0.0}, alone)
    assert objective.teacher_outputs == OutputSpec(embedding=True)
    assert set(objective(BATCH, signals(1, 12, 4, 2)[0], signals(2, 24, 4, 4)[0])) == {"distance"}


def test_padding_of_either_model_changes_neither_value_nor_gradient():
    objective = build_objective("tinybert", {"include_embeddings": True}, {}, CONTEXT)
    (student, leaves), (teacher, _) = signals(1, 12, 4, 2, grad=True), signals(2, 24, 4, 4)
    expected = objective(BATCH, student, teacher)
    parameters = [*leaves, *objective.parameters()]
    gradients = torch.autograd.grad(weighted_loss(expected, objective.weights), parameters, allow_unused=True)
    assert all(torch.isfinite(g).all() for g in gradients if g is not None) and gradients[-1] is not None
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
        again = torch.autograd.grad(
            weighted_loss(found, objective.weights), [*leaves, *objective.parameters()], allow_unused=True
        )
        for one, other in zip(again, gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_a_number_of_layers_that_does_not_divide_is_refused_with_those_that_do():
    with pytest.raises(DistilvecError, match=r"^\[student.layers\] .*1, 2, 3, 6"):
        build_objective("tinybert", {}, {}, make_context(CONTEXT, student_layers=4, teacher_layers=6))


def scores(projections, text, head, length):
    """Q K' / sqrt(d) before the softmax, entry by entry."""
    q, k = projections.query[text, head], projections.key[text, head]
    return torch.tensor([[float(q[i] @ k[j]) / q.shape[1] ** 0.5 for j in range(length)] for i in range(length)])
