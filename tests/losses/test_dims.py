"""The mean of a distance over first dimensions: values by hand."""

from __future__ import annotations

import math

import pytest
import torch

from distilvec.losses.distance import cosine_distance, l2_distance, mean_over_dims

Y = torch.tensor([[0.6, 0.0, 0.8, 0.0], [0.5, 0.5, 0.5, 0.5]])
Y_HAT = torch.tensor([[0.0, 0.6, 0.0, 0.8], [0.5, 0.5, -0.5, 0.5]])


def test_cuts_have_length_1_again():
    # Row 1: orthogonal in both cuts. Row 2: equal in two dimensions; the whole differs by 1 in one number.
    values = mean_over_dims(l2_distance, Y, Y_HAT, (4, 2), unit=True)
    expected = [(math.sqrt(2) + math.sqrt(2)) / 2, (1 + 1e-6) / 2]
    assert values.tolist() == pytest.approx(expected, abs=1e-6)


def test_cuts_of_other_vectors_keep_their_length():
    values = mean_over_dims(l2_distance, 2 * Y, 2 * Y_HAT, (4, 2), unit=False)
    first = (math.sqrt(4 * (0.36 + 0.36 + 0.64 + 0.64)) + math.sqrt(4 * (0.36 + 0.36))) / 2
    assert values.tolist() == pytest.approx([first, (2 + 1e-6) / 2], abs=1e-6)


def test_the_whole_vector_alone_is_the_distance_itself():
    for unit in (True, False):
        assert torch.equal(mean_over_dims(cosine_distance, Y, Y_HAT, (4,), unit), cosine_distance(Y, Y_HAT))
