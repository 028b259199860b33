"""Tokenizers from files: SentencePiece models cut text as sentencepiece does; roles and the tokens around a text are
taken over.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import sys

import architectures
import numpy as np
import pytest
import sentencepiece
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from tokenizers import normalizers
from transformers import AutoTokenizer

from distilvec.config.student import VocabularySection
from distilvec.core.errors import DistilvecError, plain_errors
from distilvec.vocabulary.choose import choose
from distilvec.vocabulary.edit import fast_tokenizer
from distilvec.vocabulary.load import read_tokenizer
from distilvec.vocabulary.pieces import Pieces
from distilvec.vocabulary.transplant import transplant_tokens

HARD = [
    *(
        "naïve 中文 \u0131ğ 😀",
        "e\u0301 combining",
        "مرحبا بالعالم",
        "ภาษาไทย",
        "አማርኛ ጽሑፍ",
        "I\u0307stanbul \u0131",
        "a\u200bb",
    ),
    *(
        "👩‍👩‍👧‍👦 family",
        " lead",
        "trail ",
        "  two  spaces  here ",
        "\ttab\nline\n",
        "",
        " ",
        "①ﬁ½",
        "x\u00a0y\u3000z",
        "aaa aaaaaaa",
        "字字 字a",
    ),
]
GENERATOR = random.Random(0)
RANDOM = ["".join(GENERATOR.choice("abcdeilnorst  ığ😀aab") for _ in range(40)) for _ in range(100)]
TEXTS = [*make_texts(100), *architectures.TEXTS * 5, *HARD[:6] * 3]
FOUR = list(itertools.product(["bpe", "unigram"], [True, False]))


@pytest.fixture(scope="module")
def likes():
    return {
        "bert": Pieces(architectures.wordpiece()),
        "xlm_roberta": Pieces(architectures.unigram()),
        "qwen3": Pieces(
            architectures.byte_level(["<|endoftext|>"], "$A <|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>")
        ),
    }


def train(path, kind, byte_fallback, **changes):
    """A SentencePiece model trained with sentencepiece itself, in its own words."""
    written = io.BytesIO()
    settings = {
        "vocab_size": 500 if byte_fallback else 240,
        "hard_vocab_limit": False,
        "character_coverage": 0.995,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=written,
        model_type=kind,
        byte_fallback=byte_fallback,
        num_threads=1,
        **{**settings, **changes},
    )
    path.write_bytes(written.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
@pytest.mark.parametrize(("before", "surplus"), itertools.product([True, False], repeat=2))
@pytest.mark.parametrize(("kind", "byte_fallback"), FOUR)
def test_a_model_file_cuts_text_as_sentencepiece_does(likes, tmp_path, kind, byte_fallback, before, surplus, rule):
    """With and without bytes, a space put before every text, surplus spaces taken away, letters normalised."""
    settings = {"add_dummy_prefix": before, "remove_extra_whitespaces": surplus, "normalization_rule_name": rule}
    theirs = train(tmp_path / "some.model", kind, byte_fallback, **settings)
    ours = read_tokenizer(str(tmp_path / "some.model"), likes["xlm_roberta"])
    assert sorted(ours.get_vocab().values()) == list(range(len(theirs) + 1)), "its own, and a padding token"
    for text in [*HARD, *TEXTS, *RANDOM]:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, text
        if theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(ids), text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_that_the_trainer_was_given_and_pieces_over_spaces(likes, tmp_path, kind):
    plain = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
    settings = plain if kind == "bpe" else {}
    theirs = train(tmp_path / "given.model", kind, True, user_defined_symbols=["<ent>"], **settings)
    ours = read_tokenizer(str(tmp_path / "given.model"), likes["xlm_roberta"])
    for text in ["a <ent> b", "a<ent>b", "<ent>", *TEXTS]:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text), text
    theirs = train(tmp_path / "wide.model", kind, True, split_by_whitespace=False)
    assert any("\u2581" in theirs.id_to_piece(number)[1:] for number in range(len(theirs)))
    ours = read_tokenizer(str(tmp_path / "wide.model"), likes["xlm_roberta"])
    for text in [*HARD, *TEXTS]:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text), text


@pytest.mark.parametrize(("kind", "byte_fallback"), FOUR)
@pytest.mark.parametrize("like", ["bert", "xlm_roberta", "qwen3"])
def test_the_model_reads_texts_with_its_own_tokens_around_them(likes, tmp_path, like, kind, byte_fallback):
    theirs = train(tmp_path / "some.model", kind, byte_fallback)
    made = read_tokenizer(str(tmp_path / "some.model"), likes[like])
    inside = theirs.encode("the students learn")
    around = {"bert": ["<s>", "</s>"], "xlm_roberta": ["<s>", "</s>"], "qwen3": ["</s>"]}[like]
    ids = made("the students learn")["input_ids"]
    assert [token for token in made.convert_ids_to_tokens(ids) if token in around] == around and set(ids) > set(inside)
    assert made.pad_token == "<pad>" and made.unk_token == "<unk>" and (made.cls_token == "<s>") == (like != "qwen3")
    assert made.model_max_length == likes[like].tokenizer.model_max_length
    if like == "bert":
        pair = made("the students", "learn")
        assert pair["token_type_ids"][-1] == 1 and made.convert_ids_to_tokens(pair["input_ids"]).count("</s>") == 2
    made.save_pretrained(tmp_path / "saved")
    again = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in HARD:
        assert again(text)["input_ids"] == made(text)["input_ids"]


@pytest.mark.parametrize(("kind", "byte_fallback"), FOUR)
def test_a_model_gets_such_a_vocabulary(tmp_path, kind, byte_fallback):
    backbone = architectures.xlm_roberta(tmp_path / "backbone")
    model = SentenceTransformer(str(architectures.sentence_transformer(tmp_path / "model", backbone)), device="cpu")
    train(tmp_path / "some.model", kind, byte_fallback)
    pieces = Pieces(model.tokenizer)
    chosen = choose(VocabularySection(tokenizer=str(tmp_path / "some.model")), pieces, {})
    changed, made = transplant_tokens(model, chosen.tokenizer)
    assert chosen.figures["tokens"] == len(made.origins) == changed[0].auto_model.get_input_embeddings().num_embeddings
    table, old = changed[0].auto_model.get_input_embeddings().weight, model[0].auto_model.get_input_embeddings().weight
    for role in ("cls", "sep", "pad", "unk"):
        token = getattr(changed.tokenizer, f"{role}_token_id")
        assert (table[token] == old[getattr(model.tokenizer, f"{role}_token_id")]).all(), role
    assert changed.tokenizer.pad_token_id == 1, "where the model begins to count positions"
    assert made.counts["copied"] > 20 and np.isfinite(changed.encode(TEXTS[:5])).all()


def test_a_tokenizer_folder_without_padding_gets_a_token_of_its_own(likes, tmp_path):
    folder = architectures.mistral(tmp_path / "decoder")
    assert AutoTokenizer.from_pretrained(folder).pad_token is None
    backbone = architectures.roberta(tmp_path / "backbone")  # it counts positions from the padding id
    model = SentenceTransformer(str(architectures.sentence_transformer(tmp_path / "model", backbone)), device="cpu")
    chosen = choose(VocabularySection(tokenizer=str(folder)), Pieces(model.tokenizer), {})
    changed, _ = transplant_tokens(model, chosen.tokenizer)
    assert changed.tokenizer.pad_token not in (None, changed.tokenizer.eos_token, changed.tokenizer.unk_token)
    alone = np.concatenate([changed.encode([text]) for text in TEXTS[:8]])
    assert np.abs(changed.encode(TEXTS[:8]) - alone).max() < 1e-5


def test_a_bare_tokenizer_json(likes, tmp_path):
    source = architectures.byte_level(["<s>", "</s>", "<unk>"], "$A", unk="<unk>")
    source.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    made = read_tokenizer(str(tmp_path / "tokenizer.json"), likes["bert"])
    for text in [*HARD, *TEXTS]:
        assert made.encode(text, add_special_tokens=False) == source.encode(text, add_special_tokens=False)
        assert made.convert_ids_to_tokens(made.encode(text)) == ["<s>", *source.tokenize(text), "</s>"]
    assert (made.cls_token, made.sep_token, made.pad_token) == ("<s>", "</s>", "<pad>") and made.padding_side == "right"
    bert = architectures.wordpiece()
    bert.backend_tokenizer.save(str(tmp_path / "bert.json"))
    again = read_tokenizer(str(tmp_path / "bert.json"), likes["bert"])
    assert again.special_tokens_map == bert.special_tokens_map and again("a text", "b") == bert("a text", "b")


def test_a_folder_is_read_whole_where_transformers_leaves_parts_out(likes, tmp_path):
    """A letter of Turkish and the length of words: a BertTokenizer of transformers 5 has its own."""
    tokenizer = architectures.wordpiece()
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Replace("I", "\u0131"), normalizers.Lowercase()])
    backend.model.max_input_chars_per_word = 5
    tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "BertTokenizer"}))
    made = read_tokenizer(str(tmp_path), likes["bert"])
    for text in [*HARD, *TEXTS, "INDEX", "shorter"]:
        assert made.encode(text) == backend.encode(text).ids
    assert made.pad_token == "[PAD]" and made.special_tokens_map == tokenizer.special_tokens_map
    assert AutoTokenizer.from_pretrained(tmp_path).encode("shorter") != made.encode("shorter")


def test_tokens_of_other_names_are_known_by_their_use(likes):
    """A token that is used for padding and behind a text stands for the one behind the text."""
    qwen, bert = likes["qwen3"], likes["bert"]
    number = qwen.tokenizer.eos_token_id
    assert (
        bert.tokens[qwen.counterpart(number, bert)] == "[SEP]"
        and bert.counterpart(bert.tokenizer.pad_token_id, qwen) == number
    )


def test_folders_and_ids_are_read_as_they_are(likes, tmp_path):
    folder = architectures.qwen3(tmp_path / "qwen3.model")
    made = read_tokenizer(str(folder), likes["bert"])
    assert (
        made("a text")["input_ids"] == AutoTokenizer.from_pretrained(folder)("a text")["input_ids"]
        and made.cls_token is None
    )


def test_bad_files_are_named(likes, tmp_path):
    bert = likes["bert"]

    def refuse(name, content=None):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        return lambda message: pytest.raises(DistilvecError, match=rf"\[student\.vocabulary\.tokenizer\].*{message}")

    def read(name, like=bert):
        with plain_errors():
            return read_tokenizer(str(tmp_path / name), like)

    with refuse("none.model")("no file .*none.model"):
        read("none.model")
    with refuse("none.json")("no file .*none.json"):
        read("none.json")
    with refuse("noise.model", bytes(range(200)) * 3)("cannot use .*noise.model: DecodeError"):
        read("noise.model")
    with refuse("empty.model", b"")("it has no pieces"):
        read("empty.model")
    with refuse("noise.json", b"{")("cannot use .*noise.json: "):
        read("noise.json")
    with refuse("config.json", b'{"model_type": "bert"}')("cannot use .*config.json: "):
        read("config.json")
    train(tmp_path / "word.model", "word", False, vocab_size=40)
    with refuse("word.model")("has no fast form: it is a word model"):
        read("word.model")
    train(tmp_path / "suffix.model", "bpe", False, treat_whitespace_as_suffix=True)
    with refuse("suffix.model")("has no fast form: its words end with spaces"):
        read("suffix.model")
    train(tmp_path / "bare.model", "bpe", False, bos_id=-1)
    with refuse("bare.model")(
        r"the model reads texts with \[CLS\], and .*bare.model has no token for it. Expected one of \[CLS\], "
    ):
        read("bare.model")
    state = json.loads(architectures.wordpiece().backend_tokenizer.to_str())
    state["model"]["vocab"] = {token: number + (number > 50) for token, number in state["model"]["vocab"].items()}
    with refuse("holes.json", json.dumps(state).encode())("have holes, 51 has no token"):
        read("holes.json")


def test_a_token_that_is_unknown_without_a_role_stays(likes, tmp_path):
    """Files do not say which token is the unknown one; its model does."""
    state = json.loads(architectures.wordpiece().backend_tokenizer.to_str())
    state["model"]["unk_token"] = "zzz"
    state["model"]["vocab"]["zzz"] = len(state["model"]["vocab"])
    pieces = Pieces(fast_tokenizer({**state, "post_processor": None}, likes["bert"].tokenizer, {}))
    assert pieces.tokens[pieces.unknown] == "zzz" and pieces.unknown in pieces.special


def test_missing_packages_are_named(likes, tmp_path, monkeypatch):
    train(tmp_path / "some.model", "bpe", False)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with refused("student.vocabulary.tokenizer", "[sentencepiece]"):
        read_tokenizer(str(tmp_path / "some.model"), likes["bert"])
