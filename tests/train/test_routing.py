"""The monitor of gates: its metrics against loops, each kind of collapse, healthy gates, small batches, one warning a
run.
"""

from __future__ import annotations

import math

import pytest
import torch
from contexts import DEFAULT
from loops import make_loop, stop_after
from safetensors.torch import load_file

from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.report.write import warnings
from distilvec.train.metrics import read_metrics
from distilvec.train.monitors import (
    APART,
    ONE,
    UNIFORM,
    UNIFORM_AFTER,
    GateMonitor,
    gate_statistics,
    take_snapshot,
    with_gates,
)

pytestmark = pytest.mark.usefixtures("shared_cache")

EXPERTS = {"student__experts": {"count": 3, "width": 16}}


def snapshot(gates: torch.Tensor | None, ids: torch.Tensor | None = None):
    rows = 32 if gates is None else len(gates)
    ids = torch.arange(rows)[:, None] if ids is None else ids
    batch = TextBatch(torch.arange(rows), {"input_ids": ids}, torch.zeros(rows, dtype=torch.long))
    return take_snapshot(batch, ModelOutputs(gates=gates), ModelOutputs())


def drawn(rows: int = 64, experts: int = 3, logits: tuple[float, ...] = (), spread: float = 1.0) -> torch.Tensor:
    torch.manual_seed(0)
    middle = torch.tensor(logits) if logits else torch.zeros(experts)
    return torch.softmax(middle + spread * torch.randn(rows, len(middle)), dim=-1)


def judge(monitor: GateMonitor, gates: torch.Tensor | None, step: int, ids: torch.Tensor | None = None):
    return monitor.observe(snapshot(gates, ids), step), monitor.warning() or None


def test_metrics_against_plain_loops():
    gates = drawn(7, spread=2.5)
    rows = gates.double().tolist()
    means = [sum(row[k] for row in rows) / 7 for k in range(3)]
    entropy = sum(-p * math.log(p) for row in rows for p in row) / 7 / math.log(3)
    spread = sum(math.sqrt(sum((row[k] - means[k]) ** 2 for row in rows) / 7) for k in range(3)) / 3
    decided = sum(max(row) > 0.9 for row in rows) / 7
    found_means, found = gate_statistics(gates)
    assert found_means == pytest.approx(means) and decided > 0
    assert found == pytest.approx({"entropy": entropy, "decided": decided, "spread": spread})
    _, one_hot = gate_statistics(torch.eye(3).repeat(4, 1))
    assert (one_hot["entropy"], one_hot["decided"]) == (0, 1)
    assert gate_statistics(torch.full((9, 3), 1 / 3))[1]["entropy"] == pytest.approx(1)


def test_collapse_to_one_expert_is_named_at_once_and_once():
    monitor, one = GateMonitor(steps=1000), drawn(logits=(0.0, 6.0, 0.0))
    metrics, warning = judge(monitor, one, 10)
    assert metrics["gate_2"] > ONE and metrics["gate_decided"] > 0.9
    assert "Routing collapsed: expert 2 " in warning and f"{metrics['gate_2']:.3f}" in warning
    for option in ("beta", "floor", "facets"):
        assert f"[method.options.{option}]" in warning
    metrics, warning = judge(monitor, one, 20)
    assert metrics["gate_2"] > ONE and warning is None and monitor.warned


def test_experts_that_are_never_used_are_named():
    assert "from 1: [2, 4]" in judge(GateMonitor(100), drawn(logits=(3.0, -3.0, 3.0, -4.0)), 50)[1]
    assert judge(GateMonitor(100), drawn(logits=(3.0, 3.0, 3.0, -4.0)), 50)[1] is None, "one of four is no collapse"


def test_uniform_is_judged_only_after_a_share_of_the_training():
    equal = drawn(spread=0.01)
    monitor, early = GateMonitor(100), int(100 * UNIFORM_AFTER) - 1
    metrics, warning = judge(monitor, equal, early)
    assert metrics["gate_entropy"] > UNIFORM and metrics["gate_spread"] < APART and warning is None
    warning = judge(monitor, equal, early + 1)[1]
    assert "nearly equal gates" in warning and "[method.options.beta]" in warning


@pytest.mark.parametrize(
    "gates",
    [
        drawn(),
        drawn(spread=0.1),  # about as far apart as a gate is drawn at random
        drawn(spread=30.0),  # one expert a text, but each text its own
        drawn(logits=(1.0, 0.0, -1.5)),
        torch.full((64, 1), 1.0),
    ],
)
def test_healthy_gates(gates):
    assert judge(GateMonitor(100), gates, 100)[1] is None


def test_small_batches_are_judged_together():
    monitor, one = GateMonitor(100), drawn(logits=(0.0, 6.0, 0.0))
    found = [judge(monitor, one[4 * number : 4 * number + 4], 10 + number) for number in range(2)]
    assert [bool(warning) for _, warning in found] == [False, True] and all("gate_1" in metrics for metrics, _ in found)
    mixed = GateMonitor(100)  # single batches would warn: each is another expert's
    assert not any(judge(mixed, torch.eye(3)[number].repeat(4, 1), 50)[1] for number in range(3))
    assert judge(mixed, drawn(60), 60)[1] is None and len(mixed.state["gates"]) == 64


def test_what_is_not_judged():
    monitor, one = GateMonitor(100), drawn(logits=(0.0, 6.0, 0.0))
    assert judge(monitor, None, 50) == ({}, None), "a student without experts"
    assert judge(monitor, torch.ones(32, 1), 50) == ({}, None), "one expert"
    same = torch.zeros(64, 3, dtype=torch.long)
    same[:6, 0] = torch.arange(6)  # six texts, one of them many times
    metrics, warning = judge(monitor, one, 50, ids=same)
    assert metrics["gate_2"] > ONE and warning is None and not monitor.warned


def test_gates_are_asked_for_only_where_the_experts_run():
    assert with_gates(OutputSpec(embedding=True), experts=3).experts
    assert with_gates(OutputSpec(vector=True), experts=3).experts
    assert not with_gates(OutputSpec(embedding=True), experts=0).experts
    assert not with_gates(OutputSpec(hidden_layers=(-1,)), experts=3).experts


class Pressed(Objective):
    """Sends everything to the last expert."""

    def __init__(self) -> None:
        super().__init__(DEFAULT, {}, {"pressed": 1.0})
        self.student_outputs = OutputSpec(embedding=True, experts=True)

    def forward(self, batch, student, teacher):
        return {"pressed": 1 - student.gates[:, -1] + 1e-3 * student.embedding.square().sum(-1)}


def test_a_run_warns_once_even_if_it_is_resumed(tiny_recipe, tmp_path, capsys):
    recipe = tiny_recipe(
        **EXPERTS, student__dropout=0.0, train__learning_rate=1e-2, train__epochs=4, train__logging_steps=3
    )
    folder = tmp_path / "run"
    stop_after(make_loop(recipe, folder, Pressed()), 27).run()
    lines = read_metrics(RunFolder(folder).metrics)
    assert (
        max(line.get("train/gate_3", 0) for line in lines) > ONE
        and len([line for line in lines if "train/gate_1" in line]) == 9
    )
    assert [line["kind"] for line in lines if "warning" in line].count("routing") == 1
    assert make_loop(recipe, folder, Pressed()).run().finished
    found = [line for line in warnings(RunFolder(folder)) if line["kind"] == "routing"]
    assert len(found) == 1
    assert capsys.readouterr().err.count("Routing collapsed") == 1


def test_monitoring_changes_no_weight(tiny_recipe, tmp_path):
    """The recipe's own method does not ask for gates; they are read in passes with a snapshot alone."""
    for often in (1, 50):
        recipe = tiny_recipe(**EXPERTS, train__max_steps=4, train__logging_steps=often)
        loop = make_loop(recipe, tmp_path / str(often))
        loop.run()
        lines = [line for line in read_metrics(loop.folder.metrics) if "train/loss" in line]
        assert len(lines) == (4 if often == 1 else 1) and all("train/gate_3" in line for line in lines)
    one, other = (
        load_file(next(RunFolder(tmp_path / name).checkpoint.parent.glob("*.safetensors"))) for name in ("1", "50")
    )
    names = {
        name for name in one if not name.startswith("loop/")
    }  # what the loop has in memory depends on how often it looks
    assert names == {name for name in other if not name.startswith("loop/")} and all(
        torch.equal(one[name], other[name]) for name in names
    )
