"""Offline cosine distillation: eq. 3 for both targets, one teacher and several, against a loop over texts and teachers."""  # noqa: E501

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contexts import make_context
from refusals import refused
from torch.nn.functional import cosine_similarity, normalize

from distilvec.core.batch import TextBatch
from distilvec.core.info import TeacherInfo
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.registry import build_objective

ROWS = 5
ONE = make_context(student_hidden_size=6, student_layers=2, teacher_dim=8, teacher_pre_dense_dim=6)
OTHERS = (
    TeacherInfo(12, weight=3.0, pre_dense_dim=4),
    TeacherInfo(3, normalized=False, weight=0.5, pre_dense_dim=7),
)
SEVERAL = make_context(ONE, others=OTHERS, teacher_weight=0.5)


def signals(target, context):
    """A batch, the student's vector and the teachers' answers: the wanted signal and no other."""
    generator = torch.Generator().manual_seed(2)
    rows, name = torch.arange(ROWS), "embedding" if target == "final" else "pre_dense"
    teachers = context.teachers
    widths = [teacher.dim for teacher in context.teachers] if target == "final" else [t.pre_dense_dim for t in teachers]
    student, *vectors = (torch.randn(ROWS, width, generator=generator) for width in (widths[0], *widths))
    first, *others = (ModelOutputs(**{name: vector}) for vector in vectors)
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    student.requires_grad_()
    return batch, student, ModelOutputs(**{name: student}), replace(first, others=tuple(others)), vectors


@pytest.mark.parametrize("target", ["final", "pre_dense"])
def test_one_teacher(target):
    objective = build_objective("offline_cosine", {"target": target}, {}, ONE)
    required = OutputSpec(embedding=True) if target == "final" else OutputSpec(pre_dense=True)
    assert objective.student_outputs == objective.teacher_outputs == required
    assert objective.weights == {"cosine": 1.0} and not list(objective.parameters())
    batch, student, encoded, teacher, (vectors,) = signals(target, ONE)
    terms = objective(batch, encoded, teacher)
    expected = [1 - (a / a.norm()) @ (b / b.norm()) for a, b in zip(student, vectors, strict=True)]
    torch.testing.assert_close(terms["cosine"], torch.stack(expected))
    assert weighted_loss(terms, objective.weights).item() == pytest.approx(
        sum(value.item() for value in expected) / ROWS, abs=1e-6
    )


def test_loss_is_largest_for_opposite_vectors():
    objective = build_objective(
        "offline_cosine", {}, {}, make_context(student_hidden_size=2, student_layers=2, teacher_dim=2)
    )
    rows = torch.arange(3)
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    student, teacher = torch.tensor([[1.0, 0], [0, 3.0], [-2.0, 0]]), torch.tensor([[1.0, 0]]).expand(3, 2)
    assert objective(batch, ModelOutputs(embedding=student), ModelOutputs(embedding=teacher))["cosine"].tolist() == [
        0.0,
        1.0,
        2.0,
    ]


@pytest.mark.parametrize("target", ["final", "pre_dense"])
def test_several_teachers_are_a_loop_over_teachers(target):
    torch.manual_seed(0)
    objective = build_objective("offline_cosine", {"target": target}, {}, SEVERAL)
    assert objective.weights == {"cosine": 0.125, "cosine_2": 0.75, "cosine_3": 0.125}
    batch, student, encoded, teacher, vectors = signals(target, SEVERAL)
    views = [student, *(projection(student) for projection in objective.projections)]
    if target == "final":
        views[1] = normalize(views[1], dim=-1)
    assert [view.shape[1] for view in views] == [vector.shape[1] for vector in vectors]
    expected = [1 - cosine_similarity(view, vector) for view, vector in zip(views, vectors, strict=True)]
    terms = objective(batch, encoded, teacher)
    for found, each in zip(terms.values(), expected, strict=True):
        torch.testing.assert_close(found, each)
    loss = weighted_loss(terms, objective.weights)
    for gradient in torch.autograd.grad(loss, [student, *objective.parameters()]):
        assert gradient.isfinite().all() and gradient.any()


@pytest.mark.parametrize(
    "context",
    [
        make_context(ONE, teacher_pre_dense_dim=None),
        make_context(SEVERAL, others=(OTHERS[0], replace(OTHERS[1], pre_dense_dim=None))),
        make_context(ONE, teacher_pre_dense_dim=10),
    ],
)
def test_pre_dense_needs_vectors_of_one_dim(context):
    with refused("method.options.target"):
        build_objective("offline_cosine", {"target": "pre_dense"}, {}, context)
    assert build_objective("offline_cosine", {"target": "final"}, {}, context).weights


def test_targets_are_checked():
    with refused("method.options.target", "'hidden'"):
        build_objective("offline_cosine", {"target": "hidden"}, {}, ONE)
