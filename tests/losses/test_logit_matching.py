"""Distributions over different vocabularies: the check values of the official codes, loops from their formulas,
padding.
"""

from __future__ import annotations

import math

import pytest
import torch

from distilvec.losses.logits import (
    absolute_gaps,
    heaviest_columns,
    normalised_plan_cost,
    scaled_probabilities,
    soft_binary_kl,
    soft_kl,
    sorted_probabilities,
    swapped_cross_entropy,
)

STARTS = {"student": (0, 1), "teacher": (0, 0)}  # of the answers, as the official code finds them, and their lengths
SIZES = {"student": (3, 2), "teacher": (4, 3)}


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def logits():
    """Student (2, 4, 6) and teacher (2, 5, 8) logits with the masks of their answers."""
    generator = torch.Generator().manual_seed(9)
    student, teacher = draw(generator, 2, 4, 6), draw(generator, 2, 5, 8)
    masks = []
    for name, length in (("student", 4), ("teacher", 5)):
        start, size = torch.tensor(STARTS[name])[:, None], torch.tensor(SIZES[name])[:, None]
        masks.append((torch.arange(length) >= start) & (torch.arange(length) < start + size))
    return student, teacher, *masks


@pytest.fixture
def rows():
    """Two probability tensors (2, 3, 4) and their full masks."""
    generator = torch.Generator().manual_seed(10)
    full = torch.ones(2, 3, dtype=torch.bool)
    return draw(generator, 2, 3, 4).softmax(-1), draw(generator, 2, 3, 4).softmax(-1), full, full


def spans(values, name):
    """The answers at the front of the official code's tensors: zeros behind them, cut to the longest answer."""
    out = torch.zeros(len(values), max(*SIZES["student"], *SIZES["teacher"]), values.shape[-1], dtype=values.dtype)
    for row, (start, size) in enumerate(zip(STARTS[name], SIZES[name], strict=True)):
        out[row, :size] = values[row, start : start + size]
    return out


def test_check_values_of_uld(logits):
    student, teacher, student_mask, teacher_mask = logits
    ours, theirs = sorted_probabilities(student, 1.0), sorted_probabilities(teacher, 1.0)
    assert absolute_gaps(ours, theirs, student_mask, teacher_mask).mean().item() == pytest.approx(
        0.5111002922, abs=1e-7
    )
    one = torch.ones(2, 1, dtype=torch.bool)
    on_classes = absolute_gaps(ours[:, :1], theirs[:, :1], one, one)
    assert on_classes.mean().item() == pytest.approx(0.2834829825, abs=1e-9)
    assert on_classes.mean().item() / 8 == pytest.approx(0.0354353728, abs=1e-9)


def test_check_value_of_multilevel_ot(logits):
    """Its code takes padded rows of zeros along in two of the three parts, and sums sinkhorn over the batch."""
    student, teacher, student_mask, teacher_mask = logits
    ours = heaviest_columns(scaled_probabilities(student, 1.0), student_mask, 50)
    theirs = heaviest_columns(scaled_probabilities(teacher, 1.0), teacher_mask, 50)
    level1 = absolute_gaps(ours, theirs, student_mask, teacher_mask).mean()
    padded, everywhere = (spans(ours, "student"), spans(theirs, "teacher")), torch.ones(2, 4, dtype=torch.bool)
    level2 = swapped_cross_entropy(*padded, everywhere, everywhere).mean()
    level3 = 0.001 * normalised_plan_cost(*padded, everywhere, everywhere).sum()
    assert (level1 + 0.1 * level2 + 0.1 * level3).item() == pytest.approx(1.3114253642, abs=1e-7)


def test_check_values_of_its_parts(rows):
    teacher, student, full, _ = rows
    assert 0.001 * normalised_plan_cost(student, teacher, full, full).sum().item() == pytest.approx(
        0.00062733524, abs=1e-11
    )
    assert swapped_cross_entropy(student, teacher, full, full).mean().item() == pytest.approx(1.4014634959, abs=1e-10)


def test_sorted_gaps_are_the_formula_text_by_text(logits):
    student, teacher, student_mask, teacher_mask = logits
    expected = []
    for row in range(2):
        ours = [
            [*sorted((s / 2).softmax(-1).tolist(), reverse=True), 0.0, 0.0] for s in student[row][student_mask[row]]
        ]
        theirs = [sorted((t / 3).softmax(-1).tolist(), reverse=True) for t in teacher[row][teacher_mask[row]]]
        gaps = [sum(abs(a - b) for a, b in zip(s, t, strict=True)) for s, t in zip(ours, theirs, strict=False)]
        expected.append(sum(gaps) / len(gaps))
    found = absolute_gaps(
        sorted_probabilities(student, 2.0), sorted_probabilities(teacher, 3.0), student_mask, teacher_mask
    )
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_order_of_classes_says_nothing_to_uld(logits):
    student, _, mask, _ = logits
    shuffled = student[..., torch.tensor([3, 1, 5, 0, 2, 4])]
    assert (
        absolute_gaps(sorted_probabilities(student, 1.0), sorted_probabilities(shuffled, 1.0), mask, mask).max() < 1e-15
    )


def test_soft_kl_is_the_formula():
    generator = torch.Generator().manual_seed(1)
    student, teacher = draw(generator, 5, 4), draw(generator, 5, 4)
    for temperature in (1.0, 2.0):
        expected = []
        for s, t in zip(student / temperature, teacher / temperature, strict=True):
            ours, theirs = s.softmax(-1).tolist(), t.softmax(-1).tolist()
            expected.append(temperature**2 * sum(q * math.log(q / p) for p, q in zip(ours, theirs, strict=True)))
        assert soft_kl(student, teacher, temperature).tolist() == pytest.approx(expected, abs=1e-5)  # in fp32
    assert soft_kl(student, student + 3, 2.0).abs().max() < 1e-6


def test_heaviest_columns_of_the_batch():
    probabilities = torch.tensor([[[0.1, 0.6, 0.3], [0.9, 0.05, 0.05]], [[0.2, 0.1, 0.7], [0.5, 0.2, 0.3]]])
    mask = torch.tensor([[True, False], [True, True]])  # masses: 0.8, 0.9, 1.3
    assert torch.equal(heaviest_columns(probabilities, mask, 2), probabilities[..., [2, 1]])
    assert torch.equal(heaviest_columns(probabilities, mask, 50), probabilities[..., [2, 1, 0]])


def plan_cost(student, teacher):
    """One text, as printed: costs, kernel, ten rounds of rows and columns."""
    ours, theirs = (student / 2).softmax(-1), (teacher / 2).softmax(-1)
    cost = [[(t - s).abs().sum().item() for s in ours] for t in theirs]
    plan = [[math.exp(-value / 0.1) for value in row] for row in cost]
    for _ in range(10):
        plan = [[value / sum(row) for value in row] for row in plan]
        sums = [sum(column) for column in zip(*plan, strict=True)]
        plan = [[value / total for value, total in zip(row, sums, strict=True)] for row in plan]
    assert sum(map(sum, plan)) == pytest.approx(len(student))  # the mass of its length, not 1
    return sum(p * c for rows in zip(plan, cost, strict=True) for p, c in zip(*rows, strict=True))


def test_plan_and_cross_entropy_text_by_text(logits):
    student, teacher, student_mask, teacher_mask = logits
    ours, theirs = scaled_probabilities(student, 1.0), scaled_probabilities(teacher, 1.0)
    torch.testing.assert_close(ours[0, 0], (student[0, 0] / (student[0, 0].std() + 1e-4)).softmax(-1))
    costs, entropies = [], []
    for row in range(2):
        s = torch.nn.functional.pad(ours[row][student_mask[row]], (0, 2))
        t = theirs[row][teacher_mask[row]]
        costs.append(plan_cost(s, t))
        found = [-(a.softmax(-1) * b.log_softmax(-1)).sum().item() for a, b in zip(s, t, strict=False)]
        entropies.append(sum(found) / len(found))
    assert normalised_plan_cost(ours, theirs, student_mask, teacher_mask).tolist() == pytest.approx(costs, abs=1e-10)
    assert swapped_cross_entropy(ours, theirs, student_mask, teacher_mask).tolist() == pytest.approx(
        entropies, abs=1e-12
    )


@pytest.mark.parametrize("loss", [absolute_gaps, swapped_cross_entropy, normalised_plan_cost])
def test_padding_on_any_side_changes_neither_value_nor_gradient(loss, logits):
    student, teacher, student_mask, teacher_mask = logits
    outcomes = []
    for first, last in ((0, 0), (0, 3), (2, 0), (1, 2)):
        ours = scaled_probabilities(
            torch.nn.functional.pad(student, (0, 0, first, last), value=0.3), 1.0
        ).requires_grad_()
        theirs = scaled_probabilities(torch.nn.functional.pad(teacher, (0, 0, last, first), value=0.7), 1.0)
        masks = (
            torch.nn.functional.pad(student_mask, (first, last)),
            torch.nn.functional.pad(teacher_mask, (last, first)),
        )
        values = loss(ours, theirs, *masks)
        values.sum().backward()
        assert torch.isfinite(ours.grad).all()
        assert (ours.grad[~masks[0]] == 0).all()
        outcomes.append((values.detach(), ours.grad[:, first : first + 4]))
    for values, gradient in outcomes[1:]:
        torch.testing.assert_close(values, outcomes[0][0])
        torch.testing.assert_close(gradient, outcomes[0][1])


def test_gradients_are_finite_in_fp32_where_the_two_are_equal():
    logits = torch.randn(2, 5, 60, generator=torch.Generator().manual_seed(3))
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    for scale in (1.0, 1e3):
        student = (scale * logits).requires_grad_()
        probabilities = scaled_probabilities(student, 1.0)
        target = probabilities.detach()
        losses = [
            loss(probabilities, target, mask, mask).sum()
            for loss in (absolute_gaps, swapped_cross_entropy, normalised_plan_cost)
        ]
        losses.append(
            absolute_gaps(
                sorted_probabilities(student, 1.0), sorted_probabilities(student.detach(), 1.0), mask, mask
            ).sum()
        )
        torch.stack(losses).sum().backward()
        assert torch.isfinite(torch.stack(losses)).all() and torch.isfinite(student.grad).all()


def test_the_binary_kl_is_that_of_two_classes():
    """sigmoid(x) is the softmax of (x, 0)."""
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    pairs = [torch.stack([logits, torch.zeros_like(logits)], -1).reshape(15, 2) for logits in (student, teacher)]
    expected = soft_kl(*pairs, 2.0).reshape(5, 3).mean(1)
    torch.testing.assert_close(soft_binary_kl(student, teacher, 2.0), expected)
    assert not soft_binary_kl(teacher, teacher, 2.0).any()
