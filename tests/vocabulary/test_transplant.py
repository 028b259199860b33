"""Tokenizer surgery: a model's own tokenizer changes nothing, a part of it nothing on texts that it covers; words keep
their forms.
"""

from __future__ import annotations

import copy
import json

import architectures
import numpy as np
import pytest
import torch
from refusals import refused
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from tokenizers import pre_tokenizers
from transformers import AutoModel, BertForMaskedLM, PreTrainedTokenizer, Qwen3ForCausalLM

from distilvec.core.errors import DistilvecError
from distilvec.formats.sentence_transformers import save_student
from distilvec.vocabulary.edit import restrict
from distilvec.vocabulary.pieces import Pieces, Surface
from distilvec.vocabulary.train import train_tokenizer
from distilvec.vocabulary.transplant import compose_rows, composition, give_tokenizer, transplant_tokens

TEXTS = [
    "A student learns to place a text.",
    "Grüße aus Köln, çok güzel bir gün",
    "raise ValueError, or don't",
    "naïve 中文 ığ 😀",
    "",
]
KINDS = ["bert", "xlm_roberta", "roberta", "modernbert", "gemma3", "qwen3", "mistral", "t5"]
FRAMES = ["$A", "<s> $A", "$A </s>", "<s> $A </s>"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}
    for name in KINDS:
        folder = tmp_path_factory.mktemp(name)
        path = architectures.sentence_transformer(folder / "model", getattr(architectures, name)(folder / "backbone"))
        made[name] = SentenceTransformer(str(path), device="cpu")
        if made[name].tokenizer.pad_token is None:
            made[name].tokenizer.pad_token = made[name].tokenizer.eos_token
    return made


@pytest.mark.parametrize("name", KINDS)
def test_the_own_tokenizer_gives_equal_vectors_bit_for_bit(models, name):
    model = models[name]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    changed, made = transplant_tokens(model, model.tokenizer)
    assert set(made.counts) == {"copied", "special"}
    np.testing.assert_array_equal(changed.encode(TEXTS), model.encode(TEXTS))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", KINDS)
def test_a_part_of_the_vocabulary_gives_equal_vectors_on_its_texts(models, name):
    model = models[name]
    used = {number for text in TEXTS for number in model.tokenizer(text)["input_ids"]}
    smaller, order = restrict(Pieces(model.tokenizer), used)
    assert len(order) < len(model.tokenizer) and used <= set(order.tolist())
    changed, _ = transplant_tokens(model, smaller)
    np.testing.assert_allclose(changed.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
    rows = changed[0].auto_model.get_input_embeddings().weight
    assert torch.equal(rows, model[0].auto_model.get_input_embeddings().weight[torch.from_numpy(order)])
    assert changed[0].auto_model.config.get_text_config().vocab_size == len(order)


def test_a_table_that_is_used_twice_stays_one(models, tmp_path):
    """T5 looks its tokens up in `shared` and in `encoder.embed_tokens`, which are the same table, here and on disk."""
    model = models["t5"]
    smaller, order = restrict(
        Pieces(model.tokenizer), [number for text in TEXTS for number in model.tokenizer(text)["input_ids"]]
    )
    changed, _ = transplant_tokens(model, smaller)
    for student in (changed, saved_and_loaded(changed, tmp_path / "student")):
        backbone = student[0].auto_model
        assert backbone.shared.weight is backbone.encoder.embed_tokens.weight and len(backbone.shared.weight) == len(
            order
        )
        assert (
            backbone.shared.num_embeddings
            == backbone.encoder.embed_tokens.num_embeddings
            == backbone.config.vocab_size
            == len(order)
        )
        np.testing.assert_allclose(student.encode(TEXTS), model.encode(TEXTS), atol=1e-6)
        assert (
            len(
                {
                    key: value.data_ptr()
                    for key, value in backbone.state_dict().items()
                    if "emb" in key or "shared" in key
                }
            )
            == 2
        )
    assert model[0].auto_model.shared.weight is model[0].auto_model.encoder.embed_tokens.weight, "the old model's too"
    fresh, _ = transplant_tokens(model, smaller)
    with torch.no_grad():
        for value in fresh.state_dict().values():
            value.zero_()
    fresh.load_state_dict(changed.state_dict())
    np.testing.assert_array_equal(fresh.encode(TEXTS), changed.encode(TEXTS))


def saved_and_loaded(model, folder):
    save_student(model, folder, {}, "")
    return SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", ["mistral", "xlm_roberta"])
def test_tokens_before_and_behind_a_text_stay(models, name, frame):
    """Metaspace BPE (mistral) and Unigram (xlm_roberta) with a token at the beginning, at the end, at both, at neither."""  # noqa: E501
    model, texts = copy.deepcopy(models[name]), [text for text in TEXTS if text]
    model[0].processor = model.tokenizer.__class__.from_pretrained(model.tokenizer.name_or_path)
    model.tokenizer.pad_token = models[name].tokenizer.pad_token
    model.tokenizer.backend_tokenizer.post_processor = architectures.template(model.tokenizer.backend_tokenizer, frame)
    ids = model.tokenizer("text")["input_ids"]
    assert (ids[0] == model.tokenizer.bos_token_id, ids[-1] == model.tokenizer.eos_token_id) == (
        "<s>" in frame,
        "</s>" in frame,
    )
    changed, made = transplant_tokens(model, model.tokenizer)
    assert set(made.counts) == {"copied", "special"}
    np.testing.assert_array_equal(changed.encode(texts), model.encode(texts))
    smaller, order = restrict(
        Pieces(model.tokenizer), [number for text in texts for number in model.tokenizer(text)["input_ids"]]
    )
    assert len(order) < len(model.tokenizer)
    np.testing.assert_allclose(transplant_tokens(model, smaller)[0].encode(texts), model.encode(texts), atol=1e-6)
    trained = train_tokenizer(lambda: architectures.TEXTS * 20, "bpe", 330, Pieces(model.tokenizer))
    assert [trained.convert_ids_to_tokens(trained(text)["input_ids"])[0] == "<s>" for text in texts] == [
        "<s>" in frame
    ] * len(texts)
    assert [trained.convert_ids_to_tokens(trained(text)["input_ids"])[-1] == "</s>" for text in texts] == [
        "</s>" in frame
    ] * len(texts)


def test_tokenizers_that_cut_at_white_space_before_they_mark_it(models):
    """T5's and XLM-R's do: a token that begins a word is nevertheless made of one that does, and words count as in
    whole texts.
    """
    old = Pieces(models["xlm_roberta"].tokenizer)
    source = architectures.unigram()
    source.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    split = Pieces(source)
    for surface in (
        Surface(b"text", True),
        Surface(b"ent", False),
        Surface(b" ", False),
        Surface("gün".encode(), True),
    ):
        assert (
            [split.tokens[n] for n in split.encode([surface])[0]]
            == [old.tokens[n] for n in old.encode([surface])[0]]
            != []
        )
    new = Pieces(models["roberta"].tokenizer)
    made, plain = composition(new, split), composition(new, old)
    words = [number for number in range(len(new.tokens)) if (surface := new.surface(number)) and surface.text.isalnum()]
    for number in words:
        parts = [[pieces.tokens[row] for row in found.rows[number]] for pieces, found in ((split, made), (old, plain))]
        assert parts[0] == parts[1] != [], new.tokens[number]
    assert len(words) > 90


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_an_output_layer_follows_tied_or_of_its_own(tmp_path, kind, tied):
    """Its table and its bias are composed as the input table is: on a part of the vocabulary every logit is the one it
    was.
    """
    name, make = {"masked": ("bert", BertForMaskedLM), "causal": ("qwen3", Qwen3ForCausalLM)}[kind]
    folder = getattr(architectures, name)(tmp_path / "backbone")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        backbone = make.from_pretrained(folder, tie_word_embeddings=tied).eval()
        if not tied:
            torch.nn.init.normal_(backbone.get_output_embeddings().weight)
        if kind == "masked":
            torch.nn.init.normal_(backbone.cls.predictions.bias)
    backbone.save_pretrained(folder)
    first = Transformer(str(folder), transformer_task={"masked": "fill-mask", "causal": "text-generation"}[kind])
    assert (first.auto_model.get_output_embeddings().weight is first.auto_model.get_input_embeddings().weight) == tied
    texts = TEXTS[:3]
    rows = [first.tokenizer(text, return_tensors="pt") for text in texts]
    before = [first.auto_model.eval()(**row).logits.detach() for row in rows]
    smaller, order = restrict(Pieces(first.tokenizer), torch.cat([row["input_ids"][0] for row in rows]).tolist())
    assert len(order) < len(first.tokenizer)
    give_tokenizer(first, smaller)
    output = first.auto_model.get_output_embeddings()
    assert (output.weight is first.auto_model.get_input_embeddings().weight) == tied and output.out_features == len(
        order
    )
    first.auto_model.save_pretrained(tmp_path / "changed")
    again = make.from_pretrained(tmp_path / "changed").eval()
    for text, logits in zip(texts, before, strict=True):
        for model in (first.auto_model, again):
            found = model(**smaller(text, return_tensors="pt")).logits
            torch.testing.assert_close(found, logits[:, :, torch.from_numpy(order)], atol=1e-5, rtol=1e-5)


def test_the_second_table_of_gemma_3n_follows(tmp_path):
    """Its layers read rows of their own by token."""
    backbone = AutoModel.from_pretrained(architectures.gemma3n(tmp_path / "backbone"))
    for name, weight in backbone.named_parameters():
        if name.endswith("correct_output_scale"):
            torch.nn.init.ones_(weight)  # zero in a fresh model: its layers would be left out
    backbone.save_pretrained(tmp_path / "backbone")
    folder = architectures.sentence_transformer(tmp_path / "model", tmp_path / "backbone")
    model = SentenceTransformer(str(folder), device="cpu")
    texts = ["the river runs", "a stone in the river"]
    pieces = Pieces(model.tokenizer)
    used = sorted({number for text in texts for number in model.tokenizer(text)["input_ids"]})
    changed, _ = transplant_tokens(model, restrict(pieces, {*used})[0])
    table = changed[0].auto_model.embed_tokens_per_layer
    assert len(table.weight) == len(changed.tokenizer) < len(model[0].auto_model.embed_tokens_per_layer.weight)
    np.testing.assert_allclose(changed.encode(texts), model.encode(texts), atol=1e-6)


def test_tokens_beyond_the_table_have_no_row(models):
    """Gemma 3's tokenizer has a token for images that the table of its text model does not hold."""
    model = copy.deepcopy(models["gemma3"])
    model.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    changed, made = transplant_tokens(model, model.tokenizer)
    assert made.counts["missing"] == 1 and made.origins[-1] == "missing"
    np.testing.assert_array_equal(changed.encode(TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize("name", KINDS)
def test_every_kept_token_can_be_made(models, name):
    """A tokenizer of half the vocabulary still makes each token of its own from that token's text, where the whole one
    does.
    """
    pieces = Pieces(models[name].tokenizer)
    smaller, order = restrict(
        pieces, [number for number in range(0, len(pieces.tokens), 2) if pieces.tokens[number] is not None]
    )
    less = Pieces(smaller)
    for new, old in enumerate(order.tolist()):
        surface = pieces.surface(old)
        if surface is not None and pieces.encode([surface]) == [[old]]:
            assert less.encode([surface]) == [[new]], pieces.tokens[old]


@pytest.mark.parametrize(
    ("source", "target"), [("bert", "roberta"), ("bert", "xlm_roberta"), ("roberta", "bert"), ("gemma3", "bert")]
)
def test_words_and_parts_of_words_keep_their_form(models, source, target):
    """A token that begins a word is made of what begins a word in the other tokenizer, one that goes on of what goes
    on.
    """
    old, new = Pieces(models[source].tokenizer), Pieces(models[target].tokenizer)
    made = composition(new, old)
    forms = {True: 0, False: 0}
    for number in range(len(new.tokens)):
        surface = new.surface(number)
        if (
            surface is None
            or made.origins[number] != "composed"
            or not surface.text.isalpha()
            or not surface.text.isascii()
        ):
            continue
        parts = [old.surface(row) for row in made.rows[number]]
        joined = "".join(" " * part.initial + part.text.decode() for part in parts)
        text = surface.text.decode()
        assert joined == " " * surface.initial + (text.lower() if source == "bert" else text), (
            new.tokens[number],
            surface,
        )
        forms[surface.initial] += 1
    assert all(forms.values())


def test_rows_are_composed_as_the_strategies_say():
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    old = [[2], [0, 1, 5], []]
    rows = compose_rows(table, old)
    assert torch.equal(rows[0], table[2])
    torch.testing.assert_close(rows[1], table[[0, 1, 5]].mean(0))
    torch.testing.assert_close(rows[2], table.mean(0))
    weighted = (3 * table[0] + 2 * table[1] + table[5]) / 6
    for compose, expected in {"weighted": weighted, "first": table[0], "last": table[5]}.items():
        found = compose_rows(table, old, compose)
        assert torch.equal(found[0], table[2])
        torch.testing.assert_close(found[1], expected)
    assert torch.equal(compose_rows(table, [[], []]), table.mean(0).expand(2, -1))
    kept = compose_rows(table, old, keep_norm=True)
    assert torch.equal(kept[0], table[2])
    assert float(kept[1].norm()) == pytest.approx(float(table[[0, 1, 5]].norm(dim=1).mean()), rel=1e-5)


def test_special_tokens_go_by_role(models):
    old, new = Pieces(models["bert"].tokenizer), Pieces(models["xlm_roberta"].tokenizer)
    made = composition(new, old)
    pairs = {
        "bos_token_id": "cls_token_id",
        "eos_token_id": "sep_token_id",
        "pad_token_id": "pad_token_id",
        "unk_token_id": "unk_token_id",
    }
    for ours, theirs in pairs.items():
        number = getattr(new.tokenizer, ours)
        assert made.rows[number] == [getattr(old.tokenizer, theirs)] and made.origins[number] == "special"


def test_parts_of_characters_and_bytes(models):
    letters = Pieces(models["roberta"].tokenizer)
    half = "é".encode()[:1]
    assert (
        letters.encode([Surface(half, False)])
        and not Pieces(models["bert"].tokenizer).encode([Surface(half, False)])[0]
    )


class Slow(PreTrainedTokenizer):
    """A tokenizer written in Python, letter by letter."""

    vocab_size = 3

    def get_vocab(self):
        return {"a": 0, "b": 1, "<unk>": 2}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.get_vocab().get(token, 2)

    def _convert_id_to_token(self, index):
        return "ab?"[index]


def test_bad_input_is_named_and_changes_nothing(models):
    model = models["bert"]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(DistilvecError, match="learned positions"):
        transplant_tokens(model, model.tokenizer, max_length=4096)
    with refused("student.vocabulary.tokenizer", "Slow"):
        transplant_tokens(model, Slow(pad_token="a", unk_token="<unk>"))
    holes = architectures.wordpiece()
    holes.add_tokens("one more")
    state = Pieces(holes).state
    state["model"]["vocab"] = {token: number + (number > 100) for token, number in state["model"]["vocab"].items()}
    with refused("student.vocabulary.tokenizer", "101"):
        transplant_tokens(
            model, architectures.wrap(architectures.Tokenizer.from_str(json.dumps(state)), pad_token="[PAD]")
        )
    roles = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    lacking = architectures.byte_level(["<|endoftext|>"], "$A <|endoftext|>")
    with refused("student.vocabulary.tokenizer", "[CLS] and [SEP]"):
        transplant_tokens(model, copied(lacking, pad_token="x"))
    with refused("student.vocabulary.tokenizer", "eos <|endoftext|>"):
        transplant_tokens(model, copied(lacking, **roles))
    with pytest.raises(DistilvecError, match="has no padding token, which batches need"):
        transplant_tokens(model, architectures.metaspace("<s> $A </s>", ["<unk>", "<s>", "</s>"]))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def copied(tokenizer, **roles):
    return architectures.wrap(tokenizer.backend_tokenizer, **roles)
