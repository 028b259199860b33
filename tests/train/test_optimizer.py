"""Muon and AdamW: which parameters each one trains, and that a step is that of torch's own two optimizers."""

from __future__ import annotations

import copy

import pytest
import torch
from loops import make_loop
from pydantic import ValidationError
from refusals import refused

from distilvec.config.training import TrainSection
from distilvec.train.optimizer import (
    MuonAndAdamW,
    build_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
    set_rate,
)

pytestmark = pytest.mark.usefixtures("shared_cache")
TRAIN = TrainSection(optimizer="muon", learning_rate=0.01, learning_rate_factors={"encoder.model.0.model.encoder": 2})


@pytest.fixture
def module(tiny_recipe, tmp_path):
    return make_loop(tiny_recipe(), tmp_path / "run").module


def gradients(module, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_a_step_is_that_of_both_optimizers_of_torch(module):
    other = copy.deepcopy(module)
    ours = build_optimizer(module, TRAIN)
    assert isinstance(ours, MuonAndAdamW)
    named = dict(other.named_parameters())
    matrices = {name for name, p in named.items() if p.ndim == 2 and "embeddings" not in name}
    assert 0 < len(matrices) < len(named)
    theirs = []
    for rate in (0.002, 0.004):  # of the whole, and of what the factor names
        names = [name for name in named if (".encoder.layer." in name) == (rate == 0.004)]
        both = [[named[name] for name in names if (name in matrices) == kind] for kind in (True, False)]
        settings = {"lr": rate, "weight_decay": TRAIN.weight_decay}
        theirs += [torch.optim.Muon(both[0], adjust_lr_fn="match_rms_adamw", **settings)] if both[0] else []
        theirs += [torch.optim.AdamW(both[1], **settings)]
    for step in range(3):
        set_rate(ours, 0.002)
        for optimizer, own in ((ours, module), *((one, other) for one in theirs)):
            gradients(own, step)
            optimizer.step()
    for name, value in module.named_parameters():
        torch.testing.assert_close(value, named[name], rtol=1e-5, atol=1e-7)
    entries = {key.rpartition("|")[2] for key in optimizer_tensors(ours, module) if key.split("|")[0] in matrices}
    assert entries == {"momentum_buffer"}


def test_adamw_alone_where_no_matrix_is_trained(module):
    only = TRAIN.model_copy(update={"trainable": ["encoder.model.0.model.embeddings"], "learning_rate_factors": {}})
    assert isinstance(build_optimizer(module, only), torch.optim.AdamW)


def test_muon_alone_where_only_matrices_are_trained(module):
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.ndim == 2)
    layers = TRAIN.model_copy(update={"trainable": ["encoder.model.0.model.encoder"]})
    made = build_optimizer(module, layers)
    assert isinstance(made, torch.optim.Muon) and len(made.param_groups) == 1
    gradients(module, 0)
    made.step()
    assert {key.rpartition("|")[2] for key in optimizer_tensors(made, module)} == {"momentum_buffer"}


def test_refusals(module, monkeypatch):
    with pytest.raises(ValidationError, match="Muon takes whole matrices"):
        TrainSection(optimizer="muon", shard=True)
    monkeypatch.delattr(torch.optim, "Muon")
    with refused("train.optimizer", "torch 2.9"):
        build_optimizer(module, TRAIN)


def test_restored_counts_of_steps_are_where_their_parameters_are():
    module = torch.nn.Linear(2, 2, device="meta")
    optimizer = torch.optim.AdamW(module.parameters())
    load_optimizer_tensors(optimizer, module, {"weight|step": torch.tensor(3.0)})
    assert optimizer.state[module.weight]["step"].device.type == "meta"
