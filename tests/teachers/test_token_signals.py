"""Masses, selected pairs and Gram matrices against loops written from the paper."""

import pytest
import torch

from distilvec.core.batch import Alignment
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.losses.emo import importance, select, selected_gram, student_importance
from distilvec.teachers.cached import token_reading, token_signals


def random_maps(texts=4, tokens=9, seed=0):
    """Attention maps of texts of different lengths, their mask, padding rows filled with what a model may leave there."""  # noqa: E501
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([tokens, 5, 2, 7][:texts])
    mask = torch.arange(tokens) < lengths[:, None]
    scores = 2 * torch.randn(texts, tokens, tokens, generator=generator)
    return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1), mask


def random_pairs(mask, seed=0, width=8):
    """One-to-one pairs in order on both sides, -1 fills up; the third text has one pair."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.full((len(mask), width, 2), -1)
    for text, length in enumerate(mask.sum(1).tolist()):
        count = min(length, width) if length != 2 else 1
        for side in (0, 1):
            pairs[text, :count, side] = torch.randperm(length, generator=generator)[:count].sort().values
    return pairs


def test_check_value_p():
    torch.manual_seed(21)
    attention = (2 * torch.randn(2, 5, 5, dtype=torch.float64)).softmax(-1)
    score = [1.6498185043, 0.7287660558, 0.9582321317, 0.5165264295, 1.1466568787]
    masses = [0.3299637009, 0.1457532112, 0.1916464263, 0.1033052859, 0.2293313757]
    mean = attention.mean(0, keepdim=True)
    torch.testing.assert_close(mean.sum(1)[0], torch.tensor(score, dtype=torch.float64))
    found = importance(mean, torch.ones(1, 5, dtype=torch.bool))[0]
    torch.testing.assert_close(found, torch.tensor(masses, dtype=torch.float64))


def test_masses_equal_a_loop_and_sum_to_one():
    maps, mask = random_maps()
    found = importance(maps, mask)
    for text, length in enumerate(mask.sum(1).tolist()):
        score = [sum(float(maps[text, i, j]) for i in range(length)) for j in range(length)]
        expected = torch.tensor(score) / sum(score)
        torch.testing.assert_close(found[text, :length], expected)
        assert not found[text, length:].any()
    torch.testing.assert_close(found.sum(1), torch.ones(4))


def test_rows_of_padding_count_for_nothing():
    maps, mask = random_maps()
    other = maps.clone()
    other[~mask] = torch.rand(int((~mask).sum()), maps.shape[2])
    torch.testing.assert_close(importance(maps, mask), importance(other, mask))


def test_student_importance_equal_a_loop():
    maps, mask = random_maps()
    mass = importance(maps, mask)
    pairs = random_pairs(mask)
    student = torch.arange(11) < torch.tensor([9, 6, 4, 11])[:, None]
    found = student_importance(mass, pairs, student)
    for text, length in enumerate(student.sum(1).tolist()):
        partner = {i: j for i, j in pairs[text].tolist() if i >= 0}
        smallest = min(mass[text, : int(mask[text].sum())].tolist())
        raw = torch.tensor([float(mass[text, partner[i]]) if i in partner else smallest for i in range(length)])
        torch.testing.assert_close(found[text, :length], raw / raw.sum())
        assert not found[text, length:].any()


def test_student_importance_of_several_partners_and_of_no_pairs():
    mass, student = torch.tensor([[0.1, 0.2, 0.7]]), torch.ones(1, 2, dtype=torch.bool)
    found = student_importance(mass, torch.tensor([[[0, 1], [0, 2], [-1, -1]]]), student)
    torch.testing.assert_close(found, torch.tensor([[0.9, 0.1]]))
    torch.testing.assert_close(
        student_importance(mass, torch.zeros(1, 0, 2, dtype=torch.long), student), torch.tensor([[0.5, 0.5]])
    )


@pytest.mark.parametrize("divisor", [1, 2, 3, 100])
def test_selected_pairs_equal_a_loop(divisor):
    maps, mask = random_maps()
    mass, pairs = importance(maps, mask), random_pairs(mask)
    found = select(pairs, mass, divisor)
    counts = []
    for text in range(len(mask)):
        own = [pair for pair in pairs[text].tolist() if pair[0] >= 0]
        count = min(len(own), max(2, len(own) // divisor))
        expected = sorted(own, key=lambda pair: -float(mass[text, pair[1]]))[:count]
        assert found[text, :count].tolist() == expected
        assert (found[text, count:] == -1).all()
        counts.append(count)
    assert 1 in counts and max(counts) >= 2
    assert found.shape[1] <= max(2, pairs.shape[1] // divisor)


@pytest.mark.parametrize("divisor", [1, 2, 3, 100])
def test_pairs_of_special_tokens_are_left_out_and_two_are_needed(divisor):
    maps, mask = random_maps()
    mass, pairs = importance(maps, mask), random_pairs(mask)
    ordinary = mask.clone()
    ordinary[:, 0] = False
    ordinary[torch.arange(len(mask)), mask.sum(1) - 1] = False
    found = select(pairs, mass, divisor, ordinary)
    for text in range(len(mask)):
        own = [pair for pair in pairs[text].tolist() if pair[0] >= 0 and ordinary[text, pair[1]]]
        count = len(own) // divisor if len(own) // divisor >= 2 else 0
        expected = sorted(own, key=lambda pair: -float(mass[text, pair[1]]))[:count]
        assert found[text, :count].tolist() == expected and (found[text, count:] == -1).all()


def test_ties_stay_in_order_and_texts_without_pairs_have_none():
    pairs = torch.tensor([[[0, 2], [1, 0], [3, 1], [4, 3]], [[-1, -1]] * 4])
    found = select(pairs, torch.full((2, 4), 0.25), 2)
    assert found.tolist() == [[[0, 2], [1, 0]], [[-1, -1], [-1, -1]]]
    assert select(pairs[:, :0], torch.ones(2, 4), 3).shape == (2, 0, 2)


def test_selected_pairs_do_not_depend_on_padding():
    maps, mask = random_maps()
    mass, pairs = importance(maps, mask), random_pairs(mask)
    wide = select(torch.nn.functional.pad(pairs, (0, 0, 0, 6), value=-1), torch.nn.functional.pad(mass, (0, 5)), 2)
    narrow = select(pairs, mass, 2)
    assert torch.equal(wide[:, : narrow.shape[1]], narrow) and (wide[:, narrow.shape[1] :] == -1).all()


def test_grams_equal_a_loop_and_have_unit_norm():
    maps, mask = random_maps()
    rows = select(random_pairs(mask), importance(maps, mask), 2)[..., 1]
    found = selected_gram(maps, rows)
    for text in range(4):
        own = [row for row in rows[text].tolist() if row >= 0]
        part = maps[text, own]
        centred = part - part.mean(0)
        gram = centred @ centred.T
        norm = gram.norm()
        expected = torch.zeros_like(found[text])
        if len(own) > 1:
            expected[: len(own), : len(own)] = gram / norm
            torch.testing.assert_close(found[text].norm(), torch.tensor(1.0))
        torch.testing.assert_close(found[text], expected, atol=1e-6, rtol=1e-5)
    assert not found[2].any()  # one pair has no geometry


def test_what_is_read_is_what_is_needed():
    assert token_reading(None) == OutputSpec()
    assert token_reading(TokenOutputSpec(hidden=(-1,))) == OutputSpec(hidden_layers=(-1,))
    assert token_reading(TokenOutputSpec(importance=True, gram_layers=(2, 4))) == OutputSpec(
        attention_layers=(-1, 2, 4)
    )


def test_the_parts_come_together():
    maps, mask = random_maps()
    read = ModelOutputs(attentions={-1: maps, 2: maps.flip(0)}, mask=mask)
    alignment = Alignment(random_pairs(mask))
    required = TokenOutputSpec(importance=True, gram_layers=(2,), divisor=2)
    found = token_signals(read, required, alignment)
    torch.testing.assert_close(found.importance, importance(maps, mask))
    assert torch.equal(found.selected, select(alignment.pairs, found.importance, 2))
    torch.testing.assert_close(found.grams[2], selected_gram(maps.flip(0), found.selected[..., 1]))
    only = token_signals(read, TokenOutputSpec(importance=True), None)
    assert only.selected is None and only.importance is not None
    assert token_signals(read, TokenOutputSpec(hidden=(-1,)), None) is read
    with pytest.raises(DistilvecError, match=r"\[method.name\] Gram matrices"):
        token_signals(read, required, None)
