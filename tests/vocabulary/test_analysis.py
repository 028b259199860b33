"""What tokenizers make of texts, against figures computed by hand for each kind; what another tokenizer saves; where
parameters are.
"""

from __future__ import annotations

import json

import architectures
import pytest
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import nn

from distilvec.core.errors import DistilvecError
from distilvec.vocabulary.compare import compare_tokenizers, parameter_counts, text_statistics
from distilvec.vocabulary.pieces import Pieces


@pytest.fixture(scope="module")
def wordpiece():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, "the", "cat", "##s", "sat", ".", "un", "##able"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = architectures.template(tokenizer, "[CLS] $A [SEP]")
    return architectures.wrap(
        tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", mask_token="[MASK]"
    )


@pytest.fixture(scope="module")
def byte_level():
    """Letters are bytes; "hi", " hi" and "ü" (two bytes) are tokens, "é" is not."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "i"), ("Ġ", "hi"), ("Ã", "¼")]
    words = ["<s>", "</s>", *letters, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = architectures.template(tokenizer, "<s> $A </s>")
    return architectures.wrap(tokenizer, bos_token="<s>", eos_token="</s>")


def unigram(byte_fallback=True):
    """Turkish words and pieces, bytes for what it does not know, one special token behind each text."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁merhaba", -1.0), ("▁ev", -1.0), ("ler", -1.0), ("▁", -5.0)]
    pieces += [(f"<0x{value:02X}>", -9.0) for value in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.post_processor = architectures.template(tokenizer, "$A </s>")
    return architectures.wrap(tokenizer, unk_token="<unk>", eos_token="</s>")


def analyse(tokenizer, texts, max_length=None):
    return {name: text_statistics(Pieces(tokenizer), own, max_length) for name, own in texts.items()}


def rounded(values):
    return {name: value if value is None else pytest.approx(value) for name, value in values.items()}


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_wordpiece(wordpiece):
    """the cat ##s sat . | [UNK] sat | nothing"""
    texts = {"en": ["The cats sat.", "zzz sat", ""]}
    expected = {
        "texts": 3, "words": 5, "characters": 20, "tokens": 7, "fertility": 7 / 5, "characters_per_token": 20 / 7, "unknown": 1 / 7,  # noqa: E501
        "byte_tokens": 0.0, "mean_length": (7 + 4 + 2) / 3, "attention_cost": (49 + 16 + 4) / 3, "cut": None,
    }  # fmt: skip
    assert analyse(wordpiece, texts)["en"] == rounded(expected)
    cut = {**expected, "mean_length": (5 + 4 + 2) / 3, "attention_cost": (25 + 16 + 4) / 3, "cut": 1 / 3}
    assert analyse(wordpiece, texts, max_length=5)["en"] == rounded(cut)
    assert analyse(wordpiece, texts, max_length=7)["en"]["cut"] == 0


def test_byte_level_bpe(byte_level):
    """hi Ġhi | Ã © Ġ Ã¼ | four bytes; without an unknown token"""
    expected = {
        "texts": 3, "words": 5, "characters": 9, "tokens": 10, "fertility": 2.0, "characters_per_token": 0.9, "unknown": 0.0,  # noqa: E501
        "byte_tokens": 0.6, "mean_length": (4 + 6 + 6) / 3, "attention_cost": (16 + 36 + 36) / 3, "cut": None,
    }  # fmt: skip
    assert analyse(byte_level, {"": ["hi hi", "é ü", "😀"]})[""] == rounded(expected)


def test_metaspace_unigram_with_byte_fallback():
    """▁merhaba ▁ev ler | ▁ev ▁ <0xC3> <0xA9>"""
    texts = {"tr": ["merhaba evler", "ev é"]}
    expected = {
        "texts": 2, "words": 4, "characters": 17, "tokens": 7, "fertility": 7 / 4, "characters_per_token": 17 / 7, "unknown": 0.0,  # noqa: E501
        "byte_tokens": 2 / 7, "mean_length": (4 + 5) / 2, "attention_cost": (16 + 25) / 2, "cut": None,
    }  # fmt: skip
    assert analyse(unigram(), texts)["tr"] == rounded(expected)
    without = analyse(unigram(byte_fallback=False), texts)["tr"]  # ▁ev ▁ <unk>
    assert without["unknown"] == pytest.approx(1 / 6) and without["byte_tokens"] == 0 and without["tokens"] == 6


def test_a_token_is_added_without_being_special(wordpiece):
    more = architectures.wrap(Tokenizer.from_str(wordpiece.backend_tokenizer.to_str()), unk_token="[UNK]")
    more.add_tokens(["evler"])
    found = compare_tokenizers(wordpiece, more, {"tr": ["the evler"]})
    assert found["after"]["vocabulary"] == {"size": 13, "special": 5, "added": 1}
    after = found["languages"]["tr"]["after"]
    assert after["tokens"] == 2 and after["unknown"] == 0


# -- scripts, and texts without anything -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["เด็กหญิงอ่านหนังสือ", "学习中文", "テキストを読む", "ភាសាខ្មែរ", "ພາສາລາວ", "မြန်မာဘာသာ", "abc 学习中文很有意思"]
)
def test_words_are_not_defined_without_spaces(byte_level, text):
    found = analyse(byte_level, {"x": [text, "12 34!"]})["x"]
    assert found["words"] is found["fertility"] is None
    assert found["characters"] == len(text) + 6
    assert found["characters_per_token"] == found["characters"] / found["tokens"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("😀 😀", 2), ("çok güzel 中 bir", 4), ("नमस्ते दुनिया", 2), ("안녕 하세요", 2), ("12 + 3", 3), (" \n", 0)],
)
def test_words_are_separated_by_white_space(byte_level, text, words):
    found = analyse(byte_level, {"x": [text]})["x"]
    assert found["words"] == words and (found["fertility"] is None) == (words == 0)


def test_no_texts_and_empty_ones(wordpiece):
    found = analyse(wordpiece, {"a": [], "b": [""]})
    names = ("texts", "words", "characters", "tokens")
    nothing = {name: 0 if name in names else None for name in found["a"]}
    assert found == {"a": nothing, "b": {**nothing, "texts": 1, "mean_length": 2.0, "attention_cost": 4.0}}
    assert analyse(wordpiece, {}) == {}


def test_chunks_add_up(wordpiece, monkeypatch):
    texts = {"en": ["The cats sat.", "zzz sat", "", "unable cats. sat"] * 5}
    whole = analyse(wordpiece, texts, 5)
    monkeypatch.setattr("distilvec.vocabulary.compare._CHUNK", 3)
    assert analyse(wordpiece, texts, 5) == whole


def test_the_lengths_are_those_of_the_tokenizer_itself(wordpiece, byte_level):
    texts = ["The cats sat.", "merhaba evler 😀", "", *architectures.TEXTS]
    for tokenizer in (wordpiece, byte_level, unigram()):
        lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
        assert analyse(tokenizer, {"x": texts})["x"]["mean_length"] == pytest.approx(sum(lengths) / len(lengths))


def test_a_limit_without_room_is_refused(wordpiece):
    with pytest.raises(DistilvecError, match=r"\[max_length\] .*adds 2 special tokens"):
        analyse(wordpiece, {"en": ["the"]}, max_length=2)


# -- two tokenizers --------------------------------------------------------------------------------------------------


def test_what_another_tokenizer_saves(byte_level):
    texts = {"tr": ["merhaba evler", "ev"], "th": ["ไทย"], "none": []}
    found = compare_tokenizers(byte_level, unigram(), texts, max_length=10)
    before, after, saved = (found["languages"]["tr"][name] for name in ("before", "after", "saved"))
    assert (before["tokens"], after["tokens"]) == (13 + 2, 3 + 1)  # letter by letter; words
    assert (before["mean_length"], after["mean_length"]) == ((10 + 4) / 2, (4 + 2) / 2)
    assert (before["attention_cost"], after["attention_cost"]) == ((100 + 16) / 2, (16 + 4) / 2)
    assert saved == rounded({"tokens": 100 * 11 / 15, "length": 100 * 4 / 7, "attention": 100 * 48 / 58})
    assert (before["cut"], after["cut"]) == (0.5, 0.0)
    thai = found["languages"]["th"]  # nine bytes each, behind a space for the second
    assert thai["saved"] == rounded({"tokens": -100 / 9, "length": 0.0, "attention": 0.0})
    assert thai["after"]["fertility"] is None
    assert found["languages"]["none"]["saved"] == {"tokens": None, "length": None, "attention": None}
    assert len(found["notes"]) == 1 and "th:" in found["notes"][0] and "tr" not in found["notes"][0].split(":")[0]
    assert found["max_length"] == 10 and json.loads(json.dumps(found)) == found


def test_a_tokenizer_saves_nothing_against_itself(wordpiece):
    found = compare_tokenizers(wordpiece, wordpiece, {"en": ["the cat"]})
    assert found["before"] == found["after"] and found["notes"] == []
    assert set(found["languages"]["en"]["saved"].values()) == {0.0}


# -- parameters ------------------------------------------------------------------------------------------------------


def test_parameters_are_counted_once(tmp_path):
    path = architectures.sentence_transformer(
        tmp_path / "model", architectures.bert(tmp_path / "backbone"), "mean dense:24 normalize"
    )
    model = SentenceTransformer(str(path), device="cpu")
    backbone = model[0].auto_model
    rows = backbone.get_input_embeddings().weight.shape[0]
    found = parameter_counts(model)
    assert (found["vocabulary"], found["embedding"], found["other"]) == (rows, rows * 32, 32 * 24)
    assert found["total"] == sum(weight.numel() for weight in model.parameters())
    assert found["total"] == found["embedding"] + found["backbone"] + found["other"]
    backbone.decoder = nn.Linear(32, rows, bias=False)
    backbone.decoder.weight = backbone.get_input_embeddings().weight  # tied
    assert parameter_counts(model) == found


def test_a_model_without_a_transformer_is_named():
    with pytest.raises(DistilvecError, match="a Linear; expected a Transformer"):
        parameter_counts(nn.Sequential(nn.Linear(2, 2)))
