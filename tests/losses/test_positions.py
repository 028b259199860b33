"""Student and teacher tokens at the same positions, on whatever side either was padded."""

from __future__ import annotations

import torch

from distilvec.losses.tokens import from_first_token, shared_mask, token_mean

RIGHT = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
LEFT = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()


def test_both_sides_of_padding_lay_out_alike():
    values = torch.arange(24.0).view(3, 4, 2)
    left = torch.full((3, 5, 2), torch.nan)
    left[0, 2:], left[1, 3:] = values[0, :3], values[1, :2]
    mask = shared_mask(RIGHT, LEFT)
    assert mask.tolist() == RIGHT.tolist()
    expected = values * RIGHT[..., None]
    torch.testing.assert_close(from_first_token(values, RIGHT, 4), expected)
    torch.testing.assert_close(from_first_token(left, LEFT, 4), expected)
    by_head = torch.stack([left, 2 * left], 1)
    torch.testing.assert_close(from_first_token(by_head, LEFT, 4), torch.stack([expected, 2 * expected], 1))


def test_the_shorter_text_sets_the_shared_positions():
    short = torch.tensor([[1, 1], [1, 0], [0, 0]]).bool()
    assert shared_mask(short, LEFT).tolist() == short.tolist() == shared_mask(LEFT, short).tolist()
    assert from_first_token(torch.ones(3, 5, 2), LEFT, 2).shape == (3, 2, 2)


def test_no_gradient_reaches_padding_and_precision_is_at_least_single():
    values = torch.full((3, 5, 2), torch.nan)
    values[LEFT] = 1.0
    values.requires_grad_()
    from_first_token(values, LEFT, 5).square().sum().backward()
    torch.testing.assert_close(values.grad, 2.0 * LEFT[..., None].expand(3, 5, 2))
    assert from_first_token(torch.ones(3, 5, 2, dtype=torch.bfloat16), LEFT, 5).dtype == torch.float32
    assert from_first_token(torch.ones(3, 5, 2, dtype=torch.float64), LEFT, 5).dtype == torch.float64


def test_token_mean_leaves_padding_out():
    values = torch.tensor([[1.0, 2.0, 6.0, 100.0], [1.0, 2.0, 100.0, 100.0], [7.0, 7.0, 7.0, 7.0]])
    assert token_mean(values, RIGHT).tolist() == [3.0, 1.5, 0.0]
