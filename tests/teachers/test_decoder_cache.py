"""Decoders as teachers through the token cache: padded on the left, pooled by the last token, with and without their
causal mask.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import architectures
import numpy as np
import pytest
import torch
from jobs import train
from samples import make_texts
from transformers import AutoTokenizer

from distilvec.alignment.store import build_alignment
from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.data.corpus import build_corpus
from distilvec.data.tokens import build_tokens
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.pipeline.resolve import resolve
from distilvec.teachers.cache.fill import TokenSource, compute_tokens, fill_steps
from distilvec.teachers.cache.signals import token_settings
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher, LiveTeacher
from distilvec.teachers.open import load_teacher
from distilvec.train.metrics import read_metrics

TOKENS = TokenOutputSpec("offsets", hidden=(-1, -2), importance=True, gram_layers=(4,), divisor=2)
WANTS = OutputSpec(embedding=True, vector=True, tokens=TOKENS)
CASES = [("qwen3", "own", "lasttoken"), ("qwen3", "bidirectional", "lasttoken"), ("mistral", "bidirectional", "mean")]
CASES += [("mistral", "own", "lasttoken"), ("mistral", "bidirectional", "lasttoken")]


def decoder(folder, name, attention, pooling):
    """The recipe's section for a tiny decoder with a normalised vector, whose tokenizer pads on the left."""
    backbone = getattr(architectures, name)(folder / name)
    tokenizer = AutoTokenizer.from_pretrained(backbone, padding_side="left")
    tokenizer.save_pretrained(backbone)
    return {"model": str(backbone), "pooling": pooling, "normalize": True, "attention": attention, "max_length": 64}


@pytest.mark.parametrize(("name", "attention", "pooling"), CASES)
def test_the_cache_answers_as_the_live_model_does(tmp_path, name, attention, pooling):
    texts = [*make_texts(20), "word " * 90, "a"]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    corpus = build_corpus(
        CorpusSection(sources=[SourceSection(path=tmp_path / "texts.txt")], validation_rows=1),
        {},
        tmp_path / "corpus",
    )
    teacher = load_teacher(TeacherSection.model_validate(decoder(tmp_path, name, attention, pooling)), "cpu")
    tokenizer = teacher.model.tokenizer
    assert tokenizer.padding_side == "left"
    tokens = build_tokens(corpus, tokenizer, 64, tmp_path / "tokens", side=tokenizer.truncation_side)
    student = AutoTokenizer.from_pretrained(architectures.xlm_roberta(tmp_path / "student"))
    alignment = build_alignment(corpus, student, 64, tokenizer, 64, "offsets", tmp_path / "pairs")
    manifest = teacher.manifest("float32")
    manifest = replace(
        manifest, vector_width=32, tokens=token_settings(TOKENS, "float16", 32, tokenizer_hash(student), 64)
    )
    live = LiveTeacher(teacher, tokens, WANTS)
    cache = TeacherCache.create_or_open(tmp_path / "cache", manifest, 8)
    source = TokenSource(live, tokens.lengths, alignment, 256, torch.device("cpu"))
    list(fill_steps(cache, corpus, partial(compute_tokens, cache.manifest, corpus, source)))
    cached = CachedTeacher(cache, corpus.keys, WANTS)

    def batch(rows):
        numbers = torch.from_numpy(rows)
        return TextBatch(numbers, {}, torch.zeros_like(numbers), alignment=alignment.batch(rows))

    rows = np.random.default_rng(0).permutation(len(corpus))
    found, exact = cached.signals(batch(rows)), live.signals(batch(rows))
    assert torch.equal(found.mask, exact.mask) and found.mask[:, 0].all(), (
        "tokens begin at position 0 on whatever side the model pads"
    )
    for layer in TOKENS.hidden:
        torch.testing.assert_close(
            found.hidden_layers[layer], exact.hidden_layers[layer] * found.mask[..., None], atol=5e-3, rtol=2e-3
        )
    torch.testing.assert_close(found.importance, exact.importance, atol=1e-5, rtol=5e-3)
    torch.testing.assert_close(found.embedding, exact.embedding, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.vector, exact.vector, atol=1e-4, rtol=1e-4)
    same = (found.selected == exact.selected[:, : found.selected.shape[1]]).flatten(1).all(1)
    assert same.float().mean() >= 0.9
    torch.testing.assert_close(found.grams[4][same], exact.grams[4][same], atol=2e-3, rtol=0)
    np.testing.assert_allclose(
        found.embedding.numpy(), teacher.embed(corpus.texts(rows)), atol=1e-5
    )  # padded on the left
    for row in (0, 5):  # a text alone, without any padding
        ids = torch.tensor([tokenizer(corpus.texts(rows[[row]])[0], truncation=True, max_length=64)["input_ids"]])
        with torch.no_grad():
            alone = teacher.model[0].auto_model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        torch.testing.assert_close(found.hidden_layers[-1][row, : ids.shape[1]], alone, atol=5e-3, rtol=2e-3)


@pytest.mark.parametrize(("name", "attention", "pooling"), [CASES[0], CASES[4]])
def test_a_run_trains_from_it_as_from_the_live_model(tiny_recipe, tmp_path, name, attention, pooling):
    backbone = architectures.xlm_roberta(tmp_path / "student", num_hidden_layers=2)
    config = json.loads((backbone / "config.json").read_text())
    kept = (
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    student = {"config": {key: config[key] for key in kept}, "tokenizer": str(backbone)}
    changes = {"method__name": "emo", "student": student, "train__logging_steps": 1, "train__max_steps": 5}
    losses = []
    for live in (False, True):
        teacher = {**decoder(tmp_path, name, attention, pooling), "live": live}
        job = resolve(
            tiny_recipe(teacher=teacher, **changes),
            tmp_path / f"run-{live}",
        )
        train(job)
        losses.append([line["train/loss"] for line in read_metrics(job.files.metrics) if "train/loss" in line])
        assert job.teacher.live is live
    assert len(losses[0]) == 5 and np.isfinite(losses).all()
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)
