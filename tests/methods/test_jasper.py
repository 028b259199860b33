"""Jasper against its check values (seed 6) and its identities."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from contexts import make_context
from refusals import refused

from distilvec.core.batch import TextBatch
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs
from distilvec.core.registry import build_objective
from distilvec.methods.jasper import Jasper


def draw(*shapes, seed=6):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def terms(objective, student, teacher):
    rows = torch.arange(len(student))
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    return objective(batch, ModelOutputs(embedding=student), ModelOutputs(embedding=teacher))


def test_check_values():
    student, teacher = draw((5, 4), (5, 6))
    objective = Jasper(make_context(student_hidden_size=4, student_layers=2, teacher_dim=4), {})
    assert terms(objective, student, teacher[:, :4])["cosine"].mean().item() == pytest.approx(1.4667210738, abs=1e-6)
    objective.weights["cosine"] = 0.0  # the two widths differ: only the relations can be compared
    found = terms(objective, student, teacher)
    assert set(found) == {"similarity", "triplet"}
    assert found["similarity"].mean().item() == pytest.approx(0.2835002555, abs=1e-10)
    assert found["triplet"].mean().item() == pytest.approx(0.3094452185, abs=1e-10)


def test_relations_are_averaged_over_prefixes_that_are_normalised_anew():
    student, teacher = draw((6, 8), (6, 8), seed=1)
    both, three, eight = (
        terms(
            Jasper(make_context(student_hidden_size=8, student_layers=2, teacher_dim=8), {}, prefixes=prefixes),
            student,
            teacher,
        )
        for prefixes in ([3, 8], [3], [8])
    )
    cut = Jasper(make_context(student_hidden_size=3, student_layers=2, teacher_dim=3), {})
    cut.weights["cosine"] = 0.0
    scaled = terms(cut, student[:, :3] * torch.rand(6, 1), teacher)
    for name in ("similarity", "triplet"):
        torch.testing.assert_close(both[name], (three[name] + eight[name]) / 2)
        torch.testing.assert_close(three[name], scaled[name])
    assert torch.equal(both["cosine"], eight["cosine"]) and torch.equal(three["cosine"], eight["cosine"]), (
        "always on the full width"
    )


def test_similarity_agrees_with_a_loop():
    student, teacher = (F.normalize(x, dim=-1) for x in draw((4, 3), (4, 3), seed=2))
    expected = [
        sum(float(student[i] @ student[j] - teacher[i] @ teacher[j]) ** 2 for j in range(4)) / 4 for i in range(4)
    ]
    found = terms(Jasper(make_context(student_hidden_size=3, student_layers=2, teacher_dim=3), {}), student, teacher)[
        "similarity"
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (100, [100]),
        (256, [256]),
        (384, [256, 384]),
        (1024, [256, 512, 1024]),
        (4096, [256, 512, 1024, 2048, 3584, 4096]),
    ],
)
def test_the_widths_that_fit_are_the_default(width, expected):
    assert Jasper(make_context(student_hidden_size=width, student_layers=2, teacher_dim=width), {}).prefixes == expected


@pytest.mark.parametrize("prefixes", [[], [0, 4], [5]])
def test_prefixes_outside_the_student_are_refused(prefixes):
    with refused("method.options.prefixes"):
        build_objective("jasper", {"prefixes": prefixes}, {}, make_context(student_hidden_size=4, teacher_dim=4))


def test_a_student_equal_to_its_teacher_pays_only_for_the_margin():
    (student,) = draw((7, 4), seed=3)
    found = terms(Jasper(make_context(student_hidden_size=4, student_layers=2, teacher_dim=4), {}), student, student)
    assert found["cosine"].abs().max() < 1e-6 and found["similarity"].abs().max() < 1e-12
    assert 0 < found["triplet"].mean() < 0.015
    assert (
        terms(
            Jasper(make_context(student_hidden_size=4, student_layers=2, teacher_dim=4), {}, margin=0.0),
            student,
            student,
        )["triplet"]
        .abs()
        .max()
        < 1e-12
    )


def test_gradients_are_finite_for_a_collapsed_student_and_a_batch_of_one():
    objective = build_objective("jasper", {}, {}, make_context(student_hidden_size=4, student_layers=2, teacher_dim=4))
    for rows in (1, 5):
        student = torch.ones(rows, 4, requires_grad=True)
        found = terms(objective, student, torch.ones(rows, 4))
        assert all(values.shape == (rows,) and torch.isfinite(values).all() for values in found.values())
        sum(values.mean() for values in found.values()).backward()
        assert torch.isfinite(student.grad).all()


def test_simcse_of_the_second_stage_has_its_weight_and_asks_for_a_view():
    """InfoNCE of the two views at temperature 0.1, 0.4 of it beside 0.6 of the other terms."""
    one, two, teacher = draw((5, 4), (5, 4), (5, 4))
    context = make_context(student_hidden_size=4, student_layers=2, teacher_dim=4)
    assert not Jasper(context, {}).student_outputs.second_view
    weights = {"cosine": 0.3, "similarity": 1.2, "triplet": 0.3, "simcse": 0.4}
    objective = Jasper(context, weights)
    assert objective.student_outputs.second_view
    rows = torch.arange(5)
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows))
    student = ModelOutputs(embedding=one, second_view=two)
    found = objective(batch, student, ModelOutputs(embedding=teacher))
    for i in range(5):
        scores = torch.stack([torch.cosine_similarity(one[i], two[j], dim=0) / 0.1 for j in range(5)])
        assert found["simcse"][i].item() == pytest.approx((scores.logsumexp(0) - scores[i]).item(), abs=1e-6)
    plain = Jasper(context, {"cosine": 0.5, "similarity": 2.0, "triplet": 0.5})
    rest = weighted_loss(plain(batch, student, ModelOutputs(embedding=teacher)), plain.weights)
    expected = 0.4 * found["simcse"].mean() + 0.6 * rest
    torch.testing.assert_close(weighted_loss(found, objective.weights), expected)
