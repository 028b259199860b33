import json

import numpy as np
import pytest
import torch
from refusals import refused
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizerFast, PreTrainedTokenizerFast

from distilvec.config.schema import CorpusSection
from distilvec.data import tokens
from distilvec.data.corpus import build_corpus
from distilvec.data.tokens import TokenStore, build_tokens

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
TEXTS = ["a b c", "abc", "a " * 50, "zzz q", "hgfedcba a", "b"]


@pytest.fixture
def tokenizer():
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=512,
    )


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(tmp_path, TEXTS)


def corpus_of(tmp_path, texts, role="query"):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    section = CorpusSection.model_validate({"sources": [{"path": path, "role": role}], "validation_rows": 1})
    return build_corpus(section, {"query": "query: "}, tmp_path / "corpus")


class SlowTokenizer:
    """What is asked of a tokenizer without a Rust backend, answered by a fast one."""

    is_fast = False

    def __init__(self, fast):
        self._fast = fast
        self.truncation_side = "left"
        self.pad_token_id, self.unk_token_id = fast.pad_token_id, fast.unk_token_id
        self.get_vocab, self.tokenize, self.num_special_tokens_to_add = (
            fast.get_vocab,
            fast.tokenize,
            fast.num_special_tokens_to_add,
        )

    def __repr__(self):
        return "SlowTokenizer"

    def __call__(self, texts, **options):
        assert self.truncation_side == "right"
        return self._fast(texts, **options)


@pytest.mark.parametrize("chunk", [1, 40, 1 << 20])
@pytest.mark.parametrize("slow", [False, True])
def test_same_ids_as_the_tokenizer(tmp_path, monkeypatch, corpus, tokenizer, chunk, slow):
    monkeypatch.setattr(tokens, "_CHUNK_BYTES", chunk)
    told = []
    given = SlowTokenizer(tokenizer) if slow else tokenizer
    store = build_tokens(corpus, given, 12, tmp_path / "tokens", lambda stage, rows: told.append(rows))
    expected = [tokenizer(f"query: {text.strip()}", truncation=True, max_length=12)["input_ids"] for text in TEXTS]
    for row, ids in enumerate(expected):
        batch = store.batch(np.array([row]))
        assert batch["input_ids"].tolist() == [ids] and "attention_mask" not in batch
    assert store.lengths.tolist() == [len(ids) for ids in expected] and len(store) == len(TEXTS) == told[-1]
    assert store.lengths.dtype == np.int32
    assert store.report == {"rows": 6, "tokens": sum(map(len, expected)), "truncated": 2, "empty": 0}


def test_a_batch_equals_the_tokenizers_padding(tmp_path, corpus, tokenizer):
    store = build_tokens(corpus, tokenizer, 16, tmp_path / "tokens")
    rows = np.array([5, 2, 0, 3, 2])
    expected = tokenizer(corpus.prompted(rows), truncation=True, max_length=16, padding=True, return_tensors="pt")
    batch = store.batch(rows)
    assert set(batch) == {"input_ids", "attention_mask"}
    for name, tensor in batch.items():
        assert tensor.dtype == torch.int64 and torch.equal(tensor, expected[name])
    assert store.batch(np.array([], dtype=np.int64))["input_ids"].shape == (0, 0)


def test_padding_is_on_the_right_with_the_padding_token(tmp_path, corpus):
    order = [*WORDS[1:7], "[PAD]", *WORDS[7:]]
    vocabulary = {word: i for i, word in enumerate(order)}
    other = BertTokenizerFast(vocab=vocabulary, padding_side="left", truncation_side="left")
    store = build_tokens(corpus, other, 10, tmp_path / "tokens")
    ids = store.batch(np.array([2, 5]))["input_ids"]
    assert ids[1, store.lengths[5] :].unique().tolist() == [other.pad_token_id] and ids[1, 0] == other.cls_token_id
    assert ids[0, 1:3].tolist() == other.convert_tokens_to_ids(["query", ":"]), "the end is cut, not the start"


def test_the_callers_tokenizer_is_left_alone(tmp_path, corpus, tokenizer):
    tokenizer.backend_tokenizer.enable_truncation(5)
    tokenizer.backend_tokenizer.enable_padding(length=7)
    before = tokenizer.backend_tokenizer.to_str()
    store = build_tokens(corpus, tokenizer, 64, tmp_path / "tokens")
    assert tokenizer.backend_tokenizer.to_str() == before
    assert store.lengths.max() > 40


def test_a_length_just_reached_is_not_truncated(tmp_path, tokenizer):
    corpus = corpus_of(tmp_path, ["a b c", "a b c d"], role="document")
    assert build_tokens(corpus, tokenizer, 5, tmp_path / "tokens").report["truncated"] == 1


def test_texts_without_tokens_become_one_unknown(tmp_path, tokenizer):
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    corpus = corpus_of(tmp_path, ["a", "\u200b"], role="document")
    store = build_tokens(corpus, tokenizer, 8, tmp_path / "tokens")
    assert store.report["empty"] == 1 and store.batch(np.array([1]))["input_ids"].tolist() == [[tokenizer.unk_token_id]]


def test_reopened_only_for_the_same_things(tmp_path, corpus, tokenizer):
    told = []

    def count(stage, rows):
        told.append(rows)

    build_tokens(corpus, tokenizer, 8, tmp_path / "tokens", count)
    built = len(told)
    again = build_tokens(corpus, tokenizer, 8, tmp_path / "tokens", count)
    assert len(told) == built and again.lengths.max() == 8
    assert build_tokens(corpus, tokenizer, 9, tmp_path / "tokens", count).lengths.max() == 9 and len(told) == 2 * built
    tokenizer.add_tokens(["zzz"])
    assert build_tokens(corpus, tokenizer, 9, tmp_path / "tokens", count).batch(np.array([3]))[
        "input_ids"
    ].max() >= len(WORDS)
    file = tmp_path / "tokens" / "ids.npy"
    file.write_bytes(file.read_bytes()[:-4])
    assert len(build_tokens(corpus, tokenizer, 9, tmp_path / "tokens", count)) == len(TEXTS) and len(told) == 4 * built
    assert TokenStore(tmp_path / "tokens").max_length == 9


def test_too_short_a_limit_is_refused(tmp_path, corpus, tokenizer):
    with refused("student.max_length"):
        build_tokens(corpus, tokenizer, 2, tmp_path / "tokens")


def test_very_long_text_takes_a_chunk_of_its_own(tmp_path, tokenizer):
    corpus = corpus_of(tmp_path, ["a", "b " * 400_000, "c"], role="document")
    store = build_tokens(corpus, tokenizer, 16, tmp_path / "tokens")
    assert store.lengths.tolist() == [3, 16, 3] and store.report["truncated"] == 1
