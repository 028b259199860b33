"""Distances against the check values of LEAF (seed 19) and their behaviour at the edges."""

import pytest
import torch
import torch.nn.functional as F

from distilvec.losses.distance import DISTANCES, cosine_distance, distances, l2_distance, mean_squared_error


@pytest.fixture
def vectors():
    generator = torch.Generator().manual_seed(19)
    student, teacher = (
        F.normalize(torch.randn(4, 6, generator=generator, dtype=torch.float64), dim=-1) for _ in range(2)
    )
    return student, teacher


@pytest.mark.parametrize(
    ("distance", "expected"),
    [(l2_distance, 1.5534037827), (mean_squared_error, 0.4054713420), (cosine_distance, 1.2164140263)],
)
def test_check_values(vectors, distance, expected):
    assert distance(*vectors).mean().item() == pytest.approx(expected, abs=1e-6)


def test_mean_squared_l2_check_value(vectors):
    assert l2_distance(*vectors).square().mean().item() == pytest.approx(2.4328280525, abs=1e-6)


def test_l2_is_the_root_of_two_minus_twice_the_cosine_for_unit_vectors(vectors):
    cosine = 1 - cosine_distance(*vectors)
    torch.testing.assert_close(l2_distance(*vectors), (2 - 2 * cosine).sqrt(), atol=1e-6, rtol=0)


def test_l2_agrees_with_the_paper_written_as_a_loop(vectors):
    student, teacher = vectors
    loop = [
        sum((a - b) ** 2 for a, b in zip(y, z, strict=True)) ** 0.5
        for y, z in zip(student.tolist(), teacher.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        l2_distance(student, teacher), torch.tensor(loop, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_l2_gradient_has_unit_length_and_is_zero_at_equal_vectors():
    teacher = F.normalize(torch.randn(3, 8), dim=-1)
    student = teacher + torch.tensor([[0.3], [1e-3], [0.0]]) * torch.ones(8)
    student.requires_grad_()
    l2_distance(student, teacher).sum().backward()
    torch.testing.assert_close(student.grad.norm(dim=-1), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_cosine_distance_is_two_for_opposite_vectors():
    x = torch.randn(2, 5)
    torch.testing.assert_close(cosine_distance(x, -3 * x), torch.full((2,), 2.0))


def test_half_precision_inputs_are_compared_in_float32():
    x = torch.randn(2, 64)
    assert l2_distance(x.bfloat16(), x.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(("name", "distance"), DISTANCES.items())
def test_agrees_with_the_loss_of_sentence_transformers(name, distance):
    """Values and gradients of EmbedDistillLoss, which is given the student's vectors in the place of texts."""
    from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

    student, teacher = torch.randn(6, 9, requires_grad=True), torch.randn(6, 9)
    loss = EmbedDistillLoss(torch.nn.Module(), distance_metric=name)
    expected = loss.compute_loss_from_embeddings([student], [teacher])
    value = distance(student, teacher).mean()
    torch.testing.assert_close(value, expected)
    (gradient,) = torch.autograd.grad(value, student)
    (expected_gradient,) = torch.autograd.grad(expected, student)
    torch.testing.assert_close(gradient, expected_gradient)


def test_distances_reports_both_without_gradient():
    x = torch.randn(3, 4, requires_grad=True)
    found = distances(x, x.detach() * 2)
    assert set(found) == {"distance", "cosine"} and not found["distance"].requires_grad
    torch.testing.assert_close(found["cosine"], torch.ones(3))


def test_the_cosine_distance_keeps_float64():
    student, teacher = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    expected = [1 - float(a @ b / (a.norm() * b.norm())) for a, b in zip(student, teacher, strict=True)]
    assert cosine_distance(student, teacher).tolist() == pytest.approx(expected, abs=1e-14)
    assert cosine_distance(student.half(), teacher.half()).dtype == torch.float32
