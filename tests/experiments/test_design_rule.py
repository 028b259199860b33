"""The rivals of the design's rule: other splits of the same parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from refusals import refused

from distilvec.students.design import ModelShape, TokensUsed, count_parts
from experiments.design_rule import choose_split

MINILM = ModelShape(
    name="all-MiniLM-L6-v2",
    architecture="bert",
    hidden_size=384,
    layers=6,
    neurons=1536,
    vocabulary=30522,
    row_size=384,
    dim=384,
    linear_dim=384,
    position_parameters=198_144,
    layer_parameters=1_774_464,
    neuron_parameters=769,
    other_parameters=147_840,
)
WITH_WHOLE_ROWS = replace(MINILM, no_factorizing="its layers have no factorized table.")
USED = TokensUsed(22_740, 354)


@pytest.mark.parametrize("shape", [MINILM, WITH_WHOLE_ROWS], ids=["factorized", "whole rows"])
def test_every_split_spends_the_same_budget(shape):
    splits = [choose_split(name, shape, 8_000_000, USED) for name in ("rule", "rival1", "rival2", "rival3")]
    assert len(set(splits)) == 4
    for split in splits:
        assert 0.96 * 8_000_000 <= count_parts(shape, split).total <= 8_000_000


def test_each_rival_turns_one_claim_around():
    rule, layers, neurons, rows = (
        choose_split(name, MINILM, 5_000_000, USED) for name in ("rule", "rival1", "rival2", "rival3")
    )
    assert layers.layers > rule.layers
    assert layers.tokens < rule.tokens
    assert layers.rank == rule.rank
    assert neurons.neurons == 1536
    assert neurons.layers < rule.layers
    assert rows.layers > rule.layers
    assert rows.tokens == rule.tokens
    assert rows.rank < rule.rank


def test_rows_that_cannot_be_shorter_give_way_to_more_of_them():
    rule, rival = (choose_split(name, WITH_WHOLE_ROWS, 8_000_000, USED) for name in ("rule", "rival3"))
    assert rival.layers == rule.layers
    assert rival.neurons == rule.neurons // 2
    assert rival.tokens > rule.tokens


def test_a_rival_that_does_not_fit_is_refused():
    with refused("--split"):
        choose_split("rival1", MINILM, 20_000_000, USED)
