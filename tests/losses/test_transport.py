"""Sinkhorn: the check values, POT as oracle on masked batches, marginals, and tokens that are not there."""

from __future__ import annotations

import ot
import pytest
import torch

from distilvec.losses import transport
from distilvec.losses.emo import otis_cost
from distilvec.losses.transport import transport_cost, transport_plan


def force_solver(monkeypatch, solver):
    """Make every epsilon be solved by one solver: with the "kernel", or in logarithms ("log")."""
    smallest_epsilon = 0.0 if solver == "kernel" else float("inf")
    monkeypatch.setattr(transport, "SMALLEST_KERNEL_EPSILON", smallest_epsilon)
    monkeypatch.setattr(transport, "SMALLEST_UNROLLED_EPSILON", smallest_epsilon)


@pytest.fixture(params=["kernel", "log"])
def each_solver(request, monkeypatch):
    """Run the test once with each solver."""
    force_solver(monkeypatch, request.param)


@pytest.fixture
def check():
    """The check value's cost (4, 5) and masses, as batches of one."""
    generator = torch.Generator().manual_seed(1)
    cost = torch.rand(1, 4, 5, generator=generator, dtype=torch.float64)
    nu, mu = (torch.randn(1, size, generator=generator, dtype=torch.float64).softmax(1) for size in (4, 5))
    assert cost[0, 0].tolist() == pytest.approx(
        [0.0610532747, 0.2245545066, 0.2342525139, 0.1770992274, 0.5560680561], abs=1e-10
    )
    assert nu[0].tolist() == pytest.approx([0.8702585073, 0.0038593966, 0.1191640728, 0.0067180233], abs=1e-10)
    assert mu[0].tolist() == pytest.approx(
        [0.0691728057, 0.0309372619, 0.1983661415, 0.6261960912, 0.0753276997], abs=1e-10
    )
    return cost, nu, mu


@pytest.fixture
def batch():
    """Problems of 1 to 9 by 1 to 11 tokens, the last ones without any, with costs at padding that would show."""
    generator = torch.Generator().manual_seed(5)
    sizes = [(9, 11), (1, 1), (4, 11), (9, 2), (1, 7), (6, 6), (0, 5), (3, 0)]
    cost = torch.full((len(sizes), 9, 11), -0.3, dtype=torch.float64)
    nu, mu = torch.zeros(len(sizes), 9, dtype=torch.float64), torch.zeros(len(sizes), 11, dtype=torch.float64)
    for row, (student, teacher) in enumerate(sizes):
        cost[row, :student, :teacher] = torch.rand(student, teacher, generator=generator, dtype=torch.float64)
        nu[row, :student] = (2 * torch.randn(student, generator=generator, dtype=torch.float64)).softmax(0)
        mu[row, :teacher] = (2 * torch.randn(teacher, generator=generator, dtype=torch.float64)).softmax(0)
    return sizes, cost, nu, mu


@pytest.mark.usefixtures("each_solver")
@pytest.mark.parametrize(("epsilon", "expected"), [(0.1, 0.1856803612446), (0.05, 0.1834215720), (0.01, 0.1811647243)])
def test_check_values(check, epsilon, expected):
    value = transport_cost(*check, epsilon=epsilon, iterations=20000, tolerance=1e-13)
    assert value.item() == pytest.approx(expected, abs=1e-10)
    hundred = transport_cost(*check, tolerance=0.0)
    assert hundred.item() == pytest.approx(0.18568036066, abs=1e-8)


@pytest.mark.usefixtures("each_solver")
def test_small_epsilon_comes_near_the_exact_plan(check):
    cost, nu, mu = check
    exact = ot.emd2(nu[0].numpy(), mu[0].numpy(), cost[0].numpy())
    assert exact == pytest.approx(0.1811593721, abs=1e-9)
    value = transport_cost(cost, nu, mu, epsilon=0.005, iterations=50000)
    assert value.item() == pytest.approx(exact, abs=1e-5)


@pytest.mark.usefixtures("each_solver")
def test_check_values_of_both_gradients(check):
    cost, nu, mu = check
    expected = {
        True: [0.0639354513, 0.0228965515, 0.1927658711, 0.5976807844, -0.0070201515],
        False: [0.0653261339, 0.0259245757, 0.1918864674, 0.5858141950, 0.0013071341],
    }
    for unroll, row in expected.items():
        leaf = cost.clone().requires_grad_()
        transport_cost(leaf, nu, mu, iterations=500, tolerance=1e-13, unroll=unroll).sum().backward()
        assert leaf.grad[0, 0].tolist() == pytest.approx(row, abs=3e-9)
        if not unroll:
            torch.testing.assert_close(leaf.grad, transport_plan(cost, nu, mu, iterations=500, tolerance=1e-13))


@pytest.mark.usefixtures("each_solver")
def test_the_unrolled_gradient_is_that_of_differences():
    generator = torch.Generator().manual_seed(6)
    cost = torch.rand(2, 3, 3, generator=generator, dtype=torch.float64).requires_grad_()
    nu = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]], dtype=torch.float64)
    mu = torch.tensor([[0.1, 0.9, 0.0], [0.2, 0.2, 0.6]], dtype=torch.float64)
    settings = {"epsilon": 0.3, "iterations": 21, "tolerance": 0.0}
    assert torch.autograd.gradcheck(lambda costs: transport_cost(costs, nu, mu, unroll=True, **settings), cost)


@pytest.mark.parametrize("epsilon", [0.02, 0.03, 0.05])
def test_the_unrolled_gradient_is_finite_in_fp32_and_that_of_fp64(epsilon, monkeypatch):
    """Costs near 1, as those of EMO are: the kernel's values are small, and its squares, by which gradients divide, are
    none.
    """
    generator = torch.Generator().manual_seed(8)
    cost = 0.9 + 0.1 * torch.rand(4, 12, 15, generator=generator, dtype=torch.float64)
    nu, mu = ((2 * torch.randn(4, size, generator=generator, dtype=torch.float64)).softmax(1) for size in (12, 15))

    def gradient(dtype):
        leaf = cost.detach().clone().to(dtype).requires_grad_()
        transport_cost(leaf, nu.to(dtype), mu.to(dtype), unroll=True, epsilon=epsilon, tolerance=0.0).sum().backward()
        return leaf.grad.double()

    found = gradient(torch.float32)
    force_solver(monkeypatch, "kernel")
    exact = gradient(torch.float64)
    assert torch.isfinite(found).all() and exact.abs().max() > 0.1
    torch.testing.assert_close(found, exact, atol=2e-5, rtol=0)
    if epsilon == 0.02:
        assert gradient(torch.float32).isnan().any(), "what is guarded against"


@pytest.mark.usefixtures("each_solver")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_pot_is_the_oracle_on_masked_batches(batch, dtype, tolerance):
    sizes, cost, nu, mu = batch
    plans = transport_plan(cost.to(dtype), nu.to(dtype), mu.to(dtype), iterations=1000, tolerance=tolerance / 10)
    assert torch.isfinite(plans).all()
    for row, (student, teacher) in enumerate(sizes):
        if student and teacher:
            a, b, c = nu[row, :student], mu[row, :teacher], cost[row, :student, :teacher]
            expected = torch.from_numpy(
                ot.sinkhorn(a.numpy(), b.numpy(), c.numpy(), 0.1, stopThr=1e-12, numItermax=5000)
            )
            torch.testing.assert_close(plans[row, :student, :teacher].double(), expected, atol=tolerance, rtol=0)
        assert plans[row, student:].abs().sum() == 0 and plans[row, :, teacher:].abs().sum() == 0


@pytest.mark.usefixtures("each_solver")
def test_marginals(batch):
    sizes, cost, nu, mu = batch
    there = [row for row, size in enumerate(sizes) if min(size)]
    plans = transport_plan(cost, nu, mu, iterations=5000, tolerance=1e-10)[there]
    torch.testing.assert_close(plans.sum(2), nu[there], atol=1e-12, rtol=0)
    assert (plans.sum(1) - mu[there]).abs().sum(1).max() <= 1e-10


@pytest.mark.parametrize("unroll", [True, False])
@pytest.mark.usefixtures("each_solver")
def test_neither_padding_nor_company_changes_a_value_or_a_gradient(batch, unroll):
    sizes, cost, nu, mu = batch
    together = cost.clone().requires_grad_()
    values = transport_cost(together, nu, mu, unroll=unroll)
    values.sum().backward()
    assert torch.isfinite(together.grad).all() and values[6:].abs().sum() == 0
    for row, (student, teacher) in enumerate(sizes):
        if min(student, teacher):
            alone = cost[row : row + 1, :student, :teacher].clone().requires_grad_()
            value = transport_cost(alone, nu[row : row + 1, :student], mu[row : row + 1, :teacher], unroll=unroll)
            value.sum().backward()
            torch.testing.assert_close(value[0], values[row], atol=1e-12, rtol=0)
            torch.testing.assert_close(together.grad[row, :student, :teacher], alone.grad[0], atol=1e-11, rtol=0)


def test_a_finished_problem_stops_and_waits_for_the_others(check):
    cost, nu, mu = check
    easy = torch.zeros_like(cost)
    plans = transport_plan(torch.cat([easy, cost]), nu.expand(2, -1), mu.expand(2, -1), iterations=500, tolerance=1e-3)
    torch.testing.assert_close(plans[0], nu[0, :, None] * mu[0], atol=1e-12, rtol=0)
    misses = (transport_plan(cost, nu, mu, iterations=500, tolerance=1e-3).sum(1) - mu).abs().sum()
    assert 1e-9 < misses < 1e-3  # it went no further than it was asked to
    torch.testing.assert_close(
        plans[1:], transport_plan(cost, nu, mu, iterations=500, tolerance=1e-3), atol=1e-12, rtol=0
    )


def test_small_epsilon_takes_logarithms_by_itself(monkeypatch):
    cost = torch.tensor([[[0.0, 1.0], [1.0, 0.9]]])
    half = torch.full((1, 2), 0.5)
    plan = transport_plan(cost, half, half, epsilon=0.002, iterations=1000)
    assert torch.isfinite(plan).all() and plan[0].diagonal().sum() > 0.999
    force_solver(monkeypatch, "log")
    torch.testing.assert_close(plan, transport_plan(cost, half, half, epsilon=0.002, iterations=1000))


def sinkhorn_by_definition(cost, nu, mu, epsilon=0.1, iterations=100):
    """Return the plan of `transport_plan` as Cuturi writes it, for marginals above 0: T = diag(u) K diag(v)."""
    kernel, u = (-cost / epsilon).exp(), torch.ones_like(nu)
    for _ in range(iterations):
        v = mu / torch.einsum("bst,bs->bt", kernel, u)
        u = nu / torch.einsum("bst,bt->bs", kernel, v)
    return u[:, :, None] * kernel * v[:, None]


@pytest.mark.usefixtures("each_solver")
def test_the_reference_form_has_the_same_plan_and_gradient(check):
    cost, nu, mu = check
    found, expected = cost.clone().requires_grad_(), cost.clone().requires_grad_()
    factors = torch.arange(20.0, dtype=torch.float64).view(1, 4, 5)
    plan = transport_plan(found, nu, mu, iterations=30, tolerance=0.0)
    reference = sinkhorn_by_definition(expected, nu, mu, iterations=30)
    torch.testing.assert_close(plan, reference, atol=1e-14, rtol=1e-12)
    torch.autograd.backward([(plan * factors).sum(), (reference * factors).sum()])
    torch.testing.assert_close(found.grad, expected.grad, atol=1e-12, rtol=1e-9)


def test_otis_cost_check_value():
    generator = torch.Generator().manual_seed(2)
    student, teacher = (torch.randn(1, rows, 4, generator=generator, dtype=torch.float64) for rows in (3, 5))
    cost = otis_cost(student, teacher, torch.ones(1, 5, dtype=torch.bool))
    assert cost[0, 0].tolist() == pytest.approx(
        [0.8282334877, 0.8359615558, 0.7854966187, 0.6795951295, 0.8707132084], abs=1e-6
    )
    torch.testing.assert_close(cost.sum(2), torch.full((1, 3), 4.0, dtype=torch.float64))
    mask = torch.tensor([[True] * 3 + [False] * 2])
    torch.testing.assert_close(
        otis_cost(student, teacher, mask)[..., :3], otis_cost(student, teacher[:, :3], mask[:, :3])
    )
    assert otis_cost(student, teacher, mask)[..., 3:].tolist() == [[[1.0, 1.0]] * 3]
    assert torch.isfinite(otis_cost(student, teacher, mask & False)).all()
