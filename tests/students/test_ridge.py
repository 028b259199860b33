"""Ridge regression: numpy's solution, predictions without a row, and the prior."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distilvec.students.regression import STRENGTHS, mean_distance, ridge


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
