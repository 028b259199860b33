"""InfoNCE: the check values, a plain loop, further negatives."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from distilvec.losses.contrastive import info_nce


@pytest.fixture
def views():
    generator = torch.Generator().manual_seed(5)
    first, second = (torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    assert first[0, 0].item() == pytest.approx(-0.4867807507, abs=1e-9)
    return first, second


@pytest.mark.parametrize(("temperature", "expected"), [(0.05, 6.7589653595), (0.1, 3.5901018189)])
def test_check_values(views, temperature, expected):
    assert info_nce(*views, temperature).mean().item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("extra", [0, 3])
def test_is_equation_6_row_by_row(views, extra):
    first, second = views
    negatives = torch.randn(extra, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    candidates = [*second, *negatives]
    expected = []
    for i, anchor in enumerate(first):
        scores = [math.exp(cosine_similarity(anchor, other, dim=0).item() / 0.1) for other in candidates]
        expected.append(-math.log(scores[i] / sum(scores)))
    found = info_nce(first, second, 0.1, negatives if extra else None)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_a_perfect_match_among_far_texts_costs_nothing_and_scale_does_not_matter(views):
    unit = torch.eye(4)
    assert info_nce(unit, 7 * unit, 0.05).max() < 1e-6
    torch.testing.assert_close(info_nce(3 * views[0], views[1], 0.1), info_nce(*views, 0.1))


def test_twice_differentiable(views):
    first, second = (view.requires_grad_() for view in views)
    assert torch.autograd.gradgradcheck(lambda a, b: info_nce(a, b, 0.5), (first, second))
