"""EMO: its terms against a loop over texts written from the paper, layer maps, ablations that cost nothing, padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from contexts import make_context
from refusals import refused

from distilvec.core.batch import Alignment, TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective
from distilvec.core.task_head import TaskInfo
from distilvec.losses.emo import importance, select, selected_gram

CONTEXT = make_context(student_hidden_size=6, student_layers=3, teacher_dim=8, teacher_hidden_size=8, teacher_layers=7)
LENGTHS = [(9, 8), (6, 8), (4, 3)]  # of the student's and the teacher's tokens
PAIRS = [[(0, 0), (1, 1), (2, 3), (4, 4), (5, 5), (7, 6), (8, 7)], [(0, 0), (2, 1), (3, 5), (5, 7)], [(0, 0), (3, 2)]]


def emo(weights=None, context=CONTEXT, **options):
    torch.manual_seed(0)
    return build_objective("emo", options, {name: float(weight) for name, weight in (weights or {}).items()}, context)


def weighted(objective):
    """The weights of the terms that have one."""
    return {name: weight for name, weight in objective.weights.items() if weight}


def attention(generator, rows, tokens):
    """Maps of texts with these numbers of tokens, padded to the longest by garbage that no one may look at."""
    maps = torch.full((len(tokens), rows, rows), 0.123)
    for row, count in enumerate(tokens):
        maps[row, :, count:] = 0
        maps[row, :count, :count] = (2 * torch.randn(count, count, generator=generator)).softmax(-1)
    return maps


@pytest.fixture
def signals():
    """Batch, student and teacher, with the maps they were made of."""
    generator = torch.Generator().manual_seed(0)
    student_lengths, teacher_lengths = ([length[side] for length in LENGTHS] for side in (0, 1))
    ours, theirs = (
        torch.arange(max(counts)) < torch.tensor(counts)[:, None] for counts in (student_lengths, teacher_lengths)
    )
    pairs = torch.full((3, 7, 2), -1)
    for row, found in enumerate(PAIRS):
        pairs[row, : len(found)] = torch.tensor(found)
    maps = {layer: attention(generator, 8, teacher_lengths) for layer in (4, 5, 6, 7)}
    masses = importance(maps[7], theirs)
    selected = select(pairs, masses, 1)
    grams = {layer: selected_gram(maps[layer], selected[..., 1]) for layer in (4, 5, 6, 7)}
    hidden = torch.randn(3, 8, 8, generator=generator) * theirs[..., None]
    teacher = ModelOutputs(hidden_layers={-1: hidden}, mask=theirs, importance=masses, selected=selected, grams=grams)
    full = {layer: attention(generator, 9, student_lengths) for layer in (1, 2, 3)}
    rows = selected[..., 0].clamp_min(0)[..., None].expand(-1, -1, 9)
    student = ModelOutputs(
        hidden_layers={-1: 2 * torch.randn(3, 9, 6, generator=generator)},
        attentions={layer: values.gather(1, rows) for layer, values in full.items()},
        mask=ours,
        logits=torch.randn(3, 4, generator=generator),
    )
    tokens = {"input_ids": ours.long(), "attention_mask": ours.long()}
    batch = TextBatch(
        torch.arange(3),
        tokens,
        torch.zeros(3, dtype=torch.long),
        labels=torch.tensor([0, 3, 1]),
        alignment=Alignment(pairs),
    )
    return batch, student, teacher, full, maps


def ira_of_one_text(row, full, maps, layers):
    """Eq. 6 to 14 for one text, in feature space."""
    students, teachers = LENGTHS[row]
    score = maps[7][row, :teachers, :teachers].double().sum(0)
    chosen = sorted(PAIRS[row], key=lambda pair: -score[pair[1]])
    loss = 0.0
    for ours, theirs in layers.items():
        x = full[ours][row].double()[[i for i, _ in chosen], :students]
        y = maps[theirs][row].double()[[j for _, j in chosen], :teachers]
        x, y = x - x.mean(0), y - y.mean(0)
        cka = (x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())
        loss += 1 - cka.sqrt().item()
    return loss


def otis_of_one_text(row, student, teacher, maps, projection, skipped=False, cosine=False):
    """Eq. 15 to 21 for one text, with POT; `skipped` leaves out its first and last token on both sides; `cosine` has
    half of 1 - cos of the states in the place of eq. 17 and 18.
    """
    inner = slice(1, -1) if skipped else slice(None)
    ours, theirs = np.arange(LENGTHS[row][0])[inner], np.arange(LENGTHS[row][1])[inner]
    score = maps[7][row, : LENGTHS[row][1], : LENGTHS[row][1]].double().sum(0).numpy()[theirs]
    mu = score / score.sum()
    partner = dict(PAIRS[row])
    nu = np.array([mu[list(theirs).index(partner[i])] if i in partner else mu.min() for i in ours])
    nu = nu / nu.sum()
    hidden, other = student.hidden_layers[-1][row, ours].double(), teacher.hidden_layers[-1][row, theirs].double()
    if cosine:
        similarity = torch.nn.functional.cosine_similarity((hidden @ projection.double())[:, None], other[None], dim=-1)
        cost = ((1 - similarity) / 2).numpy()
    else:
        similarity = hidden @ (other @ projection.double()).T / 6**0.5
        cost = (1 - similarity.softmax(1)).numpy()
    return float((ot.sinkhorn(nu, mu, cost, 0.1, numItermax=2000, stopThr=1e-12) * cost).sum())


def test_terms_are_the_papers_text_by_text(signals):
    batch, student, teacher, full, maps = signals
    objective = emo(iterations=500, context=make_context(CONTEXT, task=TaskInfo("classification", 4)))
    terms = objective(batch, student, teacher)
    expected = [ira_of_one_text(row, full, maps, {2: 4, 3: 6}) for row in range(3)]
    assert terms["ira"].tolist() == pytest.approx(expected, abs=1e-5) and min(expected[:2]) > 1e-3
    assert expected[2] == pytest.approx(
        0, abs=1e-6
    )  # two rows differ in one direction only: their CKA is 1, whatever they are
    for otis, cosine in ((objective, False), (emo(iterations=500, cost="cosine"), True)):
        projection = otis.projection.weight.detach().T
        expected = [otis_of_one_text(row, student, teacher, maps, projection, cosine=cosine) for row in range(3)]
        assert otis(batch, student, teacher)["otis"].tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(
        terms["task"], torch.nn.functional.cross_entropy(student.logits, batch.labels, reduction="none")
    )


def test_weights_are_those_of_equation_22():
    task = make_context(CONTEXT, task=TaskInfo("classification", 4))
    for objective, expected in (
        (emo(context=task, distillation_weight=0.9), {"task": 0.1, "ira": 0.9, "otis": 0.9}),
        (emo(context=task, distillation_weight=0.5, ira_weight=0.1), {"task": 0.5, "ira": 0.05, "otis": 0.5}),
        (emo(ira_weight=0.1), {"ira": 0.1, "otis": 1.0}),
    ):
        assert weighted(objective) == pytest.approx(expected)


def test_simcse_takes_the_place_of_the_task(signals):
    batch, student, teacher, *_ = signals
    objective = emo(simcse=True, distillation_weight=0.25)
    assert weighted(objective) == {"simcse": 0.75, "ira": 0.25, "otis": 0.25}
    assert objective.student_outputs.second_view and objective.needs_fixed_batch
    plain = emo()
    assert not plain.student_outputs.second_view and not plain.needs_fixed_batch
    own, views = torch.randn(2, 3, 6)
    found = objective(batch, replace(student, embedding=own, second_view=views), teacher)
    for row in range(3):
        scores = torch.stack([torch.cosine_similarity(own[row], other, dim=0) for other in views]) / 0.05
        torch.testing.assert_close(found["simcse"][row], -scores.log_softmax(0)[row], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["ira"], plain(batch, student, teacher)["ira"])
    with refused("method.options.simcse"):
        emo(context=make_context(CONTEXT, task=TaskInfo("classification", 4)), simcse=True)


def test_layers_are_mapped_as_the_paper_does_or_from_the_last():
    assert emo().ira_layer_map == {2: 4, 3: 6}
    assert emo(ira_layers=3).ira_layer_map == {1: 2, 2: 4, 3: 6}
    assert emo(layer_map="last_aligned").ira_layer_map == {2: 5, 3: 7}
    mistral = make_context(CONTEXT, student_layers=12, teacher_layers=32)
    assert emo(context=mistral).ira_layer_map == {11: 22, 12: 24}
    assert emo(context=mistral, layer_map="last_aligned").ira_layer_map == {11: 30, 12: 32}


def test_special_tokens_can_be_left_out_of_otis(signals):
    batch, student, teacher, _, maps = signals
    objective = emo(
        context=make_context(CONTEXT, student_special_tokens=(1, 1), teacher_special_tokens=(1, 1)),
        iterations=500,
        drop_special=True,
    )
    found = objective(batch, student, teacher)["otis"]
    projection = objective.projection.weight.detach().T
    expected = [otis_of_one_text(row, student, teacher, maps, projection, skipped=True) for row in range(3)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DistilvecError, match="special tokens are not known"):
        emo(drop_special=True)
    none_left = emo(
        context=make_context(CONTEXT, student_special_tokens=(2, 2), teacher_special_tokens=(2, 2)), drop_special=True
    )(batch, student, teacher)
    assert torch.isfinite(none_left["otis"]).all() and none_left["otis"][2] == 0


def test_a_term_without_weight_asks_for_nothing(signals):
    batch, student, teacher, *_ = signals
    full, without_ira, without_otis = emo(), emo({"ira": 0}), emo({"otis": 0})
    assert full.student_outputs == OutputSpec(hidden_layers=(-1,), attention_layers=(2, 3))
    assert full.teacher_outputs.tokens == TokenOutputSpec("offsets", (-1,), True, (4, 6), 3, False)
    assert without_ira.student_outputs == OutputSpec(hidden_layers=(-1,))
    assert without_ira.teacher_outputs.tokens == TokenOutputSpec("offsets", (-1,), True, (), 3)
    assert without_otis.student_outputs == OutputSpec(attention_layers=(2, 3))
    assert without_otis.teacher_outputs.tokens == TokenOutputSpec("offsets", (), False, (4, 6), 3, False)
    expected = full(batch, student, teacher)
    for objective, name in ((without_ira, "otis"), (without_otis, "ira")):
        terms = objective(batch, student, teacher)
        assert set(terms) == {name}
        torch.testing.assert_close(terms[name], expected[name])
    task = emo({"ira": 0, "otis": 0}, make_context(CONTEXT, task=TaskInfo("classification", 4), teacher_layers=None))
    assert set(task(batch, student, ModelOutputs())) == {"task"} and task.teacher_outputs == OutputSpec()


def test_padding_of_either_side_changes_neither_value_nor_gradient(signals):
    batch, student, teacher, *_ = signals
    ours, theirs = student.mask, teacher.mask
    pad = torch.nn.functional.pad
    wider = replace(
        student,
        hidden_layers={-1: pad(student.hidden_layers[-1], (0, 0, 0, 2), value=3.0)},
        attentions={layer: pad(values, (0, 2, 0, 2)) for layer, values in student.attentions.items()},
        mask=pad(ours, (0, 2)),
    )
    longer = replace(
        teacher,
        hidden_layers={-1: pad(teacher.hidden_layers[-1], (0, 0, 0, 3), value=-2.0)},
        mask=pad(theirs, (0, 3)),
        importance=pad(teacher.importance, (0, 3)),
        selected=pad(teacher.selected, (0, 0, 0, 2), value=-1),
        grams={layer: pad(values, (0, 2, 0, 2)) for layer, values in teacher.grams.items()},
    )
    padded = replace(batch, alignment=Alignment(pad(batch.alignment.pairs, (0, 0, 0, 3), value=-1)))
    for options in ({}, {"unroll": True}, {"cost": "cosine"}):
        grads, values = [], []
        for inputs in ((batch, student, teacher), (padded, wider, longer)):
            objective = emo(**options)
            leaves = [inputs[1].hidden_layers[-1].requires_grad_(), inputs[1].attentions[3].requires_grad_()]
            terms = objective(*inputs)
            found = torch.autograd.grad(weighted_loss(terms, objective.weights), [*leaves, objective.projection.weight])
            assert all(torch.isfinite(grad).all() for grad in found)
            grads.append((found[0][:, :9], found[1][:, : teacher.selected.shape[1], :9], found[2]))
            values.append(terms)
        for name in values[0]:
            torch.testing.assert_close(values[0][name], values[1][name], atol=2e-6, rtol=0)
        for first, second in zip(*grads, strict=True):
            torch.testing.assert_close(first, second, atol=2e-6, rtol=1e-4)


def test_a_text_with_one_pair_has_nothing_to_align_and_hurts_nothing(signals):
    batch, student, teacher, *_ = signals
    selected = teacher.selected.clone()
    selected[0, 1:] = -1
    grams = {layer: values.clone() for layer, values in teacher.grams.items()}
    for values in grams.values():
        values[0] = 0
    student.attentions[3].requires_grad_()
    terms = emo({"otis": 0})(batch, student, replace(teacher, selected=selected, grams=grams))
    terms["ira"].mean().backward()
    expected = emo({"otis": 0})(batch, student, teacher)["ira"].detach()
    assert float(terms["ira"].detach().mean()) == pytest.approx(float(expected[1:].mean()), abs=1e-6), (
        "the mean over the others"
    )
    assert terms["ira"][0] == 0 and torch.isfinite(student.attentions[3].grad).all()
    assert student.attentions[3].grad[0].abs().sum() == 0


@pytest.mark.parametrize(
    ("options", "context", "match"),
    [
        ({"ira_layers": 4}, CONTEXT, "ira_layers.*1 to 3"),
        ({"divisor": 0}, CONTEXT, "divisor"),
        ({"distillation_weight": 1.5}, CONTEXT, "distillation_weight"),
        ({"layer_map": "other"}, CONTEXT, "layer_map"),
        ({"alignment": "overlap"}, CONTEXT, "alignment"),
        ({}, make_context(CONTEXT, teacher_layers=2), "no more layers than the teacher"),
        ({}, make_context(CONTEXT, teacher_layers=None), "reads the teacher's layers"),
    ],
)
def test_what_cannot_be_is_refused(options, context, match):
    with pytest.raises(DistilvecError, match=match):
        emo(context=context, **options)


def test_texts_with_fewer_than_two_tokens_for_ira_are_in_no_mean(signals):
    batch, student, teacher, *_ = signals
    keep = emo({"otis": 0}, ira_special_tokens="keep", divisor=3)  # m of the texts: 7 // 3, 4 // 3, 2 // 3
    dropped = emo({"otis": 0}, divisor=3)  # what is selected has been dropped before
    assert keep.teacher_outputs.tokens.special_tokens and not dropped.teacher_outputs.tokens.special_tokens
    every = dropped(batch, student, teacher)["ira"]
    found = keep(batch, student, teacher)["ira"]
    assert found.tolist() == pytest.approx([3 * float(every[0]), 0, 0], abs=1e-5)
    assert keep.metrics(batch, student, teacher)["without_ira"].item() == pytest.approx(2 / 3)
    assert dropped.metrics(batch, student, teacher)["without_ira"].item() == 0
    none = emo({"otis": 0}, ira_special_tokens="keep", divisor=8)
    student.attentions[3].requires_grad_()
    terms = none(batch, student, teacher)["ira"]
    terms.sum().backward()
    assert terms.tolist() == [0, 0, 0] and not student.attentions[3].grad.any()
    assert emo({"ira": 0}).metrics(batch, student, teacher) == {}


def doubled(outputs):
    """Outputs in float64."""
    layers = {
        name: {layer: values.double() for layer, values in getattr(outputs, name).items()}
        for name in ("hidden_layers", "attentions", "grams")
    }
    return replace(outputs, **layers, importance=None if outputs.importance is None else outputs.importance.double())


def authors_otis(row, student, teacher, maps, projection):
    """The transport of one text as published: softmax of the sums of attention, copied, and softmax again."""
    students, teachers = LENGTHS[row]
    mu = maps[7][row, :teachers, :teachers].double().sum(0).softmax(0)
    partner = dict(PAIRS[row])
    nu = torch.stack([mu[partner[i]] if i in partner else mu.min() for i in range(students)]).softmax(0)
    ours, theirs = (
        student.hidden_layers[-1][row, :students].double(),
        teacher.hidden_layers[-1][row, :teachers].double(),
    )
    cost = 1 - (ours @ (theirs @ projection).T / 6**0.5).softmax(1)
    kernel, u = (-cost / 0.1).exp(), torch.ones(students, dtype=torch.float64)
    for _ in range(100):
        v = mu / (kernel.T @ u)
        u = nu / (kernel @ v)
    return float((u[:, None] * kernel * v * cost).sum())


def test_the_authors_weights_and_masses_equal_their_description(signals):
    """kd_rate (0.1 sum over the samples of IRA + mean of OT) + (1 - kd_rate) CE, with two softmaxes for the masses."""
    batch, student, teacher, full, maps = signals
    options = {"distillation_weight": 0.3, "ira_weight": 0.1, "ira_reduction": "sum", "importance": "softmax"}
    objective = emo(context=make_context(CONTEXT, task=TaskInfo("classification", 4)), **options).double()
    exact = importance(maps[7].double(), teacher.mask)
    selected = select(batch.alignment.pairs, exact, 1)
    grams = {layer: selected_gram(values.double(), selected[..., 1]) for layer, values in maps.items()}
    found = objective(batch, doubled(student), replace(doubled(teacher), importance=exact, grams=grams))
    loss = weighted_loss(found, objective.weights).item()
    projection = objective.projection.weight.detach().T
    ira = sum(ira_of_one_text(row, full, maps, {2: 4, 3: 6}) for row in range(3))
    otis = [authors_otis(row, student, teacher, maps, projection) for row in range(3)]
    entropy = torch.nn.functional.cross_entropy(student.logits, batch.labels).item()
    assert found["otis"].tolist() == pytest.approx(otis, abs=1e-6)
    assert found["ira"].mean().item() == pytest.approx(ira, abs=1e-6)
    assert loss == pytest.approx(0.7 * entropy + 0.3 * (0.1 * ira + sum(otis) / 3), abs=1e-6)
