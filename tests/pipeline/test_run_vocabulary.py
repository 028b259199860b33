"""Runs whose student has a vocabulary of its own: from texts to tokenizer, table, cache and training in one recipe."""

from __future__ import annotations

import json
import shutil

import architectures
import numpy as np
import pytest
from interrupted import interrupt
from refusals import refused
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.train.metrics import read_metrics


@pytest.fixture
def recipe(tiny_recipe, monkeypatch):
    monkeypatch.setattr(
        "distilvec.report.write.draw_report", lambda folder, found: None
    )  # pages have tests of their own
    return lambda **changes: tiny_recipe(**{"student": {"model": "teacher", "vocabulary": {}}, **changes})


def test_trimmed_to_the_corpus_the_untrained_student_is_the_teacher(recipe, tmp_path):
    job = resolve(recipe(student__model="teacher", student__vocabulary={}), tmp_path / "run")
    student, teacher = untrained_student(job), SentenceTransformer(str(job.teacher.info.model), device="cpu")
    assert len(student.tokenizer) < len(teacher.tokenizer)
    texts = job.corpus.texts(job.corpus.train_rows[:40])
    np.testing.assert_allclose(student.encode(texts), teacher.encode(texts), atol=1e-6)
    assert (
        untrained_student(resolve(job.recipe, tmp_path / "again")).tokenizer.get_vocab()
        == student.tokenizer.get_vocab()
    )
    assert len(list((job.store.root / "vocabularies").glob("[!.]*"))) == 1, "made once"


def test_a_trimmed_tokenizer_reads_texts_behind_a_prompt_as_before(recipe, tmp_path):
    """Byte-level tokenizers write a first word and one after a space differently: "What" and "ĠWhat"."""
    folder = architectures.sentence_transformer(tmp_path / "teacher", architectures.roberta(tmp_path / "backbone"))
    words = tmp_path / "words.txt"
    words.write_text("\n".join(sorted(set(" ".join(architectures.TEXTS).split()))), encoding="utf-8")
    changes = {"teacher__prompts": {"document": "text: "}, "corpus__validation_rows": 10}
    chosen = recipe(teacher__model=str(folder), corpus__sources=[{"path": str(words)}], **changes)
    job = resolve(chosen, tmp_path / "run")
    before = SentenceTransformer(str(folder), device="cpu").tokenizer
    after = untrained_student(job).tokenizer
    assert len(after) < len(before)
    for text in job.corpus.prompted(job.corpus.train_rows):
        assert text.startswith("text: ")
        assert after.tokenize(text) == before.tokenize(text)


@pytest.mark.parametrize("kind", ["trim", "bpe"])
def test_a_stored_vocabulary_takes_no_length_from_another_model(recipe, tiny_model, tmp_path, kind):
    """The files are those of a model with the same tokens that reads fewer of a text."""
    short = tmp_path / "short"
    model = SentenceTransformer(str(tiny_model), device="cpu")
    model.max_seq_length = 16
    model.save_pretrained(str(short), create_model_card=False)
    vocabulary = {"kind": kind, "size": 300 if kind == "bpe" else None}
    lengths = {}
    for name in (str(short), str(tiny_model)):
        job = resolve(recipe(student={"model": name, "vocabulary": vocabulary}), tmp_path / f"run{len(lengths)}")
        lengths[name] = (job.student_length, untrained_student(job).max_seq_length)
    assert list(lengths.values()) == [(16, 16), (128, 128)]
    assert len(list((job.store.root / "vocabularies").glob("[!.]*"))) == 1, "made once"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_new_tokenizer_is_trained_put_in_and_distilled(recipe, tmp_path, kind, shared_cache):
    chosen = recipe(student__vocabulary={"kind": kind, "size": 340}, method={"name": "offline_cosine"}, train__epochs=2)
    run(chosen, tmp_path / "run")
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    assert len(student.tokenizer) == student[0].auto_model.get_input_embeddings().num_embeddings == 340
    losses = [line["train/loss"] for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/loss" in line]
    assert losses[-1] < losses[0]
    assert json.loads((tmp_path / "run" / "student" / "distillation.json").read_text())["name"] == chosen.name


def test_another_vocabulary_is_another_training(recipe, tmp_path, shared_cache):
    run(recipe(train__max_steps=1), tmp_path / "run")
    with pytest.raises(DistilvecError, match=r"student\.vocabulary"):
        run(recipe(student__vocabulary={"kind": "bpe", "size": 350}, train__max_steps=1), tmp_path / "run")


def test_a_tokenizer_counts_by_what_is_in_it(recipe, tmp_path, shared_cache):
    """A file under the same name with other tokens is another vocabulary; without the student's roles it is refused."""
    path = tmp_path / "tokenizer.json"
    sizes = []
    for special in (["<s>", "</s>", "<unk>"], ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]):
        tokenizer = architectures.metaspace("$A", special[:3])
        tokenizer.add_special_tokens({"additional_special_tokens": special[3:]})
        tokenizer.backend_tokenizer.save(str(path))
        student = untrained_student(
            resolve(recipe(student__vocabulary={"tokenizer": str(path)}), tmp_path / f"run{len(sizes)}")
        )
        assert (student.tokenizer.cls_token, student.tokenizer.sep_token, student.tokenizer.pad_token) == (
            "<s>",
            "</s>",
            "<pad>",
        )
        sizes.append(student[0].auto_model.get_input_embeddings().num_embeddings)
    assert sizes[1] == sizes[0] + 1, "<pad> is there, and <mask> new"
    architectures.metaspace("$A", ["</s>", "<unk>"]).backend_tokenizer.save(str(path))
    with refused("student.vocabulary.tokenizer", "[CLS]"):
        untrained_student(resolve(recipe(student__vocabulary={"tokenizer": str(path)}), tmp_path / "none"))


def test_a_fresh_backbone_gets_a_vocabulary_of_its_own(recipe, tiny_model, tmp_path, shared_cache):
    config = {
        "model_type": "bert",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    student = {"config": config, "tokenizer": str(tiny_model), "vocabulary": {"kind": "bpe", "size": 290}}
    made = untrained_student(resolve(recipe(student=student), tmp_path / "run"))
    embeddings = made[0].auto_model.get_input_embeddings().weight
    assert len(made.tokenizer) == len(embeddings) == 290
    assert embeddings.std().item() == pytest.approx(0.02, rel=0.1)  # drawn, not composed of other rows


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_a_run_goes_on_with_an_empty_cache(recipe, tmp_path, monkeypatch, kind):
    """As on another machine."""
    chosen = recipe(student__vocabulary={"kind": kind, "size": 300}, train__epochs=2)
    job = resolve(chosen, tmp_path / "run")
    interrupt(job, 3, monkeypatch)
    begun = (RunFolder(tmp_path / "run").vocabulary / "tokenizer.json").read_bytes()
    shutil.rmtree(job.store.root)
    run(chosen, tmp_path / "run")
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu").tokenizer
    assert student.get_vocab() == job.vocabulary.tokenizer.get_vocab()
    assert (RunFolder(tmp_path / "run").vocabulary / "tokenizer.json").read_bytes() == begun
