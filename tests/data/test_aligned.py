import json

import architectures
import numpy as np
import pytest
import torch
from refusals import refused

from distilvec.alignment import store
from distilvec.alignment.align import Aligner
from distilvec.alignment.store import AlignmentStore, build_alignment
from distilvec.config.schema import CorpusSection
from distilvec.data import tokens
from distilvec.data.corpus import build_corpus
from distilvec.data.tokens import build_tokens

TEXTS = [*architectures.TEXTS, "😀 text", "שלום the", "the text " * 40, "zz", "e\u0301 İ \u0131\t\u200ba"]


@pytest.fixture(scope="module")
def tokenizers():
    return architectures.wordpiece(), architectures.byte_level(["<s>", "</s>"], "<s> $A </s>", bos="<s>", eos="</s>")


def corpus_of(tmp_path, texts):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    section = CorpusSection.model_validate({"sources": [{"path": path, "role": "query"}], "validation_rows": 1})
    return build_corpus(section, {"query": "query: "}, tmp_path / "corpus")


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
@pytest.mark.parametrize("kind", ["offsets", "overlap", "mined", "strict"])
def test_batches_hold_what_the_aligner_finds(tmp_path, monkeypatch, tokenizers, kind, chunk, capsys):
    monkeypatch.setattr(tokens, "_CHUNK_BYTES", chunk)
    corpus = corpus_of(tmp_path, TEXTS)
    store = build_alignment(corpus, tokenizers[0], 24, tokenizers[1], 32, kind, tmp_path / "pairs")
    assert f"aligning tokens: {len(TEXTS)}/{len(TEXTS)} texts" in capsys.readouterr().err
    assert len(store) == len(TEXTS)
    build_alignment(corpus, tokenizers[0], 24, tokenizers[1], 32, kind, tmp_path / "pairs")
    assert "aligning" not in capsys.readouterr().err, "what is stored has no bar"
    rows = np.array([3, 8, 0, 3, 9])
    batch, aligner = store.batch(rows), Aligner(tokenizers[0], 24, tokenizers[1], 32, kind)
    assert batch.pairs.dtype == torch.int64 and batch.pairs.shape == (5, store.counts[rows].max(), 2)
    assert (batch.shares is not None) == (kind == "overlap")
    for place, text in enumerate(corpus.prompted(rows)):
        alone = aligner.align([text])
        count = len(alone.pairs)
        assert batch.pairs[place, :count].tolist() == alone.pairs.tolist() and (batch.pairs[place, count:] == -1).all()
        if batch.shares is not None:
            assert batch.shares.dtype == torch.float32 and batch.shares[place, :count].tolist() == alone.shares.tolist()
            assert (batch.shares[place, count:] == 0).all()
    assert store.batch(np.zeros(0, dtype=np.int64)).pairs.shape == (0, 0, 2)


def test_lengths_are_those_of_the_token_stores(tmp_path, tokenizers):
    no_special = architectures.wordpiece()
    no_special.backend_tokenizer.post_processor = architectures.template(no_special.backend_tokenizer, "$A")
    corpus = corpus_of(tmp_path, [*TEXTS, "\u200b"])
    corpus.prompts["query"] = ""
    for student, teacher in (tokenizers, (no_special, tokenizers[0])):
        store = build_alignment(corpus, student, 20, teacher, 28, "offsets", tmp_path / "pairs")
        own = build_tokens(corpus, student, 20, tmp_path / "own")
        other = build_tokens(corpus, teacher, 28, tmp_path / "other")
        assert (
            store.student_lengths.tolist() == own.lengths.tolist()
            and store.teacher_lengths.tolist() == other.lengths.tolist()
        )
        assert own.lengths.max() == 20 and own.lengths.min() < 4
        pairs = store.batch(np.arange(len(corpus))).pairs
        assert (pairs[..., 0] < torch.from_numpy(own.lengths.astype(np.int64))[:, None]).all()
        assert (pairs[..., 1] < torch.from_numpy(other.lengths.astype(np.int64))[:, None]).all()


def test_report(tmp_path, tokenizers):
    store = build_alignment(
        corpus_of(tmp_path, TEXTS), tokenizers[0], 64, tokenizers[1], 64, "offsets", tmp_path / "pairs"
    )
    report = store.report
    assert report["rows"] == len(TEXTS) and report["special_pairs"] == report["student_special"] == 2 * len(TEXTS)
    assert (
        report["student_tokens"] == store.student_lengths.sum()
        and report["teacher_tokens"] == store.teacher_lengths.sum()
    )
    assert report["pairs"] == store.counts.sum() == report["student_mapped"] + report["special_pairs"]
    assert report["teacher_rate"] == pytest.approx(100 * report["pairs"] / report["teacher_tokens"])
    assert 0 < report["student_rate_ordinary"] < report["student_rate"] < 100


def test_reopened_only_for_the_same_things(tmp_path, tokenizers, monkeypatch):
    corpus, told = corpus_of(tmp_path, TEXTS), []
    write = store._write

    def written(*args):
        told.append(args)
        return write(*args)

    monkeypatch.setattr(store, "_write", written)

    def build(length=16, kind="offsets", teacher=tokenizers[1]):
        return build_alignment(corpus, tokenizers[0], length, teacher, 32, kind, tmp_path / "pairs")

    first = build()
    built = len(told)
    assert build().counts.tolist() == first.counts.tolist() and len(told) == built
    for change in ({"length": 17}, {"kind": "mined"}, {"teacher": architectures.unigram()}):
        build(**change)
        built += 1
        assert len(told) == built
    build()
    file = tmp_path / "pairs" / "teacher.npy"
    file.write_bytes(file.read_bytes()[:-2])
    assert build().report == first.report and len(told) == built + 2
    assert AlignmentStore(tmp_path / "pairs").kind == "offsets"


def test_long_limits_take_wider_positions(tmp_path, tokenizers):
    corpus = corpus_of(tmp_path, ["a", "a " * 40_000])
    store = build_alignment(corpus, tokenizers[0], 1_000_000, tokenizers[1], 1_000_000, "offsets", tmp_path / "pairs")
    pairs = store.batch(np.array([1])).pairs
    assert pairs.max() > 40_000 and pairs.min() == 0


def test_a_slow_tokenizer_is_refused(tmp_path, tokenizers):
    class Slow:
        is_fast = False

    with refused("teacher.model"):
        build_alignment(corpus_of(tmp_path, TEXTS), tokenizers[0], 16, Slow(), 16, "offsets", tmp_path / "pairs")
    assert not (tmp_path / "pairs").exists()
