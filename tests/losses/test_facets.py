"""DistillMoE's losses on whole texts: the check values, loops from the paper, single texts and experts, gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from distilvec.losses.distance import cosine_distance
from distilvec.losses.moe import contrastive, diversity, gate_floor, pairwise_margin, towards_uniform, within_margin


@pytest.fixture
def check():
    """The check value's student (4, 6), teacher (4, 6) and three experts (4, 3, 6)."""
    generator = torch.Generator().manual_seed(11)
    student, teacher, *experts = (torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(5))
    assert student[0, :2].tolist() == pytest.approx([0.2783798459, -1.8736145169], abs=1e-10)
    return student, teacher, torch.stack(experts, dim=1)


def test_check_values(check):
    student, teacher, experts = check
    expected = [0.6114643379, 0.7393012702, 0.4561779920, 1.3760897482]
    assert cosine_distance(student, teacher).tolist() == pytest.approx(expected, abs=1e-6)  # always in fp32
    expected = [2.6328290007, 0.0076441549, 0.0150219671, 8.8331964426]
    assert contrastive(student, teacher, 0.1).tolist() == pytest.approx(expected, abs=1e-10)
    expected = [0.3915120449, 0.6661759237, 0.7273720691, 0.4813626360]
    assert pairwise_margin(student, teacher, 0.1).tolist() == pytest.approx(expected, abs=1e-10)
    assert diversity(experts).mean().item() == pytest.approx(0.1275174520, abs=1e-10)
    gates = torch.tensor([[0.05, 0.15, 0.8], [0.3, 0.3, 0.4]], dtype=torch.float64)
    assert gate_floor(gates).tolist() == pytest.approx([0.0025, 0], abs=1e-15)
    assert gate_floor(gates).mean().item() == pytest.approx(0.00125, abs=1e-15)


def test_against_loops(check):
    student, _, experts = check
    teacher = torch.randn(
        4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )  # wider than the student
    for i, found in enumerate(pairwise_margin(student, teacher, 0.2).tolist()):
        gaps = [
            cosine_similarity(teacher[i], teacher[j], dim=0) - cosine_similarity(student[i], student[j], dim=0)
            for j in range(4)
        ]
        assert found == pytest.approx(
            sum(max(0.0, abs(gap.item()) - 0.2) for j, gap in enumerate(gaps) if j != i) / 3, abs=1e-12
        )
    for own, found in zip(experts, diversity(experts).tolist(), strict=True):
        cosines = [cosine_similarity(own[m], own[n], dim=0).item() for m in range(3) for n in range(3) if m != n]
        assert found == pytest.approx(sum(max(0.0, cosine) for cosine in cosines) / 6, abs=1e-12)


def test_divergence_from_uniform_gates():
    gates = torch.tensor(
        [[1 / 3, 1 / 3, 1 / 3], [0.7, 0.2, 0.1], [1.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True
    )
    found = towards_uniform(gates)
    mixed = sum(share * math.log(3 * share) for share in (0.7, 0.2, 0.1))
    assert found.tolist() == pytest.approx([0, mixed, math.log(3)], abs=1e-12)
    found.sum().backward()
    assert torch.isfinite(gates.grad).all()
    assert gates.grad[1].tolist() == pytest.approx([math.log(3 * share) + 1 for share in (0.7, 0.2, 0.1)], abs=1e-12)


def test_neither_scale_nor_order_of_the_others_matters(check):
    student, teacher, experts = check
    order = torch.tensor([2, 0, 3, 1])
    for loss in (lambda s, t: contrastive(s, t, 0.1), lambda s, t: pairwise_margin(s, t, 0.1)):
        torch.testing.assert_close(loss(3 * student, 0.1 * teacher), loss(student, teacher))
        torch.testing.assert_close(loss(student[order], teacher[order]), loss(student, teacher)[order])
    torch.testing.assert_close(diversity(7 * experts[:, [1, 2, 0]]), diversity(experts))


def test_what_costs_nothing(check):
    student, _, _ = check
    assert pairwise_margin(student, 5 * student, 0.0).max() < 1e-12
    assert pairwise_margin(student, torch.randn(4, 6), 2.0).max() == 0  # cosines are at most 2 apart
    assert diversity(torch.eye(3)[None]).tolist() == [0] and diversity(
        -torch.ones(1, 2, 3) * torch.tensor([[1.0], [-1.0]])
    ).tolist() == [0]
    assert diversity(torch.ones(1, 3, 4)).tolist() == pytest.approx([1])
    assert gate_floor(torch.tensor([[0.1, 0.9], [0.5, 0.5]]), floor=0.1).tolist() == pytest.approx([0, 0], abs=1e-12)


def test_alone_and_zero_are_finite():
    single, zero = torch.ones(1, 5, requires_grad=True), torch.zeros(3, 5, requires_grad=True)
    experts, other = (
        torch.zeros(2, 3, 5, requires_grad=True),
        torch.randn(3, 5, generator=torch.Generator().manual_seed(2)),
    )
    alone = [
        contrastive(single, 2 * single.detach(), 0.1),
        pairwise_margin(single, single.detach(), 0.1),
        diversity(single[:, None]),
    ]
    assert [value.tolist() for value in alone] == [[0]] * 3
    values = [*alone, contrastive(zero, other, 0.1), pairwise_margin(zero, other, 0.1), diversity(experts)]
    torch.cat(values).sum().backward()
    assert all(torch.isfinite(value).all() for value in values)
    assert all(torch.isfinite(leaf.grad).all() for leaf in (single, zero, experts))


def test_gradients_are_those_of_differences(check):
    student, teacher, experts = (tensor.clone().requires_grad_() for tensor in check)
    gates = torch.tensor([[0.05, 0.15, 0.8], [0.03, 0.57, 0.4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, t: contrastive(s, t, 0.5), (student, teacher))
    assert torch.autograd.gradcheck(lambda s: pairwise_margin(s, teacher.detach(), 0.1), student)
    assert torch.autograd.gradcheck(diversity, experts)
    assert torch.autograd.gradcheck(gate_floor, gates) and torch.autograd.gradcheck(towards_uniform, gates)


def test_half_precision_is_worked_out_in_fp32(check):
    student, teacher, experts = (tensor.bfloat16() for tensor in check)
    values = (
        contrastive(student, teacher, 0.1),
        pairwise_margin(student, teacher, 0.1),
        diversity(experts),
        towards_uniform(student.softmax(1)),
    )
    assert {value.dtype for value in values} == {torch.float32}
    torch.testing.assert_close(values[0], contrastive(student.float(), teacher.float(), 0.1))


def test_share_of_pairs_within_the_margin():
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(3))
    pairs = [(one, other) for one in range(7) for other in range(7) if one != other]
    cosines = [float(cosine_similarity(vectors[one], vectors[other], dim=0)) for one, other in pairs]
    mean = sum(cosines) / len(cosines)
    expected = sum(abs(cosine - mean) <= 0.2 for cosine in cosines) / len(cosines)
    assert 0 < expected < 1 and float(within_margin(vectors, 0.2)) == pytest.approx(expected)
    assert float(within_margin(vectors[:1], 0.2)) == 0
