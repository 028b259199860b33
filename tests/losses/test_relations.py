"""Relations between the texts of a batch: against plain loops written from the papers, and the check values of TALAS."""  # noqa: E501

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import cosine_similarity

from distilvec.losses.relations import cosine_relations, layer_relation_gaps, rkd_angles, rkd_distances, similarity_gaps


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def layers():
    """Five layers (4, 3), the first one the embedding output."""
    generator = torch.Generator().manual_seed(3)
    drawn = torch.stack([draw(generator, 4, 3) for _ in range(5)])
    assert drawn[0, 0].tolist() == pytest.approx([0.8032760781, 0.1748333933, 0.0889780950], abs=1e-9)
    return drawn


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(11)
    return draw(generator, 6, 4), draw(generator, 6, 5)


def test_check_values_of_lasd(layers):
    assert layer_relation_gaps(layers).mean().item() == pytest.approx(0.8490677164891, abs=1e-12)
    assert layer_relation_gaps(layers[1:]).mean().item() == pytest.approx(0.8539696804412, abs=1e-12)


def test_lasd_is_equation_5_row_by_row(layers):
    count, rows = len(layers), len(layers[0])
    expected = [0.0] * rows
    for lower, upper in pairwise(layers):
        for i in range(rows):
            for j in range(rows):
                gap = cosine_similarity(upper[i], upper[j], dim=0) - cosine_similarity(lower[i], lower[j], dim=0)
                expected[i] += gap.item() ** 2 / rows / (count - 1)
    torch.testing.assert_close(layer_relation_gaps(layers), torch.tensor(expected, dtype=torch.float64))


def test_lasd_sees_neither_rotation_nor_scale(layers):
    turn = torch.linalg.qr(draw(torch.Generator().manual_seed(1), 3, 3))[0]
    same = torch.stack([layers[0], 3 * layers[0] @ turn, layers[0] @ turn @ turn])
    assert layer_relation_gaps(same).max() < 1e-20
    torch.testing.assert_close(cosine_relations(same)[0], cosine_relations(same)[1])


def test_a_detached_guide_has_the_same_value_and_no_gradient(layers):
    lower, upper = layers[1].clone().requires_grad_(), layers[2].clone().requires_grad_()
    free = layer_relation_gaps(torch.stack([lower, upper]))
    guided = layer_relation_gaps(torch.stack([lower, upper]), detach_guide=True)
    torch.testing.assert_close(free, guided)
    gradients = torch.autograd.grad(guided.sum(), [lower, upper])
    assert gradients[0].abs().min() > 0 and gradients[1].abs().max() == 0
    assert torch.autograd.grad(free.sum(), upper)[0].abs().min() > 0


def test_rkd_distances_are_the_papers(pair):
    student, teacher = pair

    def relative(x):
        distances = [[math.dist(a.tolist(), b.tolist()) for b in x] for a in x]
        mean = sum(map(sum, distances)) / (len(x) * (len(x) - 1))
        return [[value / mean for value in row] for row in distances]

    ours, theirs = relative(student), relative(teacher)
    expected = [
        sum(huber(a - b) for a, b in zip(mine, yours, strict=True)) / len(student)
        for mine, yours in zip(ours, theirs, strict=True)
    ]
    torch.testing.assert_close(rkd_distances(student, teacher), torch.tensor(expected, dtype=torch.float64))


def test_rkd_angles_are_the_papers(pair):
    student, teacher = pair

    def angle(x, i, j, k):
        if i in (j, k):
            return 0.0
        return cosine_similarity(x[j] - x[i], x[k] - x[i], dim=0).item()

    rows = range(len(student))
    expected = [
        sum(huber(angle(student, i, j, k) - angle(teacher, i, j, k)) for j in rows for k in rows) / len(student) ** 2
        for i in rows
    ]
    torch.testing.assert_close(rkd_angles(student, teacher), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("loss", [rkd_distances, rkd_angles])
def test_rkd_identities(loss, pair):
    student, teacher = pair
    turn = torch.linalg.qr(draw(torch.Generator().manual_seed(1), 5, 5))[0]
    assert loss(2 * teacher @ turn + 3, teacher).max() < 1e-12, (
        "distances up to scale and angles survive rotation, scale, translation"
    )
    assert loss(student, teacher).mean() > 1e-3


@pytest.mark.parametrize("loss", [rkd_distances, rkd_angles])
def test_equal_texts_and_single_ones_have_finite_gradients(loss, pair):
    student, teacher = (x.float() for x in pair)
    student, teacher = student[[0, 0, 1, 2]].requires_grad_(), teacher[[0, 0, 1, 2]]
    values = loss(student, teacher)
    assert torch.isfinite(values).all() and torch.isfinite(torch.autograd.grad(values.sum(), student)[0]).all()
    alone = student[:1].detach().requires_grad_()
    values = loss(alone, teacher[:1])
    assert values.tolist() == [0.0] and torch.isfinite(torch.autograd.grad(values.sum(), alone)[0]).all()


def test_single_precision_is_close_to_double(pair):
    student, teacher = (torch.nn.functional.normalize(x, dim=-1) for x in pair)
    for loss in (rkd_distances, rkd_angles):
        torch.testing.assert_close(
            loss(student.float(), teacher.float()).double(), loss(student, teacher), atol=1e-6, rtol=1e-5
        )


@pytest.mark.parametrize(
    "loss", [rkd_distances, rkd_angles, lambda s, t: layer_relation_gaps(torch.stack([s, t[:, :4]]))]
)
def test_twice_differentiable(loss, pair):
    student, teacher = pair
    assert torch.autograd.gradcheck(lambda x: loss(x, teacher), student.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: loss(x, teacher), student)


def test_similarity_gaps_against_loops(pair):
    student, teacher = pair
    rows = range(len(student))
    expected = [
        sum(
            abs(cosine_similarity(student[i], student[j], dim=0) - cosine_similarity(teacher[i], teacher[j], dim=0))
            for j in rows
            if j != i
        )
        / (len(student) - 1)
        for i in rows
    ]
    torch.testing.assert_close(similarity_gaps(student, teacher), torch.stack(expected).float())
    turn = torch.linalg.qr(draw(torch.Generator().manual_seed(1), 5, 5))[0]
    assert similarity_gaps(teacher @ turn, teacher).max() < 1e-6
    assert similarity_gaps(student[:1], teacher[:1]).tolist() == [0.0]


def huber(gap: float) -> float:
    return 0.5 * gap**2 if abs(gap) <= 1 else abs(gap) - 0.5
