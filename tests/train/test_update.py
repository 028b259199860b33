"""Update rules: the check values, closed forms, exact restoration, micro-batches, resuming."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from contexts import DEFAULT
from loops import make_loop, stop_after
from refusals import refused
from samples import make_texts
from torch import nn

from distilvec.config.training import UpdateSection
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.train.distillation import StepGradients
from distilvec.train.prefetch import load_micro_batch
from distilvec.train.update import Update, source_balance

pytestmark = pytest.mark.usefixtures("shared_cache")

RULES = [UpdateSection(name=name) for name in ("plain", "sam", "asam", "disam")] + [
    UpdateSection(name="asam", eta=0.01)
]
KEPT = ("train/loss", "train/mean_cosine", "eval/distance")


class Problem:
    """A module with a loss to minimize; notes what it was called with and where the weights were."""

    def __init__(self, module: nn.Module, loss) -> None:
        self.module, self.loss, self.calls, self.places, self.losses = module, loss, [], [], []

    def __call__(self, masks=0, is_last=True, row_weights=None):
        self.calls.append((masks, is_last))
        self.places.append({name: p.detach().clone() for name, p in self.module.named_parameters()})
        loss = self.loss(self.module)
        loss.backward()
        self.losses.append(loss.item())
        return {"loss": loss.detach().reshape(1)}

    def moved(self, name: str) -> torch.Tensor:
        return self.places[1][name] - self.places[0][name]


def rule_for(section: UpdateSection, module: nn.Module, rate: float = 0.0, clip: float | None = None):
    trained = [p for p in module.parameters() if p.requires_grad]
    return Update(section, torch.optim.SGD(trained, lr=rate), module, clip)


@pytest.fixture
def check_g():
    """methods.md 7.G: Linear(3, 2) and the mean squared error, drawn in float64."""
    linear = nn.Linear(3, 2, dtype=torch.float64)
    torch.manual_seed(7)
    linear.weight.data, linear.bias.data = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    torch.manual_seed(8)
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    return Problem(linear, lambda module: (module(x) - y).square().mean())


SAM_G = (
    [-0.0063164044, 0.0178570059, 0.0191113631, -0.0156946668, 0.0377214592, -0.0098534178],
    [0.0013697379, 0.0027908953],
)
ASAM_G = (
    [-0.0000963528, 0.0078123427, 0.0121282853, -0.0137962830, 0.0763377419, -0.0055851820],
    [0.0001226291, 0.0030006013],
)
ETA_G = (
    [-0.0001092157, 0.0079604781, 0.0123056290, -0.0139540647, 0.0767432417, -0.0056737357],
    [0.0009633579, 0.0019628801],
)


@pytest.mark.parametrize(
    ("section", "moved", "loss", "far"),
    [
        (UpdateSection(name="sam"), SAM_G, 8.710576111, None),
        (UpdateSection(name="asam"), ASAM_G, 8.821960639, 12.729048164),
        (UpdateSection(name="asam", eta=0.01), ETA_G, 8.824455250, 12.762087503),
        (UpdateSection(name="disam", rho=0.05), SAM_G, 8.710576111, None),
    ],
    ids=["sam", "asam", "asam-eta", "disam moves as sam"],
)
def test_perturbation_has_the_check_values(check_g, section, moved, loss, far):
    rule_for(section, check_g.module).step(check_g, 0)
    assert check_g.losses == pytest.approx([8.447064705, loss], abs=1e-9)
    assert check_g.moved("weight").flatten().tolist() == pytest.approx(moved[0], abs=1e-9)
    assert check_g.moved("bias").tolist() == pytest.approx(moved[1], abs=1e-9)
    if far is not None:
        rule_for(section.model_copy(update={"rho": 0.5}), check_g.module).step(check_g, 0)
        assert check_g.losses[-1] == pytest.approx(far, abs=1e-9)


@pytest.mark.parametrize("name", ["sam", "asam"])
def test_a_quadratic_in_closed_form(name):
    """L = w'Aw / 2: the step is w - rate A (w + eps), eps = rho Aw / ||Aw||, or rho w^2 Aw / || |w| Aw ||."""
    torch.manual_seed(0)
    root, start = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    matrix = root @ root.T
    module = nn.Module()
    module.w = nn.Parameter(start.clone())
    rule_for(UpdateSection(name=name, rho=0.3), module, rate=0.1).step(
        Problem(module, lambda m: m.w @ matrix @ m.w / 2), 0
    )
    gradient = matrix @ start
    size = torch.ones_like(start) if name == "sam" else start.abs()
    uphill = 0.3 * size**2 * gradient / (size * gradient).norm()
    torch.testing.assert_close(module.w.data, start - 0.1 * matrix @ (start + uphill), atol=1e-12, rtol=1e-12)


class Words(nn.Module):
    """A token table of which a few rows are used, a layer, and one that nothing uses."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table, self.layer, self.unused = (
            nn.Embedding(50, 6, dtype=dtype),
            nn.Linear(6, 4, dtype=dtype),
            nn.Linear(2, 2, dtype=dtype),
        )

    def forward(self) -> torch.Tensor:
        return self.layer(self.table(torch.tensor([[3, 7, 7], [20, 3, 49]]))).square().mean()


@pytest.mark.parametrize("section", RULES[1:], ids=lambda section: section.label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_back_to_the_bit(section, dtype):
    problem = Problem(Words(dtype), lambda module: module())
    rule = rule_for(section.model_copy(update={"rho": 3.0}), problem.module)
    rule.step(problem, 0)
    before, uphill = problem.places
    for name, parameter in problem.module.named_parameters():
        assert torch.equal(parameter, before[name]), name
        assert torch.equal(uphill[name], before[name]) == name.startswith("unused"), name


def test_an_error_in_the_second_pass_leaves_the_weights_as_they_were():
    problem = Problem(Words(), lambda module: module() if not problem.losses else 1 / 0)
    before = {name: value.clone() for name, value in problem.module.state_dict().items()}
    with pytest.raises(ZeroDivisionError):
        rule_for(UpdateSection(name="asam"), problem.module).step(problem, 0)
    assert all(torch.equal(value, before[name]) for name, value in problem.module.state_dict().items())


@pytest.mark.parametrize("section", RULES[1:], ids=lambda section: section.label)
def test_moving_only_the_used_rows_of_a_table_is_moving_all(section):
    """The rows without a gradient do not move, so leaving them out changes nothing but rounding."""
    places = []
    for whole in (True, False):
        problem = Problem(Words(torch.float64), lambda module: module())
        rule = rule_for(section, problem.module)
        assert len(rule.tables) == 1
        rule.tables = [] if whole else rule.tables
        rule.step(problem, 0)
        places.append(problem.places[1])
    for name in places[0]:
        torch.testing.assert_close(places[0][name], places[1][name], atol=1e-15, rtol=1e-15)


class Tied(Words):
    """A token table that scores words as well, so that every row has a gradient."""

    def forward(self) -> torch.Tensor:
        words = self.table(torch.tensor([3, 7, 20]))
        return (words @ self.table.weight.T).square().mean() + self.layer(words).sum()


@pytest.mark.parametrize("section", RULES[1:], ids=lambda section: section.label)
def test_a_table_that_is_used_elsewhere_moves_as_a_whole(section):
    places = []
    for sparse in (True, False):
        problem = Problem(Tied(torch.float64), lambda module: module())
        rule = rule_for(section, problem.module)
        rule.tables = rule.tables if sparse else []
        rule.step(problem, 0)
        places.append(problem.places[1])
        assert not problem.module.table.sparse
    assert (places[0]["table.weight"] != Tied(torch.float64).table.weight).all()
    for name in places[0]:
        torch.testing.assert_close(places[0][name], places[1][name], atol=1e-15, rtol=1e-15)


@pytest.mark.parametrize("section", RULES[1:], ids=lambda section: section.label)
def test_no_gradient_is_no_move_and_no_nan(section):
    problem = Problem(nn.Linear(3, 2), lambda module: 0.0 * module.weight.sum() + 0.0 * module.bias.sum())
    rule_for(section, problem.module, rate=0.1).step(problem, 0)
    assert all(torch.equal(p, problem.places[0][name]) for name, p in problem.module.named_parameters())
    problem = Problem(nn.Linear(3, 2), lambda module: torch.ones((), requires_grad=True))
    rule_for(section, problem.module).step(problem, 0)
    assert len(problem.places) == 2


@pytest.mark.parametrize("section", RULES[1:], ids=lambda section: section.label)
def test_frozen_parameters_count_for_nothing(section):
    """Freezing the bias gives the perturbation of a layer whose bias is a constant."""
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    found = []
    for frozen in (True, False):
        torch.manual_seed(1)
        layer = nn.Linear(3, 2)
        constant = layer.bias.detach().clone()
        layer.bias.requires_grad_(not frozen)
        problem = Problem(
            layer, lambda m, f=frozen, c=constant: (x @ m.weight.T + (m.bias if f else c)).square().mean()
        )
        rule_for(section, layer).step(problem, 0)
        assert torch.equal(problem.moved("bias"), torch.zeros(2))
        found.append(problem.moved("weight"))
    assert torch.equal(*found) and found[0].abs().sum() > 0


def test_only_every_so_many_steps_go_uphill_and_both_passes_are_asked_for_rightly(check_g):
    rule = rule_for(UpdateSection(name="asam", every=3), check_g.module)
    counts = []
    for number in range(7):
        before = len(check_g.calls)
        terms = rule.step(check_g, number)
        counts.append(len(check_g.calls) - before)
        assert terms["loss"].item() == check_g.losses[before], "the terms are the first pass's"
    assert counts == [2, 1, 1, 2, 1, 1, 2]
    assert check_g.calls[:3] == [(0, False), (1, True), (0, True)]
    check_g.calls.clear()
    rule_for(UpdateSection(name="asam", replay_dropout=True), check_g.module).step(check_g, 0)
    assert check_g.calls == [(0, False), (0, True)]


def test_gradients_are_clipped_after_the_second_pass(check_g):
    rule_for(UpdateSection(name="sam"), check_g.module, clip=0.25).step(check_g, 0)
    assert check_g.moved("weight").norm() ** 2 + check_g.moved("bias").norm() ** 2 == pytest.approx(0.05**2)
    squares = [p.grad.square().sum() for p in check_g.module.parameters()]
    assert torch.stack(squares).sum().sqrt().item() == pytest.approx(0.25, rel=1e-5)


# -- DISAM's weights ---------------------------------------------------------------------------------------------------


def disam_loss(losses, sources, variance):
    """Mean loss - `variance` x population variance of the sources' mean losses (TALAS, eq. 10 to 12)."""
    means = torch.stack([losses[sources == source].mean() for source in torch.unique(sources)])
    return losses.mean() - variance * means.var(correction=0)


def test_row_weights_are_the_gradient_of_mean_loss_less_variance():
    """Against eq. 10-12 as plain loops, sources of unequal size, in any order."""
    torch.manual_seed(0)
    losses = torch.rand(9, dtype=torch.float64, requires_grad=True)
    sources = torch.tensor([4, 0, 0, 2, 4, 4, 0, 2, 4])
    means = [torch.stack([loss for loss, s in zip(losses, sources, strict=True) if s == d]).mean() for d in (0, 2, 4)]
    variance = sum((a - b) ** 2 for a, b in itertools.product(means, means)) / (2 * len(means) ** 2)
    torch.testing.assert_close(disam_loss(losses, sources, 0.3), losses.mean() - 0.3 * variance)
    (expected,) = torch.autograd.grad(disam_loss(losses, sources, 0.3), losses)
    torch.testing.assert_close(source_balance(0.3)(losses.detach(), sources), expected, atol=1e-15, rtol=1e-13)


def test_variance_has_the_check_value():
    """methods.md 7.F. With one row a source, weights . losses = mean - 2 v Var, since Var is quadratic."""
    losses = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    weights = source_balance(0.1)(losses, torch.arange(3))
    assert ((losses.mean() - weights @ losses) / 0.2).item() == pytest.approx(1.5555555556, abs=1e-10)


def test_one_source_is_the_plain_mean():
    weights = source_balance(0.1)(torch.rand(5), torch.full((5,), 7))
    torch.testing.assert_close(weights, torch.full((5,), 0.2))


# -- through the loop --------------------------------------------------------------------------------------------------


@pytest.fixture
def three_sources(tmp_path) -> list[dict]:
    texts = make_texts(120)
    for number in range(3):
        (tmp_path / f"source{number}.txt").write_text(
            "\n".join(texts[40 * number : 40 * (number + 1)]), encoding="utf-8"
        )
    return [{"path": str(tmp_path / f"source{number}.txt")} for number in range(3)]


@pytest.mark.parametrize("section", RULES, ids=lambda section: section.label)
def test_eight_rows_at_once_equal_four_times_two(tiny_recipe, three_sources, tmp_path, section):
    found, losses = [], []
    for size in (8, 2):
        recipe = tiny_recipe(
            corpus__sources=three_sources, corpus__validation_rows=16, student__dropout=0.0, method__options={"distance": "mse"},  # noqa: E501
            train__batch_size=size, train__gradient_accumulation_steps=8 // size, train__max_steps=1, train__update=section.model_dump(),  # noqa: E501
        )  # fmt: skip
        loop = make_loop(recipe, tmp_path / str(size))
        sources = loop.data.corpus.sources
        rows = np.concatenate(
            [np.flatnonzero(sources == 0)[:4], np.flatnonzero(sources == 1)[:1], np.flatnonzero(sources == 2)[:3]]
        )
        loop._batches = lambda epoch, rows=rows, size=size: [rows[i : i + size] for i in range(0, 8, size)]
        loop.optimizer.step = lambda: None
        loop.run()
        assert loop.state.texts == 8 and loop.state.tokens == loop.data.tokens.lengths[rows].sum(), (
            "texts count once, not once a pass"
        )
        found.append({name: p.grad for name, p in loop.module.named_parameters() if p.grad is not None})
        losses.append(loop.metrics.path.read_text())
    assert found[0].keys() == found[1].keys() and len(found[0]) > 20
    assert max(gradient.abs().max() for gradient in found[0].values()) > 1e-4
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-6, rtol=1e-3)


def test_the_rules_differ(tiny_recipe, three_sources, tmp_path):
    """What the test before compares is not the same gradient five times."""
    found = []
    for section in (*RULES, UpdateSection(name="disam", variance=20.0)):
        changes = {"train__max_steps": 2, "train__update": section.model_copy(update={"rho": 0.5}).model_dump()}
        loop = make_loop(
            tiny_recipe(corpus__sources=three_sources, student__dropout=0.0, **changes), tmp_path / str(len(found))
        )
        loop.run()
        found.append(torch.cat([p.detach().flatten() for p in loop.module.parameters()]))
    for first, second in itertools.combinations(found, 2):
        assert (first - second).abs().max() > 1e-5


@pytest.mark.parametrize("replay", [False, True])
def test_interrupted_equals_uninterrupted_with_asam(tiny_recipe, tmp_path, replay):
    changes = {"train__update": {"name": "asam", "every": 2, "replay_dropout": replay}, "train__epochs": 2}
    whole = make_loop(tiny_recipe(**changes), tmp_path / "whole")
    whole.run()
    for stop in (3, 8, 12):
        assert not stop_after(make_loop(tiny_recipe(**changes), tmp_path / "parts"), stop).run().finished
    last = make_loop(tiny_recipe(**changes), tmp_path / "parts")
    assert last.state.step == 12
    last.run()
    for (name, first), second in zip(whole.module.state_dict().items(), last.module.state_dict().values(), strict=True):
        assert torch.equal(first, second), name


def test_a_draw_is_a_dropout_mask(tiny_recipe, tmp_path):
    """The same draw gives the same terms, another one others; draw 0 is what a plain step sees."""
    loop = make_loop(tiny_recipe(student__dropout="own"), tmp_path / "run")
    loop.module.train()

    def terms(masks: int) -> torch.Tensor:
        micro_batches = [load_micro_batch(loop.data, loop._batches(0)[number], loop.device) for number in range(2)]
        return StepGradients(loop.module, loop.accelerator, micro_batches, 0, 5)(masks=masks)["l2"]

    assert torch.equal(terms(0), terms(0)) and torch.equal(terms(1), terms(1))
    assert not torch.isclose(terms(0), terms(1)).all()


class Counting(Objective):
    """Its term is how many rows it has seen before, which it keeps in a buffer; it asks for nothing of the teacher."""

    def __init__(self) -> None:
        super().__init__(DEFAULT, {}, {"seen": 1.0})
        self.teacher_outputs = OutputSpec()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, batch, student, teacher):
        terms = {"seen": self.seen + student.embedding.sum(-1)}
        self.seen += len(batch)
        return terms


@pytest.mark.parametrize("name", ["plain", "asam", "disam"])
def test_buffers_change_once_a_step(tiny_recipe, tmp_path, name):
    """A queue, say: every pass of a step sees what the first one saw."""
    loop = make_loop(tiny_recipe(), tmp_path / "run")
    objective = Counting()
    micro_batches = [load_micro_batch(loop.data, loop._batches(0)[number], loop.device) for number in range(2)]
    loop.module.objective = objective
    rule = Update(UpdateSection(name=name), loop.optimizer, loop.module)
    for number in range(3):
        passes = StepGradients(loop.module, loop.accelerator, micro_batches, 0, number)
        terms = rule.step(passes, number)["seen"]
        assert terms.round()[:16].mean() == pytest.approx(32 * number, abs=8)
        assert objective.seen == 32 * (number + 1)


# -- in a recipe -------------------------------------------------------------------------------------------------------


def test_recipes_name_the_rule(tiny_recipe, tmp_path):
    assert tiny_recipe().train.update == UpdateSection() and tiny_recipe().train.update.label == "plain"
    section = tiny_recipe(train__update={"name": "asam", "rho": 0.05}).train.update
    assert section.label == "asam (rho 0.05)" == UpdateSection(name="asam").label
    section = UpdateSection(name="asam", eta=0.01, every=5, replay_dropout=True)
    assert section.label == "asam (rho 0.05, eta 0.01, every 5 steps, dropout replayed)"
    assert UpdateSection(name="disam").label == "disam (rho 0.01, variance 0.1)"
    with refused("train.update.roh", "'rho'"):
        tiny_recipe(train__update={"name": "sam", "roh": 0.1})
    with refused("train.update.name"):
        tiny_recipe(train__update__name="samm")
    assert make_loop(tiny_recipe(), tmp_path / "run").update.section.name == "plain"
