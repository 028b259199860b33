"""SimCSE: the loss on two views, the head that only trains, no teacher."""

from __future__ import annotations

import dataclasses

import pytest
import token_signals
import torch
from contexts import make_context
from refusals import refused

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.contrastive import info_nce

BATCH = TextBatch(torch.arange(4), {"input_ids": torch.ones(4, 2, dtype=torch.long)}, torch.zeros(4, dtype=torch.long))
CONTEXT = make_context(student_hidden_size=6, student_layers=2, teacher_dim=5, student_dim=3)


@pytest.fixture
def student():
    generator = torch.Generator().manual_seed(5)
    first, second = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    return ModelOutputs(embedding=first, second_view=second)


def test_check_value_and_no_teacher(student):
    objective = build_objective("simcse", {}, {}, CONTEXT)
    assert objective(BATCH, student, ModelOutputs())["simcse"].mean().item() == pytest.approx(6.7589653595, abs=1e-9)
    assert objective.teacher_outputs == OutputSpec() and objective.student_outputs == OutputSpec(
        embedding=True, second_view=True
    )
    assert not list(objective.parameters())


def test_the_head_is_a_linear_layer_and_tanh(student):
    objective = build_objective("simcse", {"head": "mlp", "temperature": 0.1}, {}, CONTEXT).double()
    weight, bias = objective.mlp[0].weight, objective.mlp[0].bias
    assert weight.shape == (3, 3)
    views = [
        torch.tanh(3**0.5 * view / view.norm(dim=1, keepdim=True) @ weight.T + bias)
        for view in (student.embedding, student.second_view)
    ]
    terms = objective(BATCH, student, ModelOutputs())
    torch.testing.assert_close(terms["simcse"], info_nce(*views, 0.1))
    terms["simcse"].sum().backward()
    assert weight.grad.abs().min() > 0


def test_an_unknown_head():
    with refused("method.options.head", "'cls'"):
        build_objective("simcse", {"head": "cls"}, {}, CONTEXT)


@pytest.mark.parametrize("name", ["dskd", "mined", "cdm"])
def test_baselines_without_labels_have_simcse_in_the_role_of_the_task(name):
    objective = build_objective(name, {"simcse": True, "distillation_weight": 0.25}, {}, token_signals.CONTEXT).double()
    plain = build_objective(name, {}, {}, token_signals.CONTEXT).weights
    assert objective.weights == {"simcse": 0.75, **{term: 0.25 * weight for term, weight in plain.items()}}
    assert objective.student_outputs.second_view and objective.student_outputs.embedding
    assert objective.needs_fixed_batch
    batch, student, teacher = token_signals.signals()
    views = torch.randn_like(student.embedding)
    terms = objective(batch, dataclasses.replace(student, second_view=views), teacher)
    assert terms.keys() == objective.weights.keys()
    for row, own in enumerate(student.embedding):
        scores = torch.stack([torch.cosine_similarity(own, other, dim=0) for other in views]) / 0.05
        torch.testing.assert_close(terms["simcse"][row], -scores.log_softmax(0)[row], atol=1e-6, rtol=0)
    without = build_objective(name, {"simcse": True}, {"simcse": 0.0}, token_signals.CONTEXT)
    assert not without.student_outputs.second_view and not without.needs_fixed_batch
    with refused("method.options.simcse"):
        build_objective(name, {"simcse": True}, {}, token_signals.TASK)
