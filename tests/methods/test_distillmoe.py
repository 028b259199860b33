"""DistillMoE: its terms against loops over texts, experts and teachers written from the paper, ablations that cost
nothing, padding.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contexts import make_context

from distilvec.config.training import TrainSection
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.info import TeacherInfo
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective
from distilvec.core.task_head import TaskInfo
from distilvec.losses.dynamic_cka import RULES, Rule
from distilvec.methods.base.terms import SIMCSE_TEMPERATURE
from distilvec.methods.distillmoe import FACETS
from distilvec.train.optimizer import trained_parameters

OURS, THEIRS = (5, 3, 6, 4), ((4, 5, 9, 2), (7, 2, 5, 6))  # tokens of the student, of two teachers
OTHER = TeacherInfo(dim=7, hidden_size=4, layers=2, weight=3.0)
CONTEXT = make_context(
    student_hidden_size=6,
    student_layers=3,
    teacher_dim=5,
    teacher_hidden_size=8,
    teacher_layers=4,
    student_dim=6,
    student_experts=3,
)
TASK = make_context(CONTEXT, task=TaskInfo("classification", 3))
BOTH = make_context(TASK, student_experts=6, others=(OTHER,))
VECTORS = make_context(CONTEXT, teacher_hidden_size=None, teacher_layers=None)


def moe(context=CONTEXT, weights=None, **options):
    torch.manual_seed(0)
    given = {name: float(weight) for name, weight in (weights or {}).items()}
    return build_objective("distillmoe", {"layers": 2, **options}, given, context)


def signals(experts=3, padding=(0, 0), left=False):
    """Batch, student with these many experts, a teacher for every three; the padding has arbitrary numbers, others
    in every call.
    """
    generator = torch.Generator().manual_seed(0)
    texts = len(OURS)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    def states(lengths, width, more):
        columns = max(lengths) + more
        places = torch.arange(columns).expand(texts, -1)
        lengths = torch.tensor(lengths)[:, None]
        mask = places >= columns - lengths if left else places < lengths
        found = {}
        for layer in (-1, -2):
            values = torch.randn(texts, columns, width)
            values[mask] = draw(int(mask.sum()), width)
            found[layer] = values.requires_grad_()
        return found, mask

    (ours, our_mask), teachers = states(OURS, 6, padding[0]), []
    for lengths, width, hidden in zip(THEIRS, (5, 7), (8, 4), strict=True):
        found, mask = states(lengths, hidden, padding[1])
        detached = {layer: values.detach() for layer, values in found.items()}
        teachers.append(ModelOutputs(embedding=draw(texts, width), hidden_layers=detached, mask=mask))
    student = ModelOutputs(
        embedding=draw(texts, 6).requires_grad_(),
        second_view=draw(texts, 6).requires_grad_(),
        hidden_layers=ours,
        mask=our_mask,
        vector=draw(texts, 6).requires_grad_(),
        gates=(2 * draw(texts, experts)).softmax(-1).requires_grad_(),
        experts=draw(texts, experts, 6).requires_grad_(),
        logits=draw(texts, 3).requires_grad_(),
    )
    rows = torch.arange(texts)
    tokens = {"input_ids": our_mask.long(), "attention_mask": our_mask.long()}
    return (
        TextBatch(rows, tokens, torch.zeros_like(rows), labels=rows % 3),
        student,
        replace(teachers[0], others=tuple(teachers[1:2]) if experts == 6 else ()),
    )


# -- the paper, text by text -------------------------------------------------------------------------------------------


def cosine(one, two):
    return one @ two / (one.norm() * two.norm())


def facet_loss(facet, row, vectors, targets, projection, temperature=0.1, margin=0.1):
    """L_i^(k): eq. 1, 3 or 5 for one text."""
    texts = range(len(vectors))
    if facet == "pointwise":
        return 1 - cosine(projection @ vectors[row], targets[row])
    if facet == "contrastive":
        scores = [cosine(projection @ vectors[row], targets[j]) / temperature for j in texts]
        return -torch.log(scores[row].exp() / sum(score.exp() for score in scores))
    gaps = [
        abs(cosine(targets[row], targets[j]) - cosine(vectors[row], vectors[j])) - margin for j in texts if j != row
    ]
    return sum(gap.clamp_min(0) for gap in gaps) / len(gaps)


def diversity_loss(vectors, gates, floor=0.1):
    """Eq. 6 for one text."""
    count = len(vectors)
    pairs = [(m, n) for m in range(count) for n in range(count) if m != n]
    alike = sum(cosine(vectors[m], vectors[n]).clamp_min(0) for m, n in pairs) / len(pairs)
    return alike + sum((floor - gate).clamp_min(0) ** 2 for gate in gates)


def chosen_tokens(scores, rule):
    """S_(i,p) of eq. 11, and how the authors' code cuts it down."""
    shares = (scores / rule.temperature).softmax(0)
    order = sorted(range(len(scores)), key=lambda q: -shares[q].item())
    kept, mass = [], 0.0
    for q in order:
        if mass >= rule.threshold:
            break
        kept.append(q)
        mass += shares[q].item()
    kept = [q for q in kept[: rule.most] if rule.least is None or scores[q] >= rule.least]
    return kept or order[:1]


def cka_loss(states, others, projection, rule):
    """1 - sqrt(CKA) of one text and layer, eq. 11 and 12 in feature space; and the numbers of tokens that were kept."""
    rows, counts = [], []
    for state in states:
        scores = torch.stack([cosine(projection @ state, other) for other in others])
        kept = chosen_tokens(scores, rule)
        counts.append(len(kept))
        shares = (scores[kept] / rule.temperature).softmax(0)
        rows.append(sum(share * others[q] for share, q in zip(shares, kept, strict=True)))
    x, y = states - states.mean(0), torch.stack(rows)
    y = y - y.mean(0)
    cka = (x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())
    return 1 - cka.sqrt(), counts


def papers_terms(objective, batch, student, teacher, manual=None, facets=FACETS, rule=RULES["paper"], shares=(1.0,)):
    """Every term, one value a text, in float64."""
    texts, teachers = len(OURS), (teacher, *teacher.others)[: len(shares)]
    experts, gates, vector = student.experts.double(), student.gates.double(), student.vector.double()
    terms = {name: [] for name in ("task", "moe", "diversity", "uniform", "dynamic_cka")}
    for row in range(texts):
        terms["task"].append(-student.logits[row].double().log_softmax(0)[batch.labels[row]])
        mixed, places = 0.0, [(number, facet) for number in range(len(shares)) for facet in facets]
        for place, (number, facet) in enumerate(places):
            vectors = vector if manual else experts[:, place]
            weight = manual[place] if manual else gates[row, place]
            projection = None if facet == "pairwise" else objective.projection(facet, number).double()
            targets = teachers[number].embedding.double()
            mixed = mixed + weight * shares[number] * facet_loss(facet, row, vectors, targets, projection)
        terms["moe"].append(mixed)
        terms["diversity"].append(diversity_loss(experts[row], gates[row]))
        terms["uniform"].append(sum(gate * (gate * len(gates[row])).log() for gate in gates[row]))
        found = 0.0
        for number, share in enumerate(shares):
            projection = objective.projection("tokens", number).double()
            for layer in (-1, -2):
                states = student.hidden_layers[layer][row][student.mask[row]].double()
                others = teachers[number].hidden_layers[layer][row][teachers[number].mask[row]].double()
                found = found + share * cka_loss(states, others, projection, rule)[0] / 2 / len(shares)
        terms["dynamic_cka"].append(found)
    return {name: torch.stack(values) for name, values in terms.items()}


def leaves(student, objective):
    states = [student.hidden_layers[layer] for layer in (-1, -2)]
    return [
        *states,
        student.embedding,
        student.vector,
        student.gates,
        student.experts,
        student.logits,
        *objective.parameters(),
    ]


def gradients(terms, student, objective):
    loss = weighted_loss(terms, {name: objective.weights[name] for name in terms})
    return torch.autograd.grad(loss, leaves(student, objective), allow_unused=True, retain_graph=True)


@pytest.mark.parametrize(
    ("context", "options", "paper"),
    [
        (TASK, {"beta": 0.5}, {}),
        (TASK, {"rule": "authors"}, {"rule": RULES["authors"]}),
        (
            TASK,
            {"threshold": 0.5, "match_temperature": 0.2, "most": 2, "least": -0.2},
            {"rule": Rule(0.5, 0.2, 2, -0.2)},
        ),
        (
            make_context(TASK, student_experts=2),
            {"facets": ["pairwise", "pointwise"]},
            {"facets": ("pairwise", "pointwise")},
        ),
        (make_context(TASK, student_experts=0), {"manual": [0.2, 0.6, 0.2]}, {"manual": [0.2, 0.6, 0.2]}),
        (BOTH, {}, {"shares": (0.5, 1.5)}),
    ],
    ids=["paper", "authors", "own rule", "two facets", "manual", "two teachers"],
)
def test_terms_and_gradients_are_the_papers_text_by_text(context, options, paper):
    objective = moe(context, **options)
    batch, student, teacher = signals(context.student.experts or 3)
    found = objective(batch, student, teacher)
    expected = papers_terms(objective, batch, student, teacher, **paper)
    assert (
        set(found) == {name for name, weight in objective.weights.items() if weight} >= {"task", "moe", "dynamic_cka"}
    )
    expected = {name: expected[name] for name in found}
    for name, values in found.items():
        assert values.detach().min() >= 0 and values.detach().max() > 0.01, name
        torch.testing.assert_close(values.double(), expected[name], atol=2e-6, rtol=1e-5)
    pairs = zip(gradients(found, student, objective), gradients(expected, student, objective), strict=True)
    for leaf, (one, two) in zip(leaves(student, objective), pairs, strict=True):
        assert (one is None) == (two is None) and (one is None or one.shape == leaf.shape)
        if one is not None:
            torch.testing.assert_close(one.double(), two.double(), atol=2e-6, rtol=1e-4)


def test_one_shared_projection_is_three_of_equal_weights():
    context = make_context(TASK, teacher_hidden_size=5)
    batch, student, teacher = signals()
    teacher = replace(
        teacher, hidden_layers={layer: values[..., :5] for layer, values in teacher.hidden_layers.items()}
    )
    shared, apart = moe(context, share_projection=True), moe(context)
    assert [tuple(p.shape) for p in shared.projections.parameters()] == [(5, 6)] and len(
        list(apart.projections.parameters())
    ) == 3
    for parameter in apart.projections.parameters():
        parameter.data = next(shared.projections.parameters()).data.clone()
    one, two = shared(batch, student, teacher), apart(batch, student, teacher)
    for name, values in one.items():
        torch.testing.assert_close(values, two[name])
    weighted_loss(one, shared.weights).backward()
    weighted_loss(two, apart.weights).backward()
    torch.testing.assert_close(
        next(shared.projections.parameters()).grad, sum(p.grad for p in apart.projections.parameters())
    )
    assert moe(
        make_context(TASK, teacher_hidden_size=8), {"dynamic_cka": 0}, share_projection=True
    ).projections  # nothing leads to the states


def test_weights_are_those_of_equation_14():
    assert moe(TASK, distillation_weight=0.9, mix=0.7, beta=0.5).weights == pytest.approx(
        {"task": 0.1, "moe": 0.63, "diversity": 0.63, "uniform": 0.315, "dynamic_cka": 0.27}
    )
    assert moe().weights == pytest.approx({"moe": 0.8, "diversity": 0.8, "uniform": 0, "dynamic_cka": 0.2})
    manual = moe(make_context(TASK, student_experts=0), manual=[0.3, 0.3, 0.3], distillation_weight=0.7)
    assert manual.weights == pytest.approx({"task": 0.3, "moe": 0.56, "dynamic_cka": 0.14})
    simcse = moe(simcse=True, distillation_weight=0.75, mix=0.5).weights
    assert simcse == pytest.approx(
        {"simcse": 0.25, "moe": 0.375, "diversity": 0.375, "uniform": 0, "dynamic_cka": 0.375}
    )


def test_two_teachers_of_equal_weight_are_added_up():
    """Six experts under one gate: the facets' losses are summed over both teachers, DynamicCKA is their mean."""
    batch, student, teacher = signals(6)
    objective = moe(make_context(BOTH, others=(replace(OTHER, weight=1.0),)))
    expected = papers_terms(objective, batch, student, teacher, shares=(1.0, 1.0))
    found = objective(batch, student, teacher)
    for name in ("moe", "dynamic_cka"):
        torch.testing.assert_close(found[name].double(), expected[name], atol=2e-6, rtol=1e-5)
    shapes = {name: tuple(layer.weight.shape) for name, layer in objective.projections.items()}
    first = {"pointwise_0": (5, 6), "contrastive_0": (5, 6), "tokens_0": (8, 6)}
    assert shapes == {**first, "pointwise_1": (7, 6), "contrastive_1": (7, 6), "tokens_1": (4, 6)}


def test_a_term_without_weight_asks_for_nothing():
    states = TokenOutputSpec(hidden=(-1, -2), precision="float16")
    full = moe()
    assert full.student_outputs == OutputSpec(hidden_layers=(-2, -1), experts=True) and full.needs_fixed_batch
    assert full.teacher_outputs == OutputSpec(embedding=True, tokens=states)
    vectors = moe(VECTORS, {"dynamic_cka": 0})
    assert vectors.student_outputs == OutputSpec(experts=True) and vectors.teacher_outputs == OutputSpec(embedding=True)
    assert set(vectors.projections) == {"pointwise_0", "contrastive_0"}
    headless = moe(make_context(CONTEXT, student_experts=0), {"moe": 0, "diversity": 0})
    assert headless.student_outputs == OutputSpec(hidden_layers=(-2, -1)) and headless.teacher_outputs == OutputSpec(
        tokens=states
    )
    assert set(headless.projections) == {"tokens_0"} and not headless.needs_fixed_batch
    alone = moe(make_context(CONTEXT, student_experts=1), {"dynamic_cka": 0}, facets=["pointwise"])
    assert not alone.needs_fixed_batch and set(alone.projections) == {"pointwise_0"}
    manual = moe(make_context(VECTORS, student_experts=0), {"dynamic_cka": 0}, manual=[0.4, 0.4, 0.2])
    assert manual.student_outputs == OutputSpec(vector=True)
    labels = moe(
        make_context(TASK, student_experts=0, teacher_layers=None), {"moe": 0, "diversity": 0, "dynamic_cka": 0}
    )
    batch, student, teacher = signals()
    assert labels.teacher_outputs == OutputSpec() and set(labels(batch, student, ModelOutputs())) == {"task"}
    expected = full(batch, student, teacher)
    for objective, names in ((vectors, {"moe", "diversity"}), (headless, {"dynamic_cka"})):
        terms = objective(batch, student, teacher)
        assert set(terms) == names
    torch.testing.assert_close(terms["dynamic_cka"].shape, expected["dynamic_cka"].shape)
    torch.testing.assert_close(vectors(batch, student, teacher)["diversity"], expected["diversity"])


def test_simcse_takes_the_place_of_a_task():
    objective = moe(simcse=True)
    assert objective.student_outputs.embedding and objective.student_outputs.second_view and objective.needs_fixed_batch
    batch, student, teacher = signals()
    found = objective(batch, student, teacher)["simcse"]
    for row in range(len(OURS)):
        scores = (
            torch.stack([cosine(student.embedding[row], other) for other in student.second_view]) / SIMCSE_TEMPERATURE
        )
        torch.testing.assert_close(found[row], -scores.log_softmax(0)[row])
    without = moe(weights={"simcse": 0}, simcse=True)
    assert not without.student_outputs.second_view and "simcse" not in without(batch, student, teacher)


@pytest.mark.parametrize("rule", ["paper", "authors"])
def test_padding_of_either_side_changes_neither_value_nor_gradient(rule):
    objective = moe(BOTH, rule=rule)
    expected = None
    for padding, left in (((0, 0), False), ((3, 2), False), ((2, 4), True)):
        batch, student, teacher = signals(6, padding, left)
        terms = objective(batch, student, teacher)
        grads = [grad for grad in gradients(terms, student, objective) if grad is not None]
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert all(grad[~student.mask].abs().sum() == 0 for grad in grads[:2])
        found = (
            {name: values.detach() for name, values in terms.items()},
            [*(grad[student.mask] for grad in grads[:2]), *grads[2:]],
        )
        expected = expected or found
        for name, values in found[0].items():
            torch.testing.assert_close(values, expected[0][name], atol=1e-6, rtol=1e-5)
        for one, two in zip(found[1], expected[1], strict=True):
            torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_figures_tell_of_losses_and_tokens():
    batch, student, teacher = signals(6)
    objective = moe(BOTH)
    found = objective.metrics(batch, student, teacher)
    names = [f"facet_{facet}_{number}" for number in (0, 1) for facet in FACETS]
    assert list(found) == [*names, "within_margin", "kept_tokens"]
    assert all(value.shape == () for value in found.values())
    weighed = objective(batch, replace(student, gates=torch.full((4, 6), 1 / 6)), teacher)["moe"].mean()
    torch.testing.assert_close(sum(found[name] for name in names) / 6, weighed)
    counts = []
    for row in range(len(OURS)):
        states, others = (side.hidden_layers[-1][row][side.mask[row]].detach() for side in (student, teacher))
        counts += cka_loss(states, others, objective.projection("tokens", 0).detach(), RULES["paper"])[1]
    assert found["kept_tokens"].item() == pytest.approx(sum(counts) / len(counts)) and len(set(counts)) > 1
    few = moe(make_context(VECTORS, student_experts=1), {"dynamic_cka": 0}, facets=["pointwise"])
    alone = replace(student, gates=student.gates[:, :1], experts=student.experts[:, :1])
    assert list(few.metrics(batch, alone, replace(teacher, others=()))) == ["facet_pointwise"]


def test_the_gate_learns_to_prefer_the_smaller_loss():
    """Theorem 3.2: with the experts as they are, weight moves to the facet that costs least; beta pulls back to equal
    weights.
    """
    batch, student, teacher = signals()
    objective = moe(VECTORS, {"dynamic_cka": 0})
    gates = torch.full((4, 3), 1 / 3, requires_grad=True)
    terms = objective(batch, replace(student, gates=gates), teacher)
    slopes = torch.autograd.grad(terms["moe"].sum(), gates)[0]
    losses = torch.stack(
        [objective.metrics(batch, replace(student, gates=gates), teacher)[f"facet_{name}"] for name in FACETS]
    )
    torch.testing.assert_close(slopes.mean(0), losses.detach())


@pytest.mark.parametrize(
    ("context", "options", "weights", "key"),
    [
        (make_context(CONTEXT, student_experts=0), {}, {}, "student.experts"),
        (make_context(CONTEXT, student_experts=4), {}, {}, "student.experts"),
        (make_context(CONTEXT, others=(OTHER,)), {}, {}, "student.experts"),
        (VECTORS, {}, {}, "method.name"),
        (make_context(BOTH, others=(TeacherInfo(7),)), {}, {}, "method.name"),
        (CONTEXT, {"layers": 4}, {}, "method.options.layers"),
        (BOTH, {"layers": 3}, {}, "method.options.layers"),
        (CONTEXT, {"layers": 0}, {}, "method.options.layers"),
        (CONTEXT, {"share_projection": True}, {}, "method.options.share_projection"),
        (CONTEXT, {"facets": ["pointwise", "pairwize"]}, {}, "method.options.facets"),
        (CONTEXT, {"facets": []}, {}, "method.options.facets"),
        (CONTEXT, {"facets": ["pointwise", "pointwise"]}, {}, "method.options.facets"),
        (CONTEXT, {"manual": [0.5, 0.5]}, {}, "method.options.manual"),
        (CONTEXT, {"manual": [0.3, 0.3, 0.3]}, {}, "method.options.manual"),
        (TASK, {"simcse": True}, {}, "method.options.simcse"),
        (CONTEXT, {"mix": 1.5}, {}, "method.options.mix"),
        (CONTEXT, {"distillation_weight": -1.0}, {}, "method.options.distillation_weight"),
        (CONTEXT, {"temperature": 0.0}, {}, "method.options.temperature"),
        (CONTEXT, {"floor": 2.0}, {}, "method.options.floor"),
        (CONTEXT, {"beta": -0.1}, {}, "method.options.beta"),
        (CONTEXT, {"rule": "mine"}, {}, "method.options.rule"),
        *((CONTEXT, {"threshold": value}, {}, "method.options.threshold") for value in (0.0, 1.1)),
        (CONTEXT, {"match_temperature": 0.0}, {}, "method.options.match_temperature"),
        (CONTEXT, {"most": 0}, {}, "method.options.most"),
        (CONTEXT, {"least": 1.5}, {}, "method.options.least"),
        (
            make_context(CONTEXT, student_experts=0),
            {"manual": [0.3, 0.3, 0.3]},
            {"diversity": 1},
            "method.weights.diversity",
        ),
    ],
)
def test_what_cannot_be_is_refused(context, options, weights, key):
    with pytest.raises(DistilvecError, match=rf"^\[{key}\]"):
        moe(context, weights, **options)


def test_one_match_alone_teaches_its_projection_nothing():
    """Why rule "authors" needs share_projection: a single match has weight 1 whatever its cosine."""
    batch, student, teacher = signals()
    slopes = {}
    for most in (1, 2):
        objective = moe(TASK, most=most)
        loss = objective(batch, student, teacher)["dynamic_cka"].sum()
        slopes[most] = torch.autograd.grad(loss, objective.projection("tokens", 0))[0].abs().max().item()
    assert slopes[1] < 1e-9 < 1e-4 < slopes[2]


def test_the_authors_floor_for_pairs_and_their_projection_that_no_optimizer_holds():
    """moe + 5 mean sum relu(0.25 - gate)^2 + mean over pairs of relu(cos), one layer drawn at random and left so."""
    batch, student, teacher = signals()
    context = make_context(TASK, teacher_hidden_size=5)
    states = {layer: values[..., :5] for layer, values in teacher.hidden_layers.items()}
    options = {"floor": 0.25, "floor_weight": 5.0, "rule": "authors", "share_projection": True, "fix_projections": True}
    objective = moe(context, mix=0.7, distillation_weight=0.5, **options)
    found = objective(batch, student, replace(teacher, hidden_layers=states))
    expected = torch.zeros(len(batch), dtype=torch.float64)
    for row, (experts, gates) in enumerate(zip(student.experts.double(), student.gates.double(), strict=True)):
        pairs = [cosine(experts[m], experts[n]).clamp_min(0) for m in range(3) for n in range(3) if m != n]
        expected[row] = sum(pairs) / 6 + 5 * sum((0.25 - gate).clamp_min(0) ** 2 for gate in gates)
    torch.testing.assert_close(found["diversity"].double(), expected, atol=1e-6, rtol=0)
    assert not any(p.requires_grad for p in objective.projections.parameters())
    weighted_loss(found, objective.weights).backward()
    assert student.experts.grad.any() and all(p.grad is None for p in objective.projections.parameters())
    trained = trained_parameters(objective, TrainSection())
    assert trained and not any(name.startswith("projections") for name in trained)
