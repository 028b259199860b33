"""Which teacher tokens DynamicCKA keeps: ties, conditions together, minimal sets, how little the printed rule selects."""  # noqa: E501

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distilvec.losses import dynamic_cka as module
from distilvec.losses.dynamic_cka import RULES, Rule, kept_tokens, match_weights, token_similarity

NAMED = {
    **RULES,
    "sharp": Rule(0.9, 0.1),
    "two": Rule(most=2),
    "near": Rule(least=0.05),
    "one": Rule(0.001),
    "every": Rule(1.0),
}


def test_equally_similar_tokens_are_kept_in_order():
    similarity = torch.tensor([[[0.5, 0.1, 0.5, 0.5, 0.1]]], dtype=torch.float64)
    mask = torch.ones(1, 5, dtype=torch.bool)
    kept = match_weights(similarity, mask[:, :1], mask, Rule(most=2))[0, 0]
    assert kept.tolist() == [0.5, 0, 0.5, 0, 0]
    kept = match_weights(similarity, mask[:, :1], mask, Rule(most=4))[0, 0]
    assert (kept > 0).tolist() == [True, True, True, True, False]
    kept = match_weights(0 * similarity, mask[:, :1], mask, Rule(0.55))[0, 0]  # three fifths reach 0.55
    torch.testing.assert_close(kept, torch.tensor([1, 1, 1, 0, 0], dtype=torch.float64) / 3)
    mask[0, 0] = False
    kept = match_weights(similarity, mask[:, 1:2], mask, Rule(most=2))[0, 0]
    assert kept.tolist() == [0, 0, 0.5, 0.5, 0]


def test_of_conditions_together_the_strictest_holds():
    similarity = torch.tensor([[[0.9, 0.5, 0.4, 0.2, -0.3]]], dtype=torch.float64)
    mask = torch.ones(1, 5, dtype=torch.bool)

    def count(**rule):
        return int((match_weights(similarity, mask[:, :1], mask, Rule(**{"threshold": 1.0, **rule})) > 0).sum())

    assert (count(), count(most=3), count(least=0.3), count(least=0.5), count(most=1, least=0.3)) == (5, 3, 3, 2, 1)
    assert count(least=0.95) == 1  # the best one always
    assert count(threshold=0.5, most=4, least=0.3) == 2


cosines = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=7, max_size=7), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(cosines, st.floats(0.05, 0.99), st.sampled_from([0.05, 0.3, 1.0]), st.integers(1, 7))
def test_weights_sum_to_1_over_a_minimal_set(rows, threshold, temperature, tokens):
    similarity = torch.tensor([rows], dtype=torch.float64)
    teacher = (torch.arange(7) < tokens)[None]
    student = torch.ones(1, len(rows), dtype=torch.bool)
    weights = match_weights(similarity, student, teacher, Rule(threshold, temperature))[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(rows), dtype=torch.float64))
    assert weights[:, tokens:].abs().sum() == 0
    shares = (similarity[0, :, :tokens] / temperature).softmax(-1)
    for share, weight in zip(shares, weights[:, :tokens], strict=True):
        kept = weight > 0
        mass = share[kept].sum()
        assert mass >= threshold - 1e-12
        assert mass - share[kept].min() < threshold + 1e-12  # one fewer would not do
        assert kept.all() or share[kept].min() >= share[~kept].max()
        torch.testing.assert_close(weight[kept], share[kept] / mass)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=7, max_size=7, unique=True),
    st.permutations(range(7)),
    st.sampled_from(list(NAMED)),
)
def test_weights_go_with_their_tokens(row, order, name):
    similarity = torch.tensor([[row]], dtype=torch.float64)
    mask = torch.ones(1, 7, dtype=torch.bool)
    weights = match_weights(similarity, mask[:, :1], mask, NAMED[name])
    torch.testing.assert_close(
        match_weights(similarity[..., list(order)], mask[:, :1], mask, NAMED[name]),
        weights[..., list(order)],
        atol=1e-9,
        rtol=0,
    )


def chosen(rule: Rule, tokens: int, width: int, copies: bool) -> tuple[float, float]:
    """How many of a text's teacher tokens one of the student's keeps, and the cosine of what it gathers with the token
    of its place.

    With `copies`, a token of the student's is the teacher's at its place and noise of half its length (cosine 0.9),
    else random.
    """
    generator = torch.Generator().manual_seed(1)
    teacher, noise = (torch.randn(8, tokens, width, generator=generator) for _ in range(2))
    states = teacher + noise / 2 if copies else noise
    mask = torch.ones(8, tokens, dtype=torch.bool)
    weights = match_weights(token_similarity(states, teacher, torch.eye(width)), mask, mask, rule)
    cosines_with_place = torch.cosine_similarity(weights @ teacher, teacher, dim=-1)
    return float(kept_tokens(weights, mask)), float(cosines_with_place.mean())


def test_the_printed_rule_barely_selects():
    """With temperature 1 cosines are at most 2 apart and the weights at most a factor e^2: nine tenths of all tokens
    are kept.
    """
    for tokens in (16, 64, 256):
        kept, _ = chosen(RULES["paper"], tokens, 384, copies=False)
        assert 0.88 < kept / tokens < 0.95
    kept, alike = chosen(RULES["paper"], 64, 384, copies=True)  # each token nearly a copy of one of the teacher's
    assert kept / 64 == pytest.approx(0.89, abs=0.01) and alike < 0.45
    for rule, least in ((Rule(temperature=0.1), 0.999), (Rule(most=3), 0.8), (RULES["authors"], 0.999)):
        kept, alike = chosen(rule, 64, 384, copies=True)
        assert kept <= 3 and alike > least


def test_a_device_sorts_as_the_processor_does():
    """The way without NumPy that other devices take, on values and on ties."""
    values = torch.randint(0, 5, (4, 6, 30), generator=torch.Generator().manual_seed(3)).double()
    torch.testing.assert_close(module._descending(values), values.sort(dim=-1, descending=True).values)
