"""TinyBERT's and DistilBERT's terms: loops by text, head and token from the paper, padding, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from distilvec.losses.hidden_states import hidden_gap, score_gap, token_cosine_distance, uniform_map

LENGTHS = (4, 2, 0)
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


STATES = (draw(1, 3, 4, 5), draw(2, 3, 4, 5))
SCORES = (draw(3, 3, 2, 4, 4), draw(4, 3, 2, 4, 4))
CASES = [(hidden_gap, *STATES), (score_gap, *SCORES), (token_cosine_distance, *STATES)]


@pytest.mark.parametrize(
    ("student", "teacher", "expected"),
    [(3, 6, {0: 0, 1: 2, 2: 4, 3: 6}), (6, 12, {layer: 2 * layer for layer in range(7)}), (2, 2, {0: 0, 1: 1, 2: 2})],
)
def test_the_uniform_map_begins_with_the_embeddings_and_ends_with_the_last_layer(student, teacher, expected):
    assert uniform_map(student, teacher) == expected


def test_hidden_gap_against_loops():
    student, teacher = STATES
    expected = [
        sum((float(student[b, t, d]) - float(teacher[b, t, d])) ** 2 for t in range(n) for d in range(5))
        / (5 * max(n, 1))
        for b, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(hidden_gap(student, teacher, MASK), torch.tensor(expected, dtype=torch.float64))


def test_score_gap_against_loops():
    student, teacher = SCORES
    expected = [
        sum(
            (float(student[b, h, i, j]) - float(teacher[b, h, i, j])) ** 2
            for h in range(2)
            for i in range(n)
            for j in range(n)
        )
        / (2 * max(n, 1) ** 2)
        for b, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(score_gap(student, teacher, MASK), torch.tensor(expected, dtype=torch.float64))


def test_token_cosine_distance_against_loops():
    student, teacher = (x.tolist() for x in STATES)

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    expected = [
        sum(1 - cosine(student[b][t], teacher[b][t]) for t in range(n)) / max(n, 1) for b, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(token_cosine_distance(*STATES, MASK), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("loss", "student", "teacher"), CASES)
def test_padding_changes_neither_value_nor_gradient(loss, student, teacher):
    student = student.clone().requires_grad_()
    values = loss(student, teacher, MASK)
    gradient = torch.autograd.grad(values.sum(), student)[0]
    assert values[2] == 0 and torch.isfinite(gradient).all() and gradient[0].abs().min() > 0
    assert not gradient[1, ..., 2:, :].any() and not gradient[2].any()
    other = student.detach().clone()
    other[1, ..., 2:, :], other[2] = 100.0, -100.0
    other.requires_grad_()
    changed = loss(other, teacher, MASK)
    torch.testing.assert_close(changed, values)
    torch.testing.assert_close(torch.autograd.grad(changed.sum(), other)[0], gradient)


@pytest.mark.parametrize(("loss", "student", "teacher"), CASES)
def test_gradient_is_the_derivative_and_zero_where_equal(loss, student, teacher):
    assert torch.autograd.gradcheck(lambda x: loss(x, teacher, MASK), student.clone().requires_grad_())
    same = teacher.clone().requires_grad_()
    values = loss(same, teacher, MASK)
    assert values.abs().max() < 1e-12
    assert torch.autograd.grad(values.sum(), same)[0].abs().max() < 1e-12


def test_a_zero_vector_has_a_finite_gradient():
    student = STATES[0].float().clone()
    student[0, 1] = 0
    student.requires_grad_()
    values = token_cosine_distance(student, STATES[1].float(), MASK)
    assert torch.isfinite(values).all() and torch.isfinite(torch.autograd.grad(values.sum(), student)[0]).all()
