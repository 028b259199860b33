"""A live teacher's fields against a plain eager forward pass of transformers, text by text."""

import json
from dataclasses import replace

import architectures
import numpy as np
import pytest
import torch
from samples import make_texts
from transformers import AutoModel

from distilvec.config.schema import CorpusSection, TeacherSection
from distilvec.core.batch import Alignment, TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.core.task_head import TaskHead, TaskInfo
from distilvec.data.corpus import build_corpus
from distilvec.data.tokens import build_tokens
from distilvec.losses.emo import importance, select, selected_gram
from distilvec.students.encoder import Encoder
from distilvec.teachers.cached import LiveTeacher
from distilvec.teachers.open import load_teacher

NAMES = ["bert", "modernbert", "qwen3", "mistral"]
TOKENS = TokenOutputSpec(hidden=(-1,), importance=True, gram_layers=(1, 4), divisor=2)
WANTS = OutputSpec(
    embedding=True,
    pre_dense=True,
    pooled_layers=(2, -1),
    hidden_layers=(0, 3),
    attention_layers=(2,),
    projection_layers=(3,),
    logits=True,
    tokens=TOKENS,
)


@pytest.fixture(scope="module", params=NAMES)
def scene(request, tmp_path_factory):
    """A teacher, its corpus's tokens and a batch of all of it; the plain backbone and the vectors of `embed`."""
    place = tmp_path_factory.mktemp(request.param)
    backbone = getattr(architectures, request.param)(place / "backbone")
    folder = architectures.sentence_transformer(place / "model", backbone, "mean dense:24 normalize")
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*make_texts(4), "A"]))
    section = CorpusSection.model_validate({"sources": [{"path": place / "texts.jsonl"}], "validation_rows": 1})
    corpus = build_corpus(section, {}, place / "corpus")
    teacher = load_teacher(TeacherSection(model=str(folder), truncate_dim=16), "cpu")
    vectors = teacher.embed(corpus.prompted(range(len(corpus))))
    tokens = build_tokens(corpus, teacher.model.tokenizer, 128, place / "tokens")
    plain = AutoModel.from_pretrained(backbone, attn_implementation="eager").eval()
    return teacher, tokens, plain, vectors, batch_of(tokens)


def batch_of(tokens):
    """All rows, their own tokens aligned with themselves: every second token and the first."""
    pairs = torch.full((len(tokens), 8, 2), -1)
    for row, length in enumerate(tokens.lengths.tolist()):
        places = torch.arange(0, length, 2)[:8]
        pairs[row, : len(places)] = places[:, None].expand(-1, 2)
    rows = torch.arange(len(tokens))
    return TextBatch(rows, {"input_ids": rows[:, None]}, torch.zeros_like(rows), alignment=Alignment(pairs))


def head():
    torch.manual_seed(3)
    return TaskHead(32, TaskInfo("classification", 3))


def test_every_field_equals_a_plain_forward_pass_of_each_text(scene):
    teacher, tokens, plain, vectors, batch = scene
    own = head()
    found = LiveTeacher(teacher, tokens, WANTS, own).signals(batch)
    np.testing.assert_allclose(found.embedding, vectors, atol=3e-6)
    assert not found.embedding.requires_grad and found.embedding.shape[1] == 16
    for row, length in enumerate(tokens.lengths.tolist()):
        with torch.no_grad():
            output = plain(**tokens.batch(np.array([row])), output_hidden_states=True, output_attentions=True)
            hidden, maps = [state[0] for state in output.hidden_states], [each[0].mean(0) for each in output.attentions]
            logits = own.linear(hidden[-1].mean(0))
        assert (
            set(found.hidden_layers) == {0, 3, -1}
            and set(found.pooled_layers) == {2, -1}
            and set(found.attentions) == {2}
        )
        for layer, states in found.hidden_layers.items():
            close(states[row, :length], hidden[layer])
        for layer, pooled in found.pooled_layers.items():
            close(pooled[row], hidden[layer].mean(0))
        close(found.pre_dense[row], hidden[-1].mean(0))
        close(found.logits[row], logits)
        close(found.attentions[2][row, :length, :length], maps[1])
        assert found.mask[row].tolist() == [True] * length + [False] * (found.mask.shape[1] - length)
        everywhere = torch.ones(1, length, dtype=torch.bool)
        masses = importance(maps[-1][None], everywhere)
        close(found.importance[row, :length], masses[0])
        selected = select(batch.alignment.pairs[row : row + 1], masses, 2)
        assert torch.equal(found.selected[row], selected[0])
        for layer in (1, 4):
            close(found.grams[layer][row], selected_gram(maps[layer - 1][None], selected[..., 1])[0])
    assert all(
        values.dtype == torch.float32
        for values in (found.logits, found.importance, found.grams[1], found.projections[3].key)
    )
    assert found.projections[3].query.shape[:3] == (len(batch), 4, found.mask.shape[1])


def close(one, other):
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_longer_neighbours_change_nothing(scene):
    teacher, tokens, _, _, batch = scene
    live = LiveTeacher(teacher, tokens, WANTS, head())
    together = live.signals(batch)
    for row in range(len(batch)):
        one = replace(
            batch,
            rows=batch.rows[row : row + 1],
            sources=batch.sources[:1],
            alignment=Alignment(batch.alignment.pairs[row : row + 1]),
        )
        alone = live.signals(one)
        length = alone.mask.shape[1]
        close(alone.embedding[0], together.embedding[row])
        close(alone.logits[0], together.logits[row])
        close(alone.hidden_layers[-1][0], together.hidden_layers[-1][row, :length])
        close(alone.importance[0], together.importance[row, :length])
        assert not together.importance[row, length:].any()
        assert torch.equal(alone.selected[0], together.selected[row])
        close(alone.grams[4][0], together.grams[4][row])
        close(alone.attentions[2][0], together.attentions[2][row, :length, :length])
        close(alone.projections[3].query[0], together.projections[3].query[row, :, :length])


def test_only_what_is_wanted_and_the_teacher_stays_as_it_was(scene):
    teacher, tokens, _, vectors, batch = scene
    found = LiveTeacher(teacher, tokens, OutputSpec(embedding=True)).signals(replace(batch, alignment=None))
    assert found.logits is None and found.importance is None and found.selected is None
    assert not (found.hidden_layers or found.attentions or found.pooled_layers or found.grams or found.projections)
    logits = LiveTeacher(teacher, tokens, OutputSpec(logits=True), head()).signals(batch)
    assert logits.embedding is None and logits.pooled_layers == {} and logits.logits.shape == (len(batch), 3)
    some = LiveTeacher(teacher, tokens, OutputSpec(tokens=TokenOutputSpec(importance=True))).signals(
        replace(batch, alignment=None)
    )
    assert some.importance is not None and some.selected is None and not some.attentions
    assert not teacher.model.training
    texts = [teacher.model.tokenizer.decode(tokens.batch(np.array([0]))["input_ids"][0], skip_special_tokens=True)]
    assert teacher.embed(texts).shape == (1, 16)
    np.testing.assert_allclose(
        LiveTeacher(teacher, tokens, OutputSpec(embedding=True)).signals(batch).embedding, vectors, atol=3e-6
    )


def test_grams_without_an_alignment_are_refused(scene):
    teacher, tokens, _, _, batch = scene
    with pytest.raises(DistilvecError, match=r"^\[method.name\] Gram matrices"):
        LiveTeacher(teacher, tokens, OutputSpec(tokens=TOKENS)).signals(replace(batch, alignment=None))


def test_a_teacher_in_training_has_no_dropout_here_and_goes_on_training(scene):
    teacher, tokens, _, vectors, batch = scene
    live = LiveTeacher(teacher, tokens, OutputSpec(embedding=True))
    teacher.model.train()
    try:
        np.testing.assert_allclose(live.signals(batch).embedding, vectors, atol=3e-6)
        assert teacher.model.training
    finally:
        teacher.model.eval()


@pytest.mark.parametrize("scene", ["bert"], indirect=True)
def test_bf16_comes_out_as_float32_and_close(tmp_path, scene):
    _, tokens, _, _, batch = scene
    folder = architectures.sentence_transformer(
        tmp_path / "model", architectures.bert(tmp_path / "backbone", initializer_range=0.1)
    )
    signals = []
    for dtype in ("float32", "bfloat16"):
        teacher = load_teacher(TeacherSection.model_validate({"model": str(folder), "dtype": dtype}), "cpu")
        required = OutputSpec(embedding=True, attention_layers=(2,), projection_layers=(2,), tokens=TOKENS)
        signals.append(LiveTeacher(teacher, tokens, required).signals(batch))
    exact, found = signals
    for values in (
        found.embedding,
        found.hidden_layers[-1],
        found.attentions[2],
        found.projections[2].value,
        found.importance,
        found.grams[1],
    ):
        assert values.dtype == torch.float32 and torch.isfinite(values).all()
    assert (exact.embedding * found.embedding).sum(1).min() > 0.995
    torch.testing.assert_close(exact.importance, found.importance, atol=2e-2, rtol=0)


def test_texts_of_pairs_keep_their_token_types(tmp_path):
    """The teacher's tokens go to the model as the store gives them, token types included."""
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.bert(tmp_path / "backbone"))
    teacher = load_teacher(TeacherSection(model=str(folder)), "cpu")
    ids = torch.tensor([[2, 10, 11, 3, 12, 3]])

    class Store:
        def batch(self, rows):
            return {"input_ids": ids, "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1]])}

    batch = TextBatch(torch.zeros(1, dtype=torch.long), {"input_ids": ids}, torch.zeros(1, dtype=torch.long))
    found = LiveTeacher(teacher, Store(), OutputSpec(embedding=True)).signals(batch)
    plain = Encoder(teacher.model)(replace(batch, tokens=Store().batch(None)), OutputSpec(embedding=True))
    torch.testing.assert_close(found.embedding, plain.embedding)
    assert not torch.allclose(
        found.embedding, Encoder(teacher.model)(batch, OutputSpec(embedding=True)).embedding, atol=1e-3
    )


@pytest.mark.parametrize("paired", [False, True])
def test_ira_reads_no_special_token(tmp_path, tiny_model, paired):
    """[CLS] and [SEP], the one between the texts of a pair too, are not selected; an unknown word is."""
    teacher = load_teacher(TeacherSection(model=str(tiny_model)), "cpu")
    tokenizer, texts = teacher.model.tokenizer, make_texts(4)
    features = tokenizer(texts, texts[::-1] if paired else None, padding=True, return_tensors="pt")
    ids = features["input_ids"]
    ids[0, 2] = tokenizer.unk_token_id

    class Rows:
        def batch(self, rows):
            return {name: features[name][rows] for name in ("input_ids", "attention_mask")}

    real = features["attention_mask"].bool()
    positions = torch.arange(ids.shape[1]).expand_as(ids).where(real, -1)
    rows = torch.arange(4)
    batch = TextBatch(rows, {}, rows, alignment=Alignment(positions[..., None].expand(-1, -1, 2)))
    required = OutputSpec(tokens=TokenOutputSpec("offsets", gram_layers=(1,), divisor=1, special_tokens=False))
    found = LiveTeacher(teacher, Rows(), required).signals(batch).selected
    special = torch.isin(ids, torch.tensor([tokenizer.cls_token_id, tokenizer.sep_token_id])) & real
    for row in range(4):
        chosen = [pair[1] for pair in found[row].tolist() if pair[0] >= 0]
        assert sorted(chosen) == [n for n in positions[row].tolist() if n >= 0 and not special[row, n]]
    kept = LiveTeacher(teacher, Rows(), replace(required, tokens=replace(required.tokens, special_tokens=True)))
    assert ((kept.signals(batch).selected[..., 0] >= 0).sum(1) == real.sum(1)).all()
