"""The mixture of experts: sizes, gates, the paper's loop over experts, what permuting does, and its files."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
import torch

from distilvec.models import experts as module
from distilvec.models.experts import Experts

DIM, COUNT, WIDTH = 12, 3, 20


def mixture(gate_width: int | None = None, count: int = COUNT) -> Experts:
    torch.manual_seed(0)
    return Experts(DIM, count, WIDTH, gate_width).eval()


def answer(experts: Experts, pooled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    found = experts({"sentence_embedding": pooled, "attention_mask": None})
    assert set(found) == {"sentence_embedding", "attention_mask", "gates", "experts"}
    return found["sentence_embedding"], found["gates"], found["experts"]


@pytest.mark.parametrize(("width", "parameters"), [(512, 2_365_443), (1024, 4_726_275), (1536, 7_087_107)])
def test_sizes_of_the_paper(width: int, parameters: int) -> None:
    """4.7 M (section 3.1.1), and the 2 M, 4 M and 7 M of table 9, whole millions: 4,611 (width + 1) at 768 dimensions."""  # noqa: E501
    with torch.device("meta"):
        assert sum(weight.numel() for weight in Experts(768, 3, width).parameters()) == parameters == 4611 * (width + 1)


def test_size_with_the_gate_of_the_authors_code() -> None:
    with torch.device("meta"):
        assert sum(weight.numel() for weight in Experts(768, 3, 1024, gate_width=1024).parameters()) == 5_514_499


@pytest.mark.parametrize("gate_width", [None, 7])
def test_gates_are_positive_and_sum_to_one(gate_width: int | None) -> None:
    vector, gates, outputs = answer(mixture(gate_width), 3 * torch.randn(64, DIM))
    assert gates.shape == (64, COUNT) and outputs.shape == (64, COUNT, DIM) and vector.shape == (64, DIM)
    torch.testing.assert_close(gates.sum(-1), torch.ones(64))
    assert (gates > 0).all() and gates.std(0).min() > 0.01, "the gates depend on the text"
    torch.testing.assert_close(vector, (gates[..., None] * outputs).sum(1))


@pytest.mark.parametrize("gate_width", [None, 7])
@pytest.mark.parametrize("count", [1, 3])
def test_equals_a_loop_over_experts(gate_width: int | None, count: int) -> None:
    """s = sum over k of pi_k E_k(pooled) with E_k = W2 relu(W1 x + b1) + b2: values, and gradients of all weights."""
    experts, pooled = mixture(gate_width, count), torch.randn(5, DIM, requires_grad=True)
    vector, _, outputs = answer(experts, pooled)
    aim = torch.randn(5, DIM)
    ((vector - aim).square().sum() + outputs.sin().sum()).backward()
    ours = {name: weight.grad.clone() for name, weight in experts.named_parameters()} | {"pooled": pooled.grad.clone()}
    experts.zero_grad()
    pooled.grad = None
    first, offset = experts.up.weight.view(count, WIDTH, DIM), experts.up.bias.view(count, WIDTH)
    vectors, each = [], []
    for text in pooled:
        weights = torch.softmax(experts.gate(text), 0)
        made = [
            experts.down[k].T @ (first[k] @ text + offset[k]).clamp(min=0) + experts.bias[k, 0] for k in range(count)
        ]
        vectors.append(sum(weight * one for weight, one in zip(weights, made, strict=True)))
        each.append(torch.stack(made))
    torch.testing.assert_close(vector, torch.stack(vectors))
    torch.testing.assert_close(outputs, torch.stack(each))
    ((torch.stack(vectors) - aim).square().sum() + torch.stack(each).sin().sum()).backward()
    loops = {name: weight.grad for name, weight in experts.named_parameters()} | {"pooled": pooled.grad}
    assert ours.keys() == loops.keys()
    for name, gradient in loops.items():
        torch.testing.assert_close(
            ours[name], gradient, atol=1e-5, rtol=1e-5, msg=lambda message, name=name: f"{name}: {message}"
        )


@pytest.mark.parametrize("gate_width", [None, 7])
def test_permuting_experts_permutes_their_outputs_and_leaves_the_mixture(gate_width: int | None) -> None:
    experts, pooled, order = mixture(gate_width), torch.randn(6, DIM), torch.tensor([2, 0, 1])
    vector, gates, outputs = answer(experts, pooled)
    last = experts.gate if gate_width is None else experts.gate[-1]
    with torch.no_grad():
        experts.up.weight.copy_(experts.up.weight.view(COUNT, WIDTH, DIM)[order].flatten(0, 1).clone())
        experts.up.bias.copy_(experts.up.bias.view(COUNT, WIDTH)[order].flatten().clone())
        for weight in (experts.down, experts.bias, last.weight, last.bias):
            weight.copy_(weight[order].clone())
    again, permuted, moved = answer(experts, pooled)
    torch.testing.assert_close(moved, outputs[:, order])
    torch.testing.assert_close(permuted, gates[:, order])
    torch.testing.assert_close(again, vector)
    assert not torch.allclose(moved, outputs, atol=1e-2)


def test_dropout_acts_in_training_alone() -> None:
    experts, pooled = mixture(), torch.randn(4, DIM)
    assert torch.equal(answer(experts, pooled)[0], answer(experts, pooled)[0])
    experts.train()
    assert not torch.equal(answer(experts, pooled)[0], answer(experts, pooled)[0])


@pytest.mark.parametrize("gate_width", [None, 7])
def test_loads_bit_for_bit_and_draws_nothing(gate_width: int | None, tmp_path: Path) -> None:
    experts, pooled = mixture(gate_width), torch.randn(4, DIM)
    experts.save(str(tmp_path), safe_serialization=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    before = torch.get_rng_state()
    loaded = Experts.load(str(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)
    assert loaded.settings() == experts.settings() and not loaded.training
    assert all(weight.requires_grad and not weight.is_meta for weight in loaded.parameters())
    assert all(torch.equal(value, experts.state_dict()[name]) for name, value in loaded.state_dict().items())
    for ours, theirs in zip(answer(loaded, pooled), answer(experts, pooled), strict=True):
        assert torch.equal(ours, theirs)


def test_half_precision_is_saved_in_fp32(tmp_path: Path) -> None:
    mixture().bfloat16().save(str(tmp_path))
    assert {weight.dtype for weight in Experts.load(str(tmp_path)).parameters()} == {torch.float32}


def test_the_file_needs_nothing_but_torch_and_safetensors() -> None:
    """A copy of it lies beside every student with experts, and must run where distilvec is not installed."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not any(node.level for node in imports if isinstance(node, ast.ImportFrom)), "no relative imports"
    names = {
        name.split(".")[0]
        for node in imports
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else map(str, _names(node)))
    }
    assert names - set(sys.stdlib_module_names) == {"torch", "safetensors"}


def _names(node: ast.Import) -> list[str]:
    return [alias.name for alias in node.names]


def test_residual_experts_begin_as_the_student_without_them_and_learn(tmp_path: Path) -> None:
    torch.manual_seed(0)
    experts, pooled = Experts(DIM, COUNT, WIDTH, residual=True).eval(), torch.randn(5, DIM)
    vector, _, outputs = answer(experts, pooled)
    torch.testing.assert_close(vector, pooled)
    torch.testing.assert_close(outputs, pooled[:, None].expand(-1, COUNT, -1))
    torch.nn.init.normal_(experts.down)
    vector, gates, outputs = answer(experts, pooled)
    hidden = torch.relu(pooled @ experts.up.weight.T + experts.up.bias).view(5, COUNT, WIDTH)
    for number in range(COUNT):
        torch.testing.assert_close(outputs[:, number], pooled + hidden[:, number] @ experts.down[number])
    torch.testing.assert_close(vector, (gates[..., None] * outputs).sum(1))
    experts.save(str(tmp_path))
    torch.testing.assert_close(answer(Experts.load(str(tmp_path)), pooled)[0], vector)
    assert "residual" not in mixture().settings(), "older students' files keep their content"
