"""MiniLM's relations: the check values, loops by text and head from the paper, padding, relation heads, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from distilvec.core.outputs import Projections
from distilvec.losses.relation_heads import (
    PARTS,
    left_align,
    relation_divergence,
    relation_heads,
    relation_scores,
    relation_term,
)

LENGTHS = (5, 3, 1)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()


def draw(generator, heads, width):
    shape = (len(LENGTHS), heads, 5, width)
    return Projections(*(torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(3)))


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(4)
    return draw(generator, 4, 3), draw(generator, 4, 6)


def term(name, student, teacher, mask=MASK, heads=None):
    ours, theirs = left_align(student, mask, mask.shape[1]), left_align(teacher, mask, mask.shape[1])
    return relation_term(name, ours, theirs, mask, heads)


def test_check_values():
    generator = torch.Generator().manual_seed(20)
    student = [torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)[None] for _ in range(3)]
    teacher = [torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)[None] for _ in range(3)]
    mask = torch.ones(1, 3, dtype=torch.bool)
    ours, theirs = Projections(*student), Projections(*teacher)
    assert term("value", ours, theirs, mask).item() == pytest.approx(0.3554465511, abs=1e-10)
    assert term("attention", ours, theirs, mask).item() == pytest.approx(0.2058489834, abs=1e-10)
    (q, k, _), (big_q, big_k, _) = student, teacher
    printed = relation_divergence(relation_scores(k, q), relation_scores(big_k, big_q), mask)
    assert printed.item() == pytest.approx(0.6722275081, abs=1e-10), "as eq. 6 is printed"


@pytest.mark.parametrize("name", PARTS)
def test_against_loops(pair, name):
    expected = [loop_term(name, *pair, text, 4) for text in range(len(LENGTHS))]
    torch.testing.assert_close(term(name, *pair), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("heads", [1, 2, 6, 12])
def test_relation_heads_against_loops(heads):
    generator = torch.Generator().manual_seed(5)
    student, teacher = draw(generator, 4, 3), draw(generator, 2, 12)  # the numbers of heads differ
    for name in ("query", "key", "value"):
        ours, theirs = anew(student, heads), anew(teacher, heads)
        expected = [loop_term(name, ours, theirs, text, heads) for text in range(len(LENGTHS))]
        torch.testing.assert_close(
            term(name, student, teacher, heads=heads), torch.tensor(expected, dtype=torch.float64)
        )


def test_as_many_relation_heads_as_heads_are_the_heads(pair):
    torch.testing.assert_close(relation_heads(pair[0].query, 4), pair[0].query)
    for name in PARTS:
        torch.testing.assert_close(term(name, *pair, heads=4), term(name, *pair))


def test_shared_keys_and_values_are_repeated_as_in_attention(pair):
    student, teacher = pair
    grouped = Projections(student.query, student.key[:, :2], student.value[:, :2])
    repeated = Projections(student.query, student.key[:, [0, 0, 1, 1]], student.value[:, [0, 0, 1, 1]])
    for name in PARTS:
        torch.testing.assert_close(term(name, grouped, teacher), term(name, repeated, teacher))


@pytest.mark.parametrize("name", PARTS)
def test_equal_models_have_no_divergence_and_others_a_positive_one(pair, name):
    assert term(name, pair[1], pair[1]).abs().max() < 1e-15
    values = term(name, *pair)
    assert values[:2].min() > 1e-3 and values[2] == 0, "one token attends to itself alone"


@pytest.mark.parametrize("name", PARTS)
def test_padding_of_either_side_changes_neither_value_nor_gradient(pair, name):
    student, teacher = pair
    leaf = [part.requires_grad_() for part in (student.query, student.key, student.value)]
    expected = term(name, student, teacher)
    gradients = torch.autograd.grad(expected.sum(), leaf, allow_unused=True)
    mask = torch.zeros(3, 9, dtype=torch.bool)
    for text, length in enumerate(LENGTHS):
        mask[text, 9 - length :] = True
    padded = Projections(*(left_padded(part, 9) for part in leaf))
    values = relation_term(name, left_align(padded, mask, 5), left_align(teacher, MASK, 5), MASK)
    torch.testing.assert_close(values, expected)
    for one, other in zip(torch.autograd.grad(values.sum(), leaf, allow_unused=True), gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
            assert torch.isfinite(one).all() and not one[2, :, 1:].any()


def test_a_text_without_tokens_and_large_scores_stay_finite(pair):
    mask = MASK.clone()
    mask[2] = False
    student = Projections(*(50 * part.float() for part in (pair[0].query, pair[0].key, pair[0].value)))
    teacher = Projections(*(50 * part.float() for part in (pair[1].query, pair[1].key, pair[1].value)))
    leaf = [part.requires_grad_() for part in (student.query, student.key, student.value)]
    values = torch.stack([term(name, student, teacher, mask) for name in PARTS])
    assert torch.isfinite(values).all() and not values[:, 2].any()
    assert all(torch.isfinite(gradient).all() for gradient in torch.autograd.grad(values.sum(), leaf))


@pytest.mark.parametrize("name", ["attention", "value"])
def test_gradient_is_the_derivative(pair, name):
    student, teacher = (Projections(x.query[1:, :2], x.key[1:, :2], x.value[1:, :2]) for x in pair)
    leaf = [part[..., :2].clone().requires_grad_() for part in (student.query, student.key, student.value)]
    assert torch.autograd.gradcheck(lambda *parts: term(name, Projections(*parts), teacher, MASK[1:]), leaf)


def left_padded(values, columns):
    """The same texts with their last token in the last column; NaN at padding, which nothing may read."""
    padded = torch.full((*values.shape[:2], columns, values.shape[3]), torch.nan, dtype=values.dtype)
    for text, length in enumerate(LENGTHS):
        padded[text, :, columns - length :] = values[text, :, :length]
    return padded


def anew(projections, heads):
    """Relation heads token by token: all heads' numbers in a row, cut into equal pieces."""

    def cut(x):
        rows = [
            [torch.cat([x[b, h, t] for h in range(x.shape[1])]).chunk(heads) for t in range(x.shape[2])]
            for b in range(len(x))
        ]
        return torch.stack(
            [torch.stack([torch.stack([token[h] for token in text]) for h in range(heads)]) for text in rows]
        )

    return Projections(cut(projections.query), cut(projections.key), cut(projections.value))


def loop_term(name, student, teacher, text, heads):
    """REDACT's eq. 4 to 7 in plain Python over heads, tokens and the tokens each one attends to."""
    length, value = LENGTHS[text], 0.0
    for head in range(heads):
        for row in range(length):
            ours, theirs = (softmax_row(x, name, text, head, row, length) for x in (student, teacher))
            value += sum(p * math.log(p / q) for p, q in zip(theirs, ours, strict=True))
    return value / heads / length


def softmax_row(projections, name, text, head, row, length):
    first, second = (getattr(projections, part)[text, head] for part in PARTS[name])
    weights = [math.exp(float(first[row] @ second[column]) / math.sqrt(first.shape[1])) for column in range(length)]
    return [weight / sum(weights) for weight in weights]
