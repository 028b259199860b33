"""A cache of a real (tiny) teacher's tokens: filled once, killed and resumed, verified, and as good as the teacher
itself.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import architectures
import numpy as np
import pytest
import torch
from refusals import refused
from samples import make_texts
from transformers import AutoTokenizer

from distilvec.alignment.store import build_alignment
from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec, TokenOutputSpec
from distilvec.data.corpus import build_corpus
from distilvec.data.tokens import build_tokens
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.teachers.cache.fill import TokenSource, compute_tokens, fill_steps
from distilvec.teachers.cache.signals import token_settings
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher, LiveTeacher
from distilvec.teachers.open import load_teacher

TOKENS = TokenOutputSpec("offsets", hidden=(-1,), importance=True, gram_layers=(3, 4), divisor=2)
WANTS = OutputSpec(embedding=True, vector=True, tokens=TOKENS)
CPU = torch.device("cpu")


class Setting:
    """A corpus, a teacher with its tokens, and the pairs of its tokens with those of a student with another tokenizer."""  # noqa: E501

    def __init__(self, folder, tiny_model):
        texts = [*make_texts(90), "word " * 400, "ünïcode \u202e mix", "a"]
        (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
        section = CorpusSection(sources=[SourceSection(path=folder / "texts.txt")], validation_rows=8)
        self.corpus = build_corpus(section, {}, folder / "corpus")
        self.teacher = load_teacher(TeacherSection(model=str(tiny_model)), "cpu")
        self.tokens = build_tokens(self.corpus, self.teacher.model.tokenizer, 128, folder / "tokens")
        student = AutoTokenizer.from_pretrained(architectures.xlm_roberta(folder / "student"))
        self.alignment = build_alignment(
            self.corpus, student, 64, self.teacher.model.tokenizer, 128, "offsets", folder / "pairs"
        )
        settings = token_settings(TOKENS, "int8", 32, tokenizer_hash(student), 64)
        self.manifest = replace(self.teacher.manifest(), vector_width=32, tokens=settings)
        self.live = LiveTeacher(self.teacher, self.tokens, WANTS)

    def steps(self, cache, teacher=None):
        source = TokenSource(teacher or self.live, self.tokens.lengths, self.alignment, 512, CPU)
        return fill_steps(cache, self.corpus, partial(compute_tokens, cache.manifest, self.corpus, source))

    def fill(self, folder, teacher=None):
        cache = TeacherCache.create_or_open(folder, self.manifest, 20)
        list(self.steps(cache, teacher))
        return cache

    def batch(self, rows):
        numbers = torch.from_numpy(rows)
        return TextBatch(numbers, {}, torch.zeros_like(numbers), alignment=self.alignment.batch(rows))


@pytest.fixture(scope="module")
def setting(tmp_path_factory, tiny_model):
    return Setting(tmp_path_factory.mktemp("setting"), tiny_model)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "lock"}


def test_it_answers_as_the_live_teacher_does(setting, tmp_path):
    cache = TeacherCache.create_or_open(tmp_path / "cache", setting.manifest, 20)
    told = [(step.done, step.total, step.work) for step in setting.steps(cache)]
    assert told[0] == (0, 93, 0) and told[-1] == (93, 93, 93) and told == sorted(told)
    assert [shard.rows for shard in cache._shards] == [20, 20, 20, 20, 13]
    cached = CachedTeacher(cache, setting.corpus.keys, WANTS)
    for rows in (np.arange(93), np.array([92, 5, 90, 17]), np.array([3])):
        found, exact = cached.signals(setting.batch(rows)), setting.live.signals(setting.batch(rows))
        assert torch.equal(found.mask, exact.mask)
        states, back = exact.hidden_layers[-1], found.hidden_layers[-1]
        assert ((back - states).abs() <= states.abs().amax(-1, keepdim=True) / 254 + 1e-4)[exact.mask].all()
        torch.testing.assert_close(found.importance, exact.importance, atol=1e-6, rtol=5e-3)
        torch.testing.assert_close(found.embedding, exact.embedding, atol=1e-3, rtol=0)
        torch.testing.assert_close(found.vector, exact.vector, atol=2e-3, rtol=1e-3)
        width = found.selected.shape[1]
        same = (found.selected == exact.selected[:, :width]).flatten(1).all(1)
        assert same.float().mean() >= 0.95, "only ties of importance may be broken otherwise in another batch"
        for layer in TOKENS.gram_layers:
            torch.testing.assert_close(
                found.grams[layer][same], exact.grams[layer][same][:, :width, :width], atol=1e-3, rtol=0
            )


class Killed(Exception):
    pass


@pytest.mark.parametrize("batches", [1, 4, 9])
def test_killed_and_resumed_it_ends_with_the_same_bytes(setting, tmp_path, batches):
    setting.fill(tmp_path / "whole")
    calls = []

    class Dying:
        def signals(self, batch):
            calls.append(len(batch))
            if len(calls) > batches:
                raise Killed
            return setting.live.signals(batch)

    with pytest.raises(Killed):
        setting.fill(tmp_path / "killed", Dying())
    setting.fill(tmp_path / "killed")
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_damage_is_computed_again(setting, tmp_path):
    cache = setting.fill(tmp_path / "cache")
    before = content(cache.folder)
    path = cache.folder / "00001.hidden.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    path.write_bytes(path.read_bytes()[:-1])
    (problem,) = TeacherCache.verify_folder(cache.folder, repair=True)
    assert "00001.hidden.npy" in problem
    setting.fill(cache.folder)
    assert {name: value for name, value in content(cache.folder).items() if name.endswith(".npy")} == {
        name: value for name, value in before.items() if name.endswith(".npy")
    }
    assert TeacherCache.open(cache.folder).verify() == []


def test_a_text_with_broken_states_is_named(setting, tmp_path):
    class Broken:
        def signals(self, batch):
            found = setting.live.signals(batch)
            found.hidden_layers[-1][batch.rows == 25] = torch.nan
            return found

    with pytest.raises(DistilvecError, match=rf"hidden states hold NaN.*{setting.corpus.texts([25])[0][:20]}"):
        setting.fill(tmp_path / "cache", Broken())
    assert len(TeacherCache.open(tmp_path / "cache")) == 20


def test_another_student_is_refused(setting, tmp_path):
    cache = setting.fill(tmp_path / "cache")
    for name, value in (("student_tokenizer", "another"), ("student_max_length", 32)):
        tokens = replace(setting.manifest.tokens, **{name: value})
        with pytest.raises(DistilvecError, match=rf"tokens\.{name}: found"):
            TeacherCache.create_or_open(cache.folder, replace(setting.manifest, tokens=tokens))


def test_logits_are_the_heads_answer_to_the_cached_vectors(setting, tmp_path):
    cache, head = setting.fill(tmp_path / "cache"), torch.nn.Linear(32, 3)
    rows = np.array([4, 8])
    found = CachedTeacher(cache, setting.corpus.keys, OutputSpec(logits=True), head).signals(setting.batch(rows))
    exact = LiveTeacher(setting.teacher, setting.tokens, OutputSpec(logits=True), head).signals(setting.batch(rows))
    torch.testing.assert_close(found.logits, exact.logits, atol=5e-3, rtol=1e-2)
    assert not found.logits.requires_grad and found.embedding is None and not found.hidden_layers


@pytest.mark.parametrize(
    "required",
    [
        OutputSpec(attention_layers=(1,)),
        OutputSpec(hidden_layers=(-1,)),
        OutputSpec(projection_layers=(2,)),
        OutputSpec(pooled_layers=(1, -1)),
    ],
)
def test_what_no_cache_keeps_is_refused(setting, tmp_path, required):
    cache = TeacherCache.create_or_open(tmp_path / "cache", setting.manifest)
    with refused("teacher.live"):
        CachedTeacher(cache, setting.corpus.keys, required)
    plain = TeacherCache.create_or_open(tmp_path / "plain", setting.teacher.manifest())
    with refused("cache"):
        CachedTeacher(plain, setting.corpus.keys, OutputSpec(tokens=TOKENS))
