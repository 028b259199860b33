"""Runs whose student has a factorized token table: plan, training, resume, and the folder that is saved."""

from __future__ import annotations

import numpy as np
import pytest
from interrupted import interrupt
from jobs import train
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.train.metrics import read_metrics
from distilvec.verbs.plan.plan import make_plan

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def recipe(tiny_recipe, no_pages):
    table = {"student__embedding": {"rank": 8}, "student__vocabulary": {}}
    return lambda **changes: tiny_recipe(**{**table, **changes})


def saved(folder):
    return SentenceTransformer(str(folder / "student"), device="cpu")


def test_rank_and_trimmed_tokens_train_and_load_anywhere(recipe, tmp_path):
    run(recipe(train__epochs=2), tmp_path / "run")
    student = saved(tmp_path / "run")
    config = student[0].auto_model.config
    assert (config.model_type, config.embedding_size, config.vocab_size) == ("electra", 8, len(student.tokenizer))
    losses = [line["train/loss"] for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/loss" in line]
    assert losses[-1] < losses[0]


def test_the_start_is_fitted_to_texts_of_the_corpus(recipe, tmp_path):
    job = resolve(recipe(), tmp_path / "run")
    first, again = (untrained_student(job).state_dict() for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert job.student.layers == 2 and job.student.hidden_size == 32


def test_resume_ends_with_the_same_weights(recipe, tmp_path, monkeypatch):
    chosen = recipe(train__max_steps=6, train__checkpoint_steps=2)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(resolve(chosen, whole))
    interrupt(resolve(chosen, halves), 5, monkeypatch, execute=train)
    train(resolve(chosen, halves))
    one, other = (load_file(RunFolder(folder).last / "model.safetensors") for folder in (whole, halves))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_plan_names_parameters_rank_and_tokens(recipe, tmp_path):
    job = resolve(recipe(), tmp_path / "run")
    count = sum(weight.numel() for weight in untrained_student(job).parameters())
    lines = dict(line for line in make_plan(job).lines if line[0] == "student")
    assert lines["student"] == f"{count / 1e6:.1f} M parameters: rank 8 with {len(job.vocabulary.tokenizer)} tokens"


def test_an_expanded_student_is_saved_as_bert(recipe, tmp_path, capfd):
    run(recipe(student__embedding={"rank": 8, "expand": True}, train__max_steps=2), tmp_path / "run")
    config = saved(tmp_path / "run")[0].auto_model.config
    assert config.model_type == "bert" and config.hidden_size == 32
    assert "the full table's vectors differ from the factorized table's by 0." in "".join(capfd.readouterr())
