"""Tokenizer surgery: a model's own tokenizer changes nothing, a part of it nothing on texts that it covers; words keep their forms."""

from __future__ import annotations

import architectures
import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from sentence_transformers import SentenceTransformer

from distilvec.errors import DistilvecError
from distilvec.surgery.surfaces import Pieces, Surface
from distilvec.surgery.tokenizer import needed, restrict
from distilvec.surgery.transplant import Composition, compose_rows, composition, transplant

TEXTS = ["A student learns to place a text.", "Grüße aus Köln, çok güzel bir gün", "raise ValueError, or don't", "naïve 中文 ığ 😀", ""]
KINDS = ["bert", "xlm_roberta", "roberta", "modernbert", "gemma3", "qwen3", "mistral"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}
    for name in KINDS:
        folder = tmp_path_factory.mktemp(name)
        path = architectures.sentence_transformer(folder / "model", ARCHITECTURES[name](folder / "backbone"))
        made[name] = SentenceTransformer(str(path), device="cpu")
        if made[name].tokenizer.pad_token is None:
            made[name].tokenizer.pad_token = made[name].tokenizer.eos_token
    return made


@pytest.mark.parametrize("name", KINDS)
def test_the_own_tokenizer_gives_equal_vectors_bit_for_bit(models, name):
    model = models[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    changed, made = transplant(model, model.tokenizer)
    assert set(made.counts) == {"copied", "special"}
    np.testing.assert_array_equal(changed.encode(TEXTS), model.encode(TEXTS))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", KINDS)
def test_a_part_of_the_vocabulary_gives_equal_vectors_on_its_texts(models, name):
    model = models[name]
    used = {number for text in TEXTS for number in model.tokenizer(text)["input_ids"]}
    smaller, order = restrict(Pieces(model.tokenizer), used)
    assert len(order) < len(model.tokenizer) and used <= set(order.tolist())
    changed, _ = transplant(model, smaller)
    np.testing.assert_allclose(changed.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
    rows = changed[0].auto_model.get_input_embeddings().weight
    assert torch.equal(rows, model[0].auto_model.get_input_embeddings().weight[torch.from_numpy(order)])
    assert changed[0].auto_model.config.get_text_config().vocab_size == len(order)


@pytest.mark.parametrize("name", KINDS)
def test_every_kept_token_can_be_made(models, name):
    """A tokenizer of half the vocabulary still makes each token of its own from that token's text, where the whole one does."""
    pieces = Pieces(models[name].tokenizer)
    smaller, order = restrict(pieces, [number for number in range(0, len(pieces.tokens), 2) if pieces.tokens[number] is not None])
    less = Pieces(smaller)
    for new, old in enumerate(order.tolist()):
        surface = pieces.surface(old)
        if surface is not None and pieces.encode([surface]) == [[old]]:
            assert less.encode([surface]) == [[new]], pieces.tokens[old]


@pytest.mark.parametrize(("source", "target"), [("bert", "roberta"), ("bert", "xlm_roberta"), ("roberta", "bert"), ("gemma3", "bert")])
def test_words_and_parts_of_words_keep_their_form(models, source, target):
    """A token that begins a word is made of what begins a word in the other tokenizer, one that goes on of what goes on."""
    old, new = Pieces(models[source].tokenizer), Pieces(models[target].tokenizer)
    made = composition(new, old)
    forms = {True: 0, False: 0}
    for number in range(len(new.tokens)):
        surface = new.surface(number)
        if surface is None or made.origins[number] != "composed" or not surface.text.isalpha() or not surface.text.isascii():
            continue
        parts = [old.surface(int(row)) for row in made.ids[made.offsets[number] : made.offsets[number + 1]]]
        joined = "".join(" " * part.initial + part.text.decode() for part in parts)
        text = surface.text.decode()
        assert joined == " " * surface.initial + (text.lower() if source == "bert" else text), (new.tokens[number], surface)
        forms[surface.initial] += 1
    assert all(forms.values())


def test_rows_are_composed_as_the_strategies_say():
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    offsets = np.array([0, 1, 4, 4])
    mean = Composition(np.array([2, 0, 1, 5]), np.array([1, 1 / 3, 1 / 3, 1 / 3], np.float32), offsets, ["copied", "composed", "missing"])
    rows = compose_rows(table, mean)
    assert torch.equal(rows[0], table[2])
    torch.testing.assert_close(rows[1], table[[0, 1, 5]].mean(0))
    torch.testing.assert_close(rows[2], table.mean(0))
    kept = compose_rows(table, mean, keep_norm=True)
    assert torch.equal(kept[0], table[2])
    assert float(kept[1].norm()) == pytest.approx(float(table[[0, 1, 5]].norm(dim=1).mean()), rel=1e-5)


def test_special_tokens_go_by_role(models):
    old, new = Pieces(models["bert"].tokenizer), Pieces(models["xlm_roberta"].tokenizer)
    made = composition(new, old)
    pairs = {"bos_token_id": "cls_token_id", "eos_token_id": "sep_token_id", "pad_token_id": "pad_token_id", "unk_token_id": "unk_token_id"}
    for ours, theirs in pairs.items():
        number = getattr(new.tokenizer, ours)
        assert made.ids[made.offsets[number]] == getattr(old.tokenizer, theirs) and made.origins[number] == "special"


def test_parts_of_characters_and_bytes(models):
    letters = Pieces(models["roberta"].tokenizer)
    half = "é".encode()[:1]
    assert letters.encode([Surface(half, False)]) and not Pieces(models["bert"].tokenizer).encode([Surface(half, False)])[0]


def test_bad_input_is_named(models):
    with pytest.raises(DistilvecError, match="has no token 99999"):
        needed(Pieces(models["bert"].tokenizer, "the tokenizer"), [99999])
    with pytest.raises(DistilvecError, match="learned positions"):
        transplant(models["bert"], models["bert"].tokenizer, max_length=4096)
