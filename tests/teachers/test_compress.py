"""Token signals survive their way into the cache's form and back: exactly where they can, within the rounding where
not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, TokenOutputSpec
from distilvec.losses.dynamic_cka import RULES, dynamic_cka
from distilvec.teachers.cache.signals import Ragged, compress_tokens, decompress, token_settings

WANTS = TokenOutputSpec("offsets", hidden=(-1,), importance=True, gram_layers=(2, 4), divisor=3)
CPU = torch.device("cpu")


def encoded(batch=5, tokens=9, width=16, most=4, seed=0):
    """Fabricated signals: texts of 2 to `tokens` tokens, 0 to `most` selected pairs."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, tokens + 1, (batch,), generator=generator)
    lengths[0], counts = tokens, torch.randint(0, most + 1, (batch,), generator=generator)
    counts[0], counts[-1] = most, 0
    mask, chosen = torch.arange(tokens) < lengths[:, None], torch.arange(most) < counts[:, None]
    masses = torch.rand(batch, tokens, generator=generator) * mask
    grams = {}
    for layer in WANTS.gram_layers:
        rows = torch.randn(batch, most, 7, generator=generator) * chosen[..., None]
        gram = rows @ rows.mT
        grams[layer] = gram / gram.flatten(1).norm(dim=1).clamp_min(1e-9)[:, None, None]
    return ModelOutputs(
        hidden_layers={-1: torch.randn(batch, tokens, width, generator=generator) * mask[..., None]},
        mask=mask,
        importance=masses / masses.sum(1, keepdim=True),
        selected=torch.randint(0, 300, (batch, most, 2), generator=generator).where(chosen[..., None], -1),
        grams=grams,
    )


def there_and_back(found, hidden="int8", required=WANTS):
    settings = token_settings(required, hidden, 16, "cafe", 64)
    return ModelOutputs(**decompress(compress_tokens(found, settings), settings, CPU)), settings


@pytest.mark.parametrize(("hidden", "steps"), [("int8", 127), ("float16", 1024)])
def test_a_batch_comes_back(hidden, steps):
    exact = encoded()
    back, _ = there_and_back(exact, hidden)
    assert torch.equal(back.mask, exact.mask) and torch.equal(back.selected, exact.selected)
    states, largest = exact.hidden_layers[-1], exact.hidden_layers[-1].abs().amax(-1, keepdim=True)
    assert ((back.hidden_layers[-1] - states).abs() <= largest / steps / 2 * 1.001).all()
    assert (back.hidden_layers[-1][~exact.mask] == 0).all() and (back.importance[~exact.mask] == 0).all()
    torch.testing.assert_close(back.importance, exact.importance, atol=1e-6, rtol=2e-3)
    torch.testing.assert_close(back.importance.sum(1), torch.ones(5))
    for layer, gram in exact.grams.items():
        torch.testing.assert_close(back.grams[layer], gram, atol=1e-6, rtol=1e-3)
        assert torch.equal(back.grams[layer], back.grams[layer].mT)
    floats = [back.hidden_layers[-1], back.importance, *back.grams.values()]
    assert {value.dtype for value in floats} == {torch.float32}


def test_real_tokens_alone_are_kept():
    exact = encoded()
    settings = token_settings(WANTS, "int8", 16, "cafe", 64)
    found = compress_tokens(exact, settings)
    tokens, counts = int(exact.mask.sum()), (exact.selected[..., 0] >= 0).sum(1)
    assert found["hidden"].values.nbytes == tokens * (16 + 4)
    assert found["importance"].values.nbytes == tokens * 2
    assert found["selected"].values.nbytes == int(counts.sum()) * 4
    assert found["grams"].values.nbytes == int((counts * (counts + 1)).sum()) * 2
    assert {name: (ragged.values.dtype.name, ragged.values.shape[1]) for name, ragged in found.items()} == {
        name: (signal.dtype, signal.width) for name, signal in settings.signals.items()
    }


def test_padding_changes_nothing():
    exact = encoded()
    settings = token_settings(WANTS, "int8", 16, "cafe", 64)
    wider = ModelOutputs(
        hidden_layers={-1: torch.nn.functional.pad(exact.hidden_layers[-1], (0, 0, 0, 3), value=9.0)},
        mask=torch.nn.functional.pad(exact.mask, (0, 3)),
        importance=torch.nn.functional.pad(exact.importance, (0, 3)),
        selected=torch.nn.functional.pad(exact.selected, (0, 0, 0, 2), value=-1),
        grams={layer: torch.nn.functional.pad(gram, (0, 2, 0, 2)) for layer, gram in exact.grams.items()},
    )
    one, other = compress_tokens(exact, settings), compress_tokens(wider, settings)
    for name, ragged in one.items():
        np.testing.assert_array_equal(ragged.values, other[name].values)
        np.testing.assert_array_equal(ragged.lengths, other[name].lengths)


def test_a_row_alone_is_as_it_is_in_a_batch():
    exact = encoded()
    settings = token_settings(WANTS, "int8", 16, "cafe", 64)
    found = compress_tokens(exact, settings)
    whole = ModelOutputs(**decompress(found, settings, CPU))
    for row in range(5):
        alone = ModelOutputs(
            **decompress({name: ragged.take(np.array([row])) for name, ragged in found.items()}, settings, CPU)
        )
        tokens, most = alone.mask.shape[1], alone.selected.shape[1]
        assert torch.equal(alone.hidden_layers[-1][0], whole.hidden_layers[-1][row, :tokens])
        assert torch.equal(alone.selected[0], whole.selected[row, :most])
        assert all(torch.equal(gram[0], whole.grams[layer][row, :most, :most]) for layer, gram in alone.grams.items())


def test_only_what_is_wanted_is_kept():
    found, settings = there_and_back(encoded(), required=TokenOutputSpec(hidden=(-1,)))
    assert (
        list(settings.signals) == ["hidden"] and found.importance is None and found.selected is None and not found.grams
    )
    assert settings.student_tokenizer is settings.student_max_length is settings.alignment is settings.divisor is None
    found, _ = there_and_back(encoded(), required=TokenOutputSpec(importance=True))
    assert not found.hidden_layers and found.mask is not None


def test_zero_rows_and_vanishing_masses():
    exact = encoded()
    exact.hidden_layers[-1][0, 1] = 0
    masses = exact.importance.clone()
    masses[0, 2] = 1e-12
    back, _ = there_and_back(replace(exact, importance=masses))
    assert (back.hidden_layers[-1][0, 1] == 0).all()
    assert back.importance[0, 2] > 0 and back.importance.isfinite().all()


def test_positions_that_do_not_fit_are_refused():
    exact = encoded()
    exact.selected[0, 0, 1] = 40_000
    with pytest.raises(DistilvecError, match="max_length.*40,000"):
        there_and_back(exact)


def test_an_empty_selection_everywhere():
    exact = encoded()
    nothing = replace(
        exact,
        selected=torch.full_like(exact.selected, -1),
        grams={k: torch.zeros_like(g) for k, g in exact.grams.items()},
    )
    back, _ = there_and_back(nothing)
    assert back.selected.shape == (5, 0, 2) and back.grams[2].shape == (5, 0, 0)
    assert isinstance(compress_tokens(nothing, token_settings(WANTS, "int8", 16, "cafe", 64))["grams"], Ragged)


def token_states(width, seed, texts=12, tokens=30):
    """States with a large common part, a part of the text and outlying dimensions, as encoders have them."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    scale = 1 + 4 * (draw(width) > 2.3)
    lengths = torch.randint(6, tokens + 1, (texts,), generator=generator)
    mask = torch.arange(tokens) < lengths[:, None]
    return (draw(width) + 0.6 * draw(texts, 1, width) + 0.5 * draw(texts, tokens, width)) * scale * mask[
        ..., None
    ], mask


@pytest.mark.parametrize("rule", ["paper", "authors"])
def test_dynamic_cka_has_the_live_teachers_gradient_from_float16_states(rule):
    (theirs, their_mask), (ours, our_mask) = token_states(384, 0), token_states(96, 1)
    projection = 0.06 * torch.randn(384, 96, generator=torch.Generator().manual_seed(2))

    def gradient(teacher):
        leaf = ours.clone().requires_grad_()
        dynamic_cka(leaf, teacher, projection, our_mask, their_mask, RULES[rule]).mean().backward()
        return leaf.grad

    live, gaps = gradient(theirs), {}
    for hidden in ("float16", "int8"):
        settings = token_settings(TokenOutputSpec(hidden=(-1,)), hidden, 384, "", 64)
        stored = compress_tokens(ModelOutputs(hidden_layers={-1: theirs}, mask=their_mask), settings)
        states = decompress(stored, settings, CPU)["hidden_layers"][-1]
        gaps[hidden] = float((gradient(states) - live).norm() / live.norm())
    assert gaps["float16"] < 0.04 < gaps["int8"]
