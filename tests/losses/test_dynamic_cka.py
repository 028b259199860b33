"""DynamicCKA: the check values, the paper's loop, both widths, padding anywhere, texts without structure, no waiting."""  # noqa: E501

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from torch.utils._python_dispatch import TorchDispatchMode

from distilvec.losses import dynamic_cka as module
from distilvec.losses.cka import centred_gram, unit_gram
from distilvec.losses.dynamic_cka import (
    RULES,
    Rule,
    aggregate_gram,
    dynamic_cka,
    kept_tokens,
    match_weights,
    narrow_is_cheaper,
    teacher_gram,
    token_similarity,
)

ALL = {
    **RULES,
    "sharp": Rule(0.9, 0.1),
    "two": Rule(most=2),
    "near": Rule(least=0.05),
    "one": Rule(0.001),
    "every": Rule(1.0),
}


# -- the form of the paper: text by text, token by token ---------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A batch: states of both sides, Q, masks; `sizes` are the texts' lengths."""

    states: Tensor
    teacher: Tensor
    projection: Tensor
    student_mask: Tensor
    teacher_mask: Tensor
    sizes: list[tuple[int, int]]

    def doubled(self) -> Case:
        """The same in float64."""
        return replace(
            self, states=self.states.double(), teacher=self.teacher.double(), projection=self.projection.double()
        )

    def wanting(self) -> Case:
        """The same, its states and Q with gradients of their own."""
        return replace(
            self, states=self.states.clone().requires_grad_(), projection=self.projection.clone().requires_grad_()
        )


def draw(texts: int, student: int, teacher: int, width: int, teacher_width: int) -> Case:
    """Random states of texts of three quarters of the lengths up to all of them."""
    generator = torch.Generator().manual_seed(0)
    ours = torch.randint(3 * student // 4, student + 1, (texts,), generator=generator)
    theirs = torch.randint(3 * teacher // 4, teacher + 1, (texts,), generator=generator)
    ours[0], theirs[0] = student, teacher
    student_mask, teacher_mask = torch.arange(student) < ours[:, None], torch.arange(teacher) < theirs[:, None]
    shapes = ((texts, student, width), (texts, teacher, teacher_width), (teacher_width, width))
    states, others, projection = (torch.randn(*shape, generator=generator) for shape in shapes)
    sizes = list(zip(ours.tolist(), theirs.tolist(), strict=True))
    return Case(states, others, projection * width**-0.5, student_mask, teacher_mask, sizes)


def aggregation_by_loop(case: Case, rule: Rule) -> Tensor:
    """The aggregates of all texts, one below the other. All tokens go through Q at once, which the paper does not say."""  # noqa: E501
    ours = case.states @ case.projection.T
    pairs = [(ours[text, :n], case.teacher[text, :m]) for text, (n, m) in enumerate(case.sizes)]
    cosines = [normalize(first, dim=-1) @ normalize(second, dim=-1).T for first, second in pairs]
    return torch.cat(aggregates(cosines, case, rule))


def aggregates(cosines: list[Tensor], case: Case, rule: Rule) -> list[Tensor]:
    """Each text's aggregate [n, teacher's width] from its cosines [n, m]."""
    return [
        torch.stack([aggregate(row, case.teacher[text, : case.sizes[text][1]], rule) for row in rows])
        for text, rows in enumerate(cosines)
    ]


def aggregate(cosines: Tensor, teacher: Tensor, rule: Rule) -> Tensor:
    """What one of the student's tokens gathers (eq. 11 and below): the most probable tokens until their mass suffices."""  # noqa: E501
    shares = (cosines / rule.temperature).softmax(0)
    ranked, order = shares.sort(descending=True, stable=True)
    kept, mass = list[int](), 0.0
    for share, place in zip(ranked.tolist(), order.tolist(), strict=True):
        kept.append(place)
        mass += share
        if mass >= rule.threshold or len(kept) == rule.most:
            break
    if rule.least is not None:
        kept = [place for place in kept if cosines[place].item() >= rule.least] or kept[:1]
    return (shares[kept] / shares[kept].sum()) @ teacher[kept]


def value_by_loop(case: Case, rule: Rule) -> Tensor:
    """1 - sqrt(CKA) of each text by eq. 12: norms of matrices of the widths' size."""
    rows = torch.split(aggregation_by_loop(case, rule), [n for n, _ in case.sizes])
    return torch.stack(
        [1 - in_feature_space(case.states[text, : len(theirs)], theirs).sqrt() for text, theirs in enumerate(rows)]
    )


def in_feature_space(first: Tensor, second: Tensor) -> Tensor:
    """CKA of two matrices with the same rows."""
    first, second = first - first.mean(0), second - second.mean(0)
    return torch.linalg.norm(first.T @ second) ** 2 / (
        torch.linalg.norm(first.T @ first) * torch.linalg.norm(second.T @ second)
    )


# -- the batched form --------------------------------------------------------------------------------------------------


@pytest.fixture
def check():
    """The check value's student (3, 8) and teacher (6, 8), one text."""
    generator = torch.Generator().manual_seed(12)
    return tuple(torch.randn(1, rows, 8, generator=generator, dtype=torch.float64) for rows in (3, 6))


def every(states):
    return torch.ones(states.shape[:2], dtype=torch.bool)


def value(case: Case, rule: Rule):
    return dynamic_cka(case.states, case.teacher, case.projection, case.student_mask, case.teacher_mask, rule)


def weights_of(case: Case, rule: Rule):
    similarity = token_similarity(case.states, case.teacher, case.projection)
    return match_weights(similarity, case.student_mask, case.teacher_mask, rule)


@pytest.mark.parametrize(
    ("name", "counts", "row", "expected"),
    [
        (
            "paper",
            [6, 5, 5],
            [
                0.5220889752,
                0.6365650299,
                -0.3130868729,
                0.1967409239,
                0.2792891792,
                0.0937227272,
                -0.9545977705,
                0.0760408221,
            ],
            0.0177636854,
        ),
        (
            "authors",
            [3, 1, 3],
            [
                0.8380636728,
                1.0162355523,
                -0.0868632714,
                0.1920363878,
                0.1182986986,
                -0.4765715478,
                -0.9768155932,
                0.1118928026,
            ],
            0.1283017998,
        ),
    ],
)
def test_check_values(check, name, counts, row, expected):
    student, teacher = check
    same = torch.eye(8, dtype=torch.float64)
    weights = match_weights(token_similarity(student, teacher, same), every(student), every(teacher), RULES[name])
    assert (weights > 0).sum(-1).tolist() == [counts]
    assert kept_tokens(weights, every(student)).item() == pytest.approx(sum(counts) / 3)
    assert (weights @ teacher)[0, 0].tolist() == pytest.approx(row, abs=1e-10)
    found = dynamic_cka(student, teacher, same, every(student), every(teacher), RULES[name])
    assert found.item() == pytest.approx(expected, abs=1e-8)
    first, second = ((rows - rows.mean(0)) for rows in (student[0], (weights @ teacher)[0]))
    cross, ours, theirs = (torch.linalg.norm(a.T @ b) for a, b in ((first, second), (first, first), (second, second)))
    authors = 1 - cross / ((ours + 1e-8) * (theirs + 1e-8)).sqrt()  # their class adds this to each norm
    assert authors.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
def test_equal_to_the_paper_s_loop_in_values_and_gradients(rule):
    case = draw(5, 9, 11, 6, 10).doubled()
    batched, looped = case.wanting(), case.wanting()
    found, expected = value(batched, rule), value_by_loop(looped, rule)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    factors = torch.arange(1.0, 6.0, dtype=torch.float64)
    torch.autograd.backward([(found * factors).sum(), (expected * factors).sum()])
    torch.testing.assert_close(batched.states.grad, looped.states.grad, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(batched.projection.grad, looped.projection.grad, atol=1e-9, rtol=1e-6)
    assert torch.equal(
        batched.states.grad[~case.student_mask], torch.zeros_like(batched.states.grad[~case.student_mask])
    )


@pytest.mark.parametrize("name", RULES)
def test_fp32_is_near_float64(name):
    case = draw(8, 20, 25, 32, 48)
    found = value(case, RULES[name])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), value_by_loop(case.doubled(), RULES[name]), atol=2e-6, rtol=0)
    far = replace(
        case, teacher=1000 * (case.teacher + 30 * torch.ones(48))
    )  # as hidden states are: alike, but for a little
    expected = value_by_loop(far.doubled(), RULES[name])
    torch.testing.assert_close(value(far, RULES[name]).double(), expected, atol=2e-3, rtol=0)


def test_half_precision_is_worked_out_in_fp32():
    case = draw(3, 8, 9, 16, 24)
    half = replace(case, states=case.states.bfloat16())
    assert value(half, RULES["paper"]).dtype == torch.float32
    torch.testing.assert_close(
        value(half, RULES["paper"]), value(replace(case, states=half.states.float()), RULES["paper"])
    )


def cosines_by_definition(states, teacher, projection):
    """Return the cosines of `token_similarity` in memory for n m D numbers per text."""
    return cosine_similarity((states @ projection.mT)[:, :, None], teacher[:, None], dim=-1)


@pytest.mark.parametrize("narrow", [True, False])
def test_the_reference_form_has_the_same_value_and_gradients(narrow, monkeypatch):
    monkeypatch.setattr(module, "narrow_is_cheaper", lambda *shapes: narrow)
    case = draw(3, 5, 7, 6, 9).doubled().wanting()
    inputs, learned = (case.states, case.teacher, case.projection), (case.states, case.projection)
    found, expected = token_similarity(*inputs), cosines_by_definition(*inputs)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-12)
    upstream = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    for one, two in zip(
        *(torch.autograd.grad(cosines, learned, upstream) for cosines in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, two, atol=1e-13, rtol=1e-10)


@pytest.mark.parametrize("narrow", [True, False])
def test_both_widths_give_the_same_cosines(narrow, monkeypatch):
    monkeypatch.setattr(module, "narrow_is_cheaper", lambda *shapes: narrow)
    case = draw(2, 5, 7, 6, 9).doubled().wanting()
    expected = torch.stack(
        [
            torch.stack([cosine_similarity(case.projection @ state, teacher, dim=-1) for state in states])
            for states, teacher in zip(case.states, case.teacher, strict=True)
        ]
    )
    found = token_similarity(case.states, case.teacher, case.projection)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum(), (case.states, case.projection))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (case.states, case.projection)), wanted)
    learning = case.states.detach()[:1, :2].requires_grad_(), case.projection
    assert torch.autograd.gradgradcheck(
        lambda states, matrix: token_similarity(states, case.teacher[:1, :3], matrix), learning
    )
    with torch.no_grad():
        case.states[0, 1] = 0
    zero = case.teacher.clone()
    zero[1, 2] = 0
    similarity = token_similarity(case.states, zero, case.projection)
    assert similarity[0, 1].abs().sum() == 0 and similarity[1, :, 2].abs().sum() == 0
    grads = torch.autograd.grad(similarity.sum(), (case.states, case.projection))
    assert all(torch.isfinite(grad).all() for grad in grads) and grads[0][0, 1].abs().sum() == 0


@pytest.mark.parametrize("narrow", [True, False])
def test_products_in_bf16_stay_near_those_in_fp32(narrow, monkeypatch):
    monkeypatch.setattr(module, "narrow_is_cheaper", lambda *shapes: narrow)
    case = draw(8, 24, 30, 64, 96).wanting()

    def found(products):
        cosines = token_similarity(case.states, case.teacher, case.projection, products)
        gaps = dynamic_cka(
            case.states, case.teacher, case.projection, case.student_mask, case.teacher_mask, RULES["paper"], products
        )
        assert cosines.dtype == gaps.dtype == torch.float32
        return cosines, gaps, *torch.autograd.grad(cosines.square().sum(), (case.states, case.projection))

    (exact, gaps, *grads), (rounded, other_gaps, *other_grads) = found(None), found(torch.bfloat16)
    assert 0 < (rounded - exact).abs().max() < 4e-3  # cosines; one in bf16 is off by as much at 1
    off = (other_gaps - gaps).abs()  # more where a token at the nucleus' edge is another one
    assert off.median() < 1e-4 and off.max() < 0.02
    for grad, other in zip(grads, other_grads, strict=True):
        assert cosine_similarity(grad.flatten(), other.flatten(), dim=0) > 0.9999


def test_the_width_with_fewer_multiplications_is_taken():
    def narrow(texts, n, m, width, teacher_width):
        return narrow_is_cheaper(torch.Size((texts, n, width)), torch.Size((texts, m, teacher_width)))

    assert not narrow(32, 48, 60, 384, 384) and not narrow(32, 48, 60, 768, 4096)
    assert narrow(32, 60, 48, 312, 4096) and not narrow(1, 60, 48, 312, 4096)  # Q'Q is worth it for many texts


@pytest.mark.parametrize("rule", [RULES["paper"], Rule(most=3), Rule(0.8, 0.1)], ids=["paper", "most", "sharp"])
def test_gradients_are_those_of_differences(rule):
    case = draw(2, 5, 6, 4, 5).doubled().wanting()
    cosines = token_similarity(case.states, case.teacher, case.projection).detach()
    moved = match_weights(cosines + 1e-5, case.student_mask, case.teacher_mask, rule)
    assert torch.equal(
        moved > 0, match_weights(cosines, case.student_mask, case.teacher_mask, rule) > 0
    )  # no choice is near its edge
    assert torch.autograd.gradcheck(
        lambda states, projection: value(replace(case, states=states, projection=projection), rule),
        (case.states, case.projection),
    )


@pytest.mark.parametrize("name", ["paper", "authors", "sharp"])
def test_the_gram_form_is_that_of_the_aggregate(name):
    case = draw(4, 7, 9, 5, 12).doubled()
    weights = weights_of(case, ALL[name])
    rows = weights @ case.teacher
    torch.testing.assert_close(
        aggregate_gram(weights, teacher_gram(case.teacher, case.teacher_mask), case.student_mask),
        unit_gram(centred_gram(rows, case.student_mask)),
    )
    looped = aggregation_by_loop(case, ALL[name])
    torch.testing.assert_close(rows[case.student_mask], looped)
    first = in_feature_space(case.states[0], looped[:7]).sqrt()
    torch.testing.assert_close(1 - value(case, ALL[name])[0], first)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
def test_padding_changes_neither_values_nor_gradients(rule, side):
    case = draw(4, 6, 8, 5, 7).doubled()
    before, behind = {"left": (3, 0), "right": (0, 3), "both": (2, 1)}[side]

    def grown(tensor, fill):
        shape = (len(tensor), tensor.shape[1] + before + behind, *tensor.shape[2:])
        wide = torch.full(shape, fill, dtype=tensor.dtype)
        wide[:, before : before + tensor.shape[1]] = tensor
        return wide

    wide = Case(
        grown(case.states, 9.0),
        grown(case.teacher, -7.0),
        case.projection,
        grown(case.student_mask, False),
        grown(case.teacher_mask, False),
        case.sizes,
    )
    weights = weights_of(wide, rule)
    torch.testing.assert_close(
        weights[:, before : before + 6, before : before + 8], weights_of(case, rule), atol=1e-12, rtol=0
    )
    assert weights[~wide.student_mask].abs().sum() == 0 and weights.mT[~wide.teacher_mask].abs().sum() == 0
    narrow, wide = case.wanting(), wide.wanting()
    found, expected = value(wide, rule), value(narrow, rule)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    torch.autograd.backward([found.sum(), expected.sum()])
    torch.testing.assert_close(wide.states.grad[:, before : before + 6], narrow.states.grad, atol=1e-11, rtol=0)
    assert wide.states.grad[~wide.student_mask].abs().sum() == 0
    torch.testing.assert_close(wide.projection.grad, narrow.projection.grad, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", RULES)
def test_a_text_s_value_does_not_depend_on_its_company(name):
    case = draw(4, 6, 8, 5, 7).doubled()
    together = value(case, RULES[name])
    for text, (n, m) in enumerate(case.sizes):
        alone = Case(case.states[text : text + 1, :n], case.teacher[text : text + 1, :m], case.projection, *[None] * 3)
        alone = replace(alone, student_mask=every(alone.states), teacher_mask=every(alone.teacher))
        torch.testing.assert_close(value(alone, RULES[name])[0], together[text], atol=1e-12, rtol=0)


def test_equal_lengths_are_aggregated_too():
    case = draw(3, 8, 8, 5, 7).doubled()
    case = replace(case, student_mask=every(case.states), teacher_mask=every(case.teacher))
    skipped = 1 - torch.stack([in_feature_space(a, b) for a, b in zip(case.states, case.teacher, strict=True)]).sqrt()
    assert (value(case, RULES["authors"]) - skipped).abs().min() > 0.01  # the authors' code would give this


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
def test_texts_without_structure_are_finite(rule):
    generator = torch.Generator().manual_seed(4)
    states, teacher = torch.randn(7, 4, 5, generator=generator), torch.randn(7, 6, 8, generator=generator)
    student_mask, teacher_mask = every(states), every(teacher)
    student_mask[0, 1:], teacher_mask[1, 1:], student_mask[2], teacher_mask[3] = (
        False,
        False,
        False,
        False,
    )  # one token, or none
    states[4], teacher[5], states[6], teacher[6] = 1.0, 1.0, 0.0, 0.0
    states.requires_grad_()
    projection = torch.randn(8, 5, generator=generator).requires_grad_()
    found = dynamic_cka(states, teacher, projection, student_mask, teacher_mask, rule)
    assert torch.isfinite(found).all() and found[[0, 1, 2, 3, 5, 6]].abs().max() < 1e-6 and (found <= 1).all()
    found.sum().backward()
    assert torch.isfinite(states.grad).all() and torch.isfinite(projection.grad).all()
    weights = match_weights(token_similarity(states, teacher, projection), student_mask, teacher_mask, rule)
    torch.testing.assert_close(weights.sum(-1), (student_mask & teacher_mask.any(1, keepdim=True)).float())


class Operators(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
def test_nothing_waits_for_the_device(rule):
    """No operator whose result or shape depends on values; and on the meta device, which has none, nothing can be read."""  # noqa: E501
    case = draw(3, 6, 8, 5, 7)
    with Operators() as seen:
        value(case.wanting(), rule).sum().backward()
    waiting = {"_local_scalar_dense", "item", "nonzero", "masked_select", "index", "equal", "is_nonzero"}
    assert seen.calls and not waiting & set(seen.calls)
    meta = Case(*(tensor.to("meta") for tensor in list(vars(case).values())[:5]), case.sizes).wanting()
    value(meta, rule).sum().backward()
    assert meta.states.grad.device.type == "meta" and meta.projection.grad.shape == case.projection.shape
