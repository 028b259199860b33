"""REDACT with one teacher and with several: against a loop over texts and teachers."""

from __future__ import annotations

import pytest
import torch
from contexts import make_context

from distilvec.core.batch import TextBatch
from distilvec.core.info import TeacherInfo
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs
from distilvec.core.registry import build_objective
from distilvec.methods.redact import DISTANCES

ROWS, WIDTHS = 5, (8, 12, 3)
SEVERAL = make_context(
    student_hidden_size=6,
    student_layers=2,
    teacher_dim=8,
    others=(TeacherInfo(12, weight=3.0), TeacherInfo(3, normalized=False, weight=0.5)),
    teacher_weight=0.5,
)


def signals(widths=WIDTHS):
    generator = torch.Generator().manual_seed(2)
    student, *teachers = (torch.randn(ROWS, width, generator=generator) for width in (8, *widths))
    rows = torch.arange(ROWS)
    first, *others = (ModelOutputs(embedding=vectors) for vectors in teachers)
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    return (
        batch,
        torch.nn.functional.normalize(student, dim=-1).requires_grad_(),
        ModelOutputs(embedding=first.embedding, others=tuple(others)),
    )


@pytest.mark.parametrize("distance", DISTANCES)
def test_one_teacher_s_term_is_the_distance_itself(distance):
    for context in (
        make_context(student_hidden_size=6, student_layers=2, teacher_dim=8),
        make_context(student_hidden_size=6, student_layers=2, teacher_dim=8, teacher_weight=0.3),
    ):
        objective = build_objective("redact", {"distance": distance}, {}, context)
        assert objective.weights == {distance: 1.0} and not list(objective.parameters()) and not objective.state_dict()
        batch, student, teacher = signals((8,))
        terms = objective(batch, ModelOutputs(embedding=student), teacher)
        assert list(terms) == [distance] and torch.equal(
            terms[distance], DISTANCES[distance](student, teacher.embedding)
        )


@pytest.mark.parametrize("distance", DISTANCES)
def test_several_teachers_are_a_loop_over_texts_and_teachers(distance):
    torch.manual_seed(0)
    objective = build_objective("redact", {"distance": distance}, {}, SEVERAL)
    assert objective.weights == {distance: 0.125, f"{distance}_2": 0.75, f"{distance}_3": 0.125}
    assert {name: tuple(value.shape) for name, value in objective.named_parameters()} == {
        "projections.0.weight": (12, 8),
        "projections.1.weight": (3, 8),
    }
    batch, student, teacher = signals()
    terms = objective(batch, ModelOutputs(embedding=student), teacher)
    expected = 0.0
    for row in range(ROWS):
        for number, weight in enumerate((0.5, 3.0, 0.5)):
            vector, answer = student[row], (teacher, *teacher.others)[number].embedding[row]
            if number:
                vector = objective.projections[number - 1].weight @ vector
            if number == 1:
                vector = vector / vector.norm()
            value = {
                "l2": (vector - answer).norm(),
                "mse": (vector - answer).square().mean(),
                "cosine": 1 - vector @ answer / vector.norm() / answer.norm(),
            }[distance]
            assert terms[distance if not number else f"{distance}_{number + 1}"][row].item() == pytest.approx(
                value.item(), abs=1e-5
            )
            expected += weight / 4.0 * value / ROWS
    loss = weighted_loss(terms, objective.weights)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    for found, exact in zip(
        *(torch.autograd.grad(each, [student, *objective.parameters()]) for each in (loss, expected)), strict=True
    ):
        torch.testing.assert_close(found, exact, atol=1e-6, rtol=1e-4)


def test_a_teacher_of_weight_0_is_left_out():
    objective = build_objective("redact", {}, {"l2_2": 0.0}, SEVERAL)
    batch, student, teacher = signals()
    assert list(objective(batch, ModelOutputs(embedding=student), teacher)) == ["l2", "l2_3"]
