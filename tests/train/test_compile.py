"""`train.compile`: the same training, alone and with gradient checkpointing."""

from __future__ import annotations

import pytest
import torch
from jobs import train
from safetensors.torch import load_file

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.students.attention import fused_attention
from distilvec.students.dropout import FastDropout
from distilvec.train.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(autouse=True)
def without_code_generation(monkeypatch):
    """Graphs are traced and differentiated as ever, but run by torch: the tests need no C++ compiler."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda module, **settings: compile_module(module, backend="aot_eager", **settings)
    )
    yield
    torch.compiler.reset()


def trained(recipe, folder):
    """The losses and the last weights of a run."""
    train(resolve(recipe, folder))
    losses = [line["train/loss"] for line in read_metrics(RunFolder(folder).metrics) if "train/loss" in line]
    return losses, load_file(RunFolder(folder).last / "model.safetensors")


def test_compiled_training_is_the_same(tiny_recipe, tmp_path):
    settings = {"student__layers": 1, "student__dropout": 0.0, "train__max_steps": 3, "train__logging_steps": 1}
    losses, weights = trained(tiny_recipe(**settings), tmp_path / "plain")
    compiled = tiny_recipe(**settings, train__compile=True, train__gradient_checkpointing=True)
    found, others = trained(compiled, tmp_path / "compiled")
    assert len(losses) == 3 and found == pytest.approx(losses, rel=1e-4)
    assert weights.keys() == others.keys(), "a compiled backbone is saved under its own names"
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, atol=2e-4, rtol=1e-3)


def test_dropout_in_compiled_code():
    module = FastDropout(0.4)
    module.compile(fullgraph=True)
    torch.manual_seed(0)
    out = module(torch.ones(1000, 100))
    assert (out == 0).float().mean().item() == pytest.approx(0.4, abs=0.01) and out.max().item() == pytest.approx(
        1 / 0.6
    )


def test_attention_in_bf16_in_compiled_code():
    """The same gradients as without compilation, in one graph."""

    def loss(query):
        return fused_attention(torch.nn.Module(), query, query, query, None, scaling=0.5)[0].float().square().sum()

    found = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        query = torch.linspace(-1, 1, 2 * 3 * 5 * 4).view(2, 3, 5, 4).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            function(query).backward()
        found.append(query.grad)
    torch.testing.assert_close(found[1], found[0])
