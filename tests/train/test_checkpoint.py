"""Checkpoints notice damage before a weight changes, and appear whole."""

from __future__ import annotations

import json
import random

import pytest
import torch
from contexts import DEFAULT
from loops import make_loop
from refusals import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from distilvec.core.errors import DistilvecError, Interrupted
from distilvec.core.objective import Objective
from distilvec.core.run_folder import RunFolder
from distilvec.train import checkpoint
from distilvec.train.checkpoint import (
    SEALED,
    Progress,
    load_checkpoint,
    load_objective,
    read_checkpoint,
    read_tensors,
    save_checkpoint,
    save_objective,
    write_tensors,
)
from distilvec.train.trainer import TrainingHooks
from distilvec.train.update import all_finite

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a small module after two steps of AdamW, and what was saved."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for _ in range(2):
        module(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
    path = RunFolder(tmp_path).checkpoint
    save_checkpoint(path, module, optimizer, Progress(step=2), "mark", {"window/since": torch.zeros(3)})
    return path, module, optimizer


def fresh():
    module = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5))
    return module, torch.optim.AdamW(module.parameters(), lr=0.1)


def rewrite(path, change):
    """Write the same file with other metadata, as another program would."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata=change(metadata))


def test_comes_back_as_it_was(saved):
    path, module, _ = saved
    other, optimizer = fresh()
    state, memory = load_checkpoint(path, other, optimizer, "mark")
    assert state == Progress(step=2) and list(memory) == ["window/since"]
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in module.state_dict().items())
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


class Tied(nn.Module):
    """One parameter under two names, as the table of T5."""

    def __init__(self):
        super().__init__()
        self.table, self.reader = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
        self.reader.weight = self.table.weight


def test_a_weight_of_two_names_comes_back_as_one(tmp_path):
    path = RunFolder(tmp_path).checkpoint
    saved, restored = Tied(), Tied()
    save_checkpoint(path, saved, torch.optim.AdamW(saved.parameters()), Progress(step=1), "mark", {})
    load_checkpoint(path, restored, torch.optim.AdamW(restored.parameters()), "mark")
    assert torch.equal(restored.table.weight, saved.table.weight)
    assert restored.reader.weight is restored.table.weight


def test_every_flipped_bit_is_noticed_before_a_weight_changes(saved):
    path, *_ = saved
    good, draw = path.read_bytes(), random.Random(0)
    header = 8 + int.from_bytes(good[:8], "little")
    places = [*range(0, header, 17), *(draw.randrange(header, len(good)) for _ in range(150))]
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        module, optimizer = fresh()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        with pytest.raises(DistilvecError, match=r"^\[checkpoint\] .* is damaged .*"):
            load_checkpoint(path, module, optimizer, "mark")
        assert (
            all(torch.equal(value, before[name]) for name, value in module.state_dict().items()) and not optimizer.state
        )


def test_the_seal_is_checked_even_where_no_tensor_is_read(saved):
    path, *_ = saved
    assert read_checkpoint(path, "mark", ())[1].step == 2
    rewrite(path, lambda metadata: {**metadata, "progress": metadata["progress"].replace('"step": 2', '"step": 3')})
    with pytest.raises(DistilvecError, match=r"^\[checkpoint\] .*damaged"):
        read_checkpoint(path, "mark", ())


@pytest.mark.parametrize("size", [0, 5, 100, 900])
def test_cut_off(saved, size):
    path, *_ = saved
    path.write_bytes(path.read_bytes()[:size])
    with refused("checkpoint", "from step 0."):
        read_checkpoint(path, "mark")


@pytest.mark.parametrize("kept", [("progress", "fingerprint"), ()])
def test_one_without_a_seal_is_refused(saved, kept):
    path, *_ = saved
    rewrite(path, lambda metadata: {name: metadata[name] for name in kept})
    with refused("checkpoint", "damaged"):
        read_checkpoint(path, "mark")


def test_one_of_another_recipe_is_refused(saved):
    path, *_ = saved
    with pytest.raises(DistilvecError, match=r"^\[checkpoint\] .* belongs to another recipe"):
        read_checkpoint(path, "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: {name: fields[name] for name in fields if name != "tokens"}, "another version of distilvec"),
        (lambda fields: {**fields, "moon": 1}, "another version of distilvec.*moon"),
        (lambda fields: [1, 2], "another version of distilvec"),
        (lambda fields: {**fields, "step": "two"}, "is damaged"),
    ],
    ids=["missing", "unknown", "no mapping", "wrong type"],
)
def test_other_progress(saved, change, message):
    path, *_ = saved
    tensors, metadata = read_tensors(path, "Fix.")
    progress = json.dumps(change(json.loads(metadata["progress"])))
    write_tensors(path, tensors, {"fingerprint": "mark", "progress": progress})
    with pytest.raises(DistilvecError, match=rf"^\[checkpoint\] .*{message}"):
        read_checkpoint(path, "mark", ())


def test_tensors_that_do_not_fit_the_student(saved):
    path, *_ = saved
    module = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4))
    with refused("checkpoint", "does not fit"):
        load_checkpoint(path, module, torch.optim.AdamW(module.parameters()), "mark")


def test_leaving_in_the_middle_of_a_save_keeps_the_file_before(saved, monkeypatch):
    path, module, optimizer = saved
    before = path.read_bytes()

    def interrupted(contents, file, **others):
        file.write_bytes(b"half")
        raise Interrupted(15)

    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(Interrupted):
        save_checkpoint(path, module, optimizer, Progress(step=3), "mark", {})
    assert path.read_bytes() == before and [entry.name for entry in path.parent.iterdir()] == [path.name]


class Scaled(Objective):
    """An objective with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__(DEFAULT, {}, {"x": 1.0})
        self.scale = nn.Parameter(torch.full((40,), 2.0))


def test_the_objectives_file_notices_damage_too(tmp_path):
    path, objective = RunFolder(tmp_path).objective("last"), Scaled()
    save_objective(path, objective)
    load_objective(path, Scaled())
    damaged = bytearray(path.read_bytes())
    damaged[-7] ^= 4
    path.write_bytes(damaged)
    with refused("last.objective.safetensors", "--restart"):
        load_objective(path, objective)


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(0),
        torch.tensor(3),
        torch.ones(2, 3, dtype=torch.bfloat16).T,
        torch.tensor([True, False]),
        torch.eye(3)[:, 1],
    ],
)
def test_every_kind_of_tensor(tmp_path, value):
    write_tensors(tmp_path / "file.safetensors", {"value": value}, {})
    (found,) = read_tensors(tmp_path / "file.safetensors", "Fix.")[0].values()
    assert torch.equal(found, value) and found.dtype == value.dtype
    with safe_open(tmp_path / "file.safetensors", framework="pt") as file:
        assert list(file.metadata()) == [SEALED]


def test_finite():
    assert all_finite([]) and all_finite([torch.ones(3), torch.zeros(0)])
    assert all_finite([torch.full((4,), 3e38)]), "a sum may overflow where no number does"
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not all_finite([torch.ones(3), torch.tensor([1.0, bad])])
    assert not all_finite([torch.tensor([float("inf"), -float("inf")])])


@pytest.mark.parametrize("where", ["weight", "optimiser"])
def test_nothing_is_saved_from_weights_that_are_not_finite(tiny_recipe, tmp_path, where):
    """A weight or the optimiser's state breaks in a step after a checkpoint; the losses up to there are finite."""
    changes = {"train__epochs": 3, "train__logging_steps": 1000, "train__keep_students": 30}
    loop = make_loop(tiny_recipe(**changes, train__checkpoint_steps=11), tmp_path / "run")
    saves, one = [], loop._step
    loop.hooks = TrainingHooks(save=lambda name: saves.append(loop.state.step))

    def step(batches, index):
        one(batches, index)
        if loop.state.step == 15:
            parameter = next(iter(loop.module.parameters()))
            value = parameter.data if where == "weight" else loop.optimizer.state[parameter]["exp_avg_sq"]
            value.view(-1)[-1] = float("inf")

    loop._step = step
    with refused("train", "after step 16."):
        loop.run()
    assert max(saves) <= 15 and read_checkpoint(loop.checkpoint, "mark", ())[1].step == 11
    assert all_finite(load_file(loop.checkpoint).values())
