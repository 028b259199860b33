"""DistillCSE against its check values (seed 17): shuffling only while training, several teachers, edges."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from contexts import make_context
from refusals import refused

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs
from distilvec.core.registry import build_objective
from distilvec.methods.distillcse import DistillCse


def draw(*shapes, seed=17):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def terms(objective, student, teacher, second=None):
    rows = torch.arange(len(student))
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    return objective(
        batch,
        ModelOutputs(embedding=student, second_view=student if second is None else second),
        ModelOutputs(embedding=teacher),
    )


@pytest.mark.parametrize(
    ("temperatures", "expected"), [((0.025, 0.0125), 29.8253111008), ((0.05, 0.05), 14.0037976555)]
)
def test_check_values(temperatures, expected):
    student, teacher = draw((5, 4), (5, 6))
    objective = DistillCse(
        make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}, *temperatures, shuffle=None
    )
    assert terms(objective, student, teacher)["distill"].mean().item() == pytest.approx(expected, abs=1e-9)


def test_the_diagonal_takes_no_part():
    student, teacher = draw((5, 4), (5, 6))
    ours, theirs = (F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).T for x in (student, teacher))
    expected = []
    for i in range(5):
        candidates = [j for j in range(5) if j != i]
        target = (theirs[i, candidates] / 0.0125).softmax(-1)
        expected.append(-(target * (ours[i, candidates] / 0.025).log_softmax(-1)).sum())
    found = terms(
        DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}).eval(), student, teacher
    )["distill"]
    torch.testing.assert_close(found, torch.stack(expected))


def test_simcse_against_the_second_view():
    first, second, teacher = draw((5, 4), (5, 4), (5, 6), seed=1)
    found = terms(
        DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}), first, teacher, second
    )["simcse"]
    for i in range(5):
        logits = torch.stack([F.cosine_similarity(first[i], second[j], dim=0) for j in range(5)]) / 0.05
        assert found[i].item() == pytest.approx(-logits.log_softmax(-1)[i].item(), abs=1e-9)


def test_shuffled_only_while_training_and_only_if_asked():
    student, teacher = draw((12, 4), (12, 6), seed=2)
    still = DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}, shuffle=None)
    expected = terms(still, student, teacher)["distill"]
    objective = DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}, shuffle=0.5)
    torch.manual_seed(0)
    first, second = (terms(objective, student, teacher)["distill"] for _ in range(2))
    torch.manual_seed(0)
    again = terms(objective, student, teacher)["distill"]
    assert not torch.equal(first, second) and torch.equal(first, again), "drawn anew from torch's global generator"
    assert not torch.allclose(first, expected)
    torch.testing.assert_close(terms(objective.eval(), student, teacher)["distill"], expected)
    alone = DistillCse(
        make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}, shuffle=0.0001
    )  # groups of one
    torch.testing.assert_close(terms(alone, student, teacher)["distill"], expected)


def test_several_teachers_are_averaged_and_equal_their_concatenated_unit_vectors():
    student, first, second = draw((6, 4), (6, 3), (6, 5), seed=3)
    several = DistillCse(
        make_context(student_hidden_size=4, student_layers=2, teacher_dim=8), {}, shuffle=None, teacher_widths=[3, 5]
    )
    raw = torch.cat([first, 7 * second], -1)
    average = (cosines(first) + cosines(second)) / 2
    torch.testing.assert_close(several.similarities(raw), average)
    unit = torch.cat([F.normalize(first, dim=-1), F.normalize(second, dim=-1)], -1)
    torch.testing.assert_close(
        DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=8), {}).similarities(unit), average
    )
    both = [
        terms(objective.eval(), student, unit)["distill"]
        for objective in (several, DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=8), {}))
    ]
    torch.testing.assert_close(*both)


def cosines(x):
    return F.cosine_similarity(x[:, None], x[None], dim=-1)


def test_options_are_checked():
    with pytest.raises(DistilvecError, match=r"\[method.options.shuffle\] found 1.5"):
        build_objective("distillcse", {"shuffle": 1.5}, {}, make_context(teacher_dim=6))
    with refused("method.options.teacher_widths", "[3, 4]"):
        DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}, teacher_widths=[3, 4])


def test_a_term_without_weight_asks_for_nothing():
    alone = build_objective(
        "distillcse", {}, {"simcse": 0.0}, make_context(student_hidden_size=4, student_layers=2, teacher_dim=6)
    )
    assert not alone.student_outputs.second_view and alone.teacher_outputs.embedding
    student, teacher = draw((5, 4), (5, 6))
    assert set(terms(alone, student, teacher)) == {"distill"}
    without = build_objective(
        "distillcse", {}, {"distill": 0.0}, make_context(student_hidden_size=4, student_layers=2, teacher_dim=6)
    )
    assert without.student_outputs.second_view and not without.teacher_outputs.embedding
    assert set(terms(without, student, None)) == {"simcse"}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_gradients_are_finite_for_a_collapsed_student_and_tiny_batches(rows):
    student = torch.ones(rows, 4, requires_grad=True)
    found = terms(
        DistillCse(make_context(student_hidden_size=4, student_layers=2, teacher_dim=6), {}),
        student,
        torch.ones(rows, 6),
    )
    assert all(values.shape == (rows,) for values in found.values())
    sum(values.mean() for values in found.values()).backward()
    assert torch.isfinite(student.grad).all()
