"""SimCSE: the loss on two views, the head that only trains, no teacher."""

from __future__ import annotations

import pytest
import torch
from contexts import make_context

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
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
    with pytest.raises(DistilvecError, match=r"\[method.options.head\] found 'cls'; expected one of none, mlp"):
        build_objective("simcse", {"head": "cls"}, {}, CONTEXT)
