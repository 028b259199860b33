"""Ridge regression: numpy's solution, predictions without a row, the prior, and a bias chosen on rows held out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distilvec.students.regression import STRENGTHS, affine, mean_distance, ridge


def rows(count, inner, outer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, inner, generator=generator)
    return inputs, inputs @ torch.randn(inner, outer, generator=generator) + torch.randn(
        count, outer, generator=generator
    )


def solved(x, y, penalty, keeps):
    """The normal equations, by numpy."""
    prior = np.eye(x.shape[1]) if keeps else np.zeros((x.shape[1], y.shape[1]))
    return np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y + penalty * prior).T


@pytest.mark.parametrize(("inner", "outer", "keeps"), [(6, 9, False), (6, 6, True)])
def test_equals_numpy_and_leaves_one_out(inner, outer, keeps):
    inputs, targets = rows(40, inner, outer)
    targets = inputs + 0.3 * targets if keeps else targets
    found = ridge(inputs, targets)
    x, y = inputs.double().numpy(), targets.double().numpy()
    assert found.keeps is keeps
    np.testing.assert_allclose(found.weight, solved(x, y, found.penalty, keeps), atol=1e-5)
    others = [np.arange(40) != row for row in range(40)]
    expected = [solved(x[kept], y[kept], found.penalty, keeps) @ x[row] for row, kept in enumerate(others)]
    np.testing.assert_allclose(found.predicted, np.stack(expected), atol=1e-5)
    assert found.distance == pytest.approx(mean_distance(torch.tensor(np.stack(expected)), targets.double()))


def test_the_penalty_is_the_one_of_least_distance():
    inputs, targets = rows(30, 12, 5)
    inputs = inputs * torch.logspace(0, -2, 12)  # small directions are mostly noise
    found, x, y = ridge(inputs, targets), inputs.double().numpy(), targets.double()
    mean, distances = float(np.trace(x.T @ x)) / 12, []
    for strength in STRENGTHS:
        others = [np.arange(30) != row for row in range(30)]
        predicted = [
            solved(x[kept], y.numpy()[kept], strength * mean, False) @ x[row] for row, kept in enumerate(others)
        ]
        distances.append(mean_distance(torch.tensor(np.stack(predicted)), y))
    assert found.distance == pytest.approx(min(distances))
    assert found.penalty == pytest.approx(STRENGTHS[int(np.argmin(distances))] * mean)


def test_equal_vectors_keep_the_identity():
    inputs, _ = rows(6, 8, 8)  # fewer rows than dimensions
    found = ridge(inputs, inputs)
    assert found.keeps and torch.allclose(found.weight, torch.eye(8, dtype=torch.float64))


@pytest.mark.parametrize("outer", [8, 3])
def test_vectors_that_are_cut_keep_the_first_dimensions(outer):
    """A cut vector has length 1 again: no linear layer gives that, and the first dimensions give its direction."""
    inputs = torch.nn.functional.normalize(rows(60, 8, 8)[0], dim=-1)
    targets = torch.nn.functional.normalize(inputs[:, :outer], dim=-1)
    found = ridge(inputs, targets)
    assert found.keeps and found.distance < 1e-6
    torch.testing.assert_close(found.weight, torch.eye(outer, 8, dtype=torch.float64))


def test_a_prior_that_does_not_fit_is_not_kept():
    inputs, targets = rows(40, 8, 3)
    assert not ridge(inputs, targets).keeps


def test_a_bias_and_the_strength_of_least_distance_on_rows_held_out():
    inputs, targets = rows(50, 6, 9)
    inputs, targets = inputs + 2, targets + 5 * torch.arange(9)
    found = affine(inputs[:30], targets[:30], inputs[30:], targets[30:])
    x, y = inputs.double().numpy(), targets.double().numpy()
    with_ones = np.hstack([x[:30], np.ones((30, 1))])
    variance = x[:30].var(0).sum() * 30 / 6
    expected = {}
    for strength in STRENGTHS:
        penalty = np.diag([strength * variance] * 6 + [0])  # the bias is free
        solution = np.linalg.solve(with_ones.T @ with_ones + penalty, with_ones.T @ y[:30])
        predicted = torch.tensor(x[30:] @ solution[:6] + solution[6])
        expected[mean_distance(predicted, torch.tensor(y[30:]))] = solution
    best = min(expected)
    assert found.distance == pytest.approx(best) and len(expected) == len(STRENGTHS)
    np.testing.assert_allclose(found.weight, expected[best][:6].T, atol=1e-6)
    np.testing.assert_allclose(found.bias, expected[best][6], atol=1e-6)


def test_vectors_that_are_cut_need_no_bias():
    inputs = torch.nn.functional.normalize(rows(60, 8, 8)[0], dim=-1)
    targets = torch.nn.functional.normalize(inputs[:, :3], dim=-1)
    found = affine(inputs[:40], targets[:40], inputs[40:], targets[40:])
    assert found.distance < 1e-6 and not found.bias.any()
    torch.testing.assert_close(found.weight, torch.eye(3, 8, dtype=torch.float64))
