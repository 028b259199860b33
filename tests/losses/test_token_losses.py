"""States of single tokens: against plain loops over texts and tokens."""

from __future__ import annotations

import torch
from token_signals import CONTEXT, PAIRS, TEXTS, signals, texts_of

from distilvec.losses.tokens import cross_attention, mean_state, pair_states, unit_squares


def test_pairs_find_their_states():
    batch, student, teacher = signals(2, 1)
    ours, theirs, mask = pair_states(student.hidden_layers[-1], teacher.hidden_layers[-1], batch.alignment.pairs)
    assert mask.sum(1).tolist() == [len(pairs) for pairs in PAIRS]
    for row, (s, t, pairs) in enumerate(texts_of(batch, student, teacher)):
        for place, (i, j) in enumerate(pairs):
            assert torch.equal(ours[row, place], s[i]) and torch.equal(theirs[row, place], t[j])


def test_mean_state_of_the_tokens():
    batch, student, teacher = signals(2, 1)
    found = mean_state(student.hidden_layers[-1], student.mask)
    for row, (s, _, _) in enumerate(texts_of(batch, student, teacher)):
        torch.testing.assert_close(found[row], s.mean(0))


def test_unit_squares_are_two_minus_two_cosines():
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    torch.testing.assert_close(unit_squares(x, y), 2 - 2 * torch.cosine_similarity(x, y, dim=-1))
    unit = [z / z.norm(dim=-1, keepdim=True) for z in (x, y)]
    torch.testing.assert_close(
        unit_squares(x, y), 5 * (unit[0] - unit[1]).square().mean(-1)
    )  # the mean squared error times the width
    zero = torch.zeros(2, 5, requires_grad=True)
    unit_squares(zero, torch.ones(2, 5)).sum().backward()
    assert torch.isfinite(zero.grad).all()


def test_cross_attention_is_over_the_tokens_of_the_same_text():
    batch, student, teacher = signals(1, 2)
    generator = torch.Generator().manual_seed(3)
    widths = CONTEXT.student.hidden_size, CONTEXT.teacher.hidden_size
    query, key = (torch.randn(width, 5, generator=generator, dtype=torch.float64) for width in widths)
    states = teacher.hidden_layers[-1]
    found = cross_attention(student.hidden_layers[-1] @ query, states @ key, states, teacher.mask)
    assert found.shape == (TEXTS, student.mask.shape[1], CONTEXT.teacher.hidden_size)
    for row, (s, t, _) in enumerate(texts_of(batch, student, teacher)):
        for i, state in enumerate(s):
            scores = torch.stack([(state @ query) @ (other @ key) / 5**0.5 for other in t])
            expected = sum(weight * other for weight, other in zip(scores.softmax(0), t, strict=True))
            torch.testing.assert_close(found[row, i], expected)
    alone = cross_attention(student.hidden_layers[-1][:1] @ query, states[:1] @ key, states[:1], teacher.mask[:1])
    torch.testing.assert_close(alone[0], found[0])  # whatever other texts there are
