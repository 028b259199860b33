"""Weights that wait in a file: the same values, no file left behind, nothing shared with the model they come from."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from distilvec.models.weights import load_mapped, map_weights


class Tied(nn.Module):
    """Weights of several types, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 5)
        self.low = nn.Linear(3, 5, bias=False, dtype=torch.bfloat16)
        self.reader = nn.Linear(5, 7, bias=False)
        self.reader.weight = self.table.weight


def resident(model: nn.Module) -> int:
    """Return in how many of the model's weights a file lies below, by the maps of this process."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = [line.split()[0] for line in maps if "(deleted)" in line]
    ranges = [tuple(int(end, 16) for end in one.split("-")) for one in files]
    return sum(any(low <= weight.data_ptr() < high for low, high in ranges) for weight in model.parameters())


def test_mapped_weights_have_their_values_and_leave_no_file(tmp_path):
    model = Tied()
    waiting = copy.deepcopy(model)
    map_weights(waiting, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert resident(waiting) == len(list(waiting.parameters())) and resident(model) == 0
    assert waiting.reader.weight is waiting.table.weight
    for name, weight in model.named_parameters():
        assert torch.equal(weight, waiting.get_parameter(name))


def test_a_change_of_one_model_is_none_of_the_other(tmp_path):
    model = Tied()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    map_weights(model, tmp_path)
    trained = copy.deepcopy(model)
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(1)
        model.table.weight[0] += 2
    assert torch.equal(model.low.weight, before["low.weight"])
    assert torch.equal(model.table.weight[1:], before["table.weight"][1:])
    load_mapped(model)
    assert resident(model) == 0 and torch.equal(model.low.weight, before["low.weight"])


@pytest.mark.parametrize("model", [nn.Identity(), nn.Embedding(0, 4)], ids=["without weights", "with an empty weight"])
def test_models_with_nothing_to_map(model, tmp_path):
    map_weights(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room_keeps_the_weights_in_memory(tmp_path):
    model = Tied()
    before = model.low.weight.clone()
    map_weights(model, tmp_path / "missing")
    assert resident(model) == 0 and torch.equal(model.low.weight, before)
