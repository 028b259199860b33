"""The cheap masks drop at the right rate, independently, repeatably, and with the right gradient."""

import pytest
import torch
from torch import nn

from distilvec.students.dropout import FastDropout, dropout, install_fast_dropout


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.03])
def test_rate_and_scale(rate):
    torch.manual_seed(0)
    out = dropout(torch.ones(1000, 1001), rate)
    assert (out == 0).float().mean().item() == pytest.approx(rate, abs=0.002)
    torch.testing.assert_close(out.max(), torch.tensor(1 / (1 - rate)), atol=1e-4, rtol=0)
    assert out.mean().item() == pytest.approx(1.0, abs=0.003)


def test_neighbours_are_independent():
    torch.manual_seed(1)
    kept = (dropout(torch.ones(400_000), 0.5) != 0).float() - 0.5
    for lag in (1, 2, 3, 4, 8):
        assert abs((kept[lag:] * kept[:-lag]).mean().item() * 4) < 0.01


def test_same_seed_same_mask_and_gradient_follows_it():
    x = torch.randn(7, 5, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.4))
    first.sum().backward()
    assert torch.equal(x.grad, (first / x).detach().nan_to_num()) or torch.allclose(
        x.grad, first.detach() / x.detach(), atol=1e-5
    )


def test_off_in_evaluation_and_at_rate_zero():
    x = torch.randn(3, 3)
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0.0) is x


def test_installs_everywhere_and_keeps_the_state_dict():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.2)))
    before = list(model.state_dict())
    install_fast_dropout(model)
    assert isinstance(model[1], FastDropout) and isinstance(model[2][0], FastDropout) and model[2][0].p == 0.2
    assert list(model.state_dict()) == before


def test_keeps_bfloat16():
    assert dropout(torch.ones(10, dtype=torch.bfloat16), 0.5).dtype == torch.bfloat16
