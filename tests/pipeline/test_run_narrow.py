"""Runs whose student has narrower feed-forward layers: the start, training, resume, and the plan."""

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
from distilvec.students.build import build_student
from distilvec.verbs.plan.plan import make_plan

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def recipe(tiny_recipe, no_pages):
    return lambda **changes: tiny_recipe(**{"student__intermediate_size": 16, **changes})


def test_it_trains_and_loads_anywhere(recipe, tmp_path):
    run(recipe(train__epochs=1), tmp_path / "run")
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    assert student[0].auto_model.config.intermediate_size == 16


def test_the_start_is_fitted_to_texts_of_the_corpus(recipe, tmp_path):
    job = resolve(recipe(), tmp_path / "run")
    first, again = (untrained_student(job).state_dict() for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    blind = build_student(job.recipe.student, job.teacher.info, job.recipe.train.seed).state_dict()
    assert any(not np.array_equal(first[name], blind[name]) for name in first)


def test_resume_ends_with_the_same_weights(recipe, tmp_path, monkeypatch):
    chosen = recipe(train__max_steps=4, train__checkpoint_steps=2)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(resolve(chosen, whole))
    interrupt(resolve(chosen, halves), 3, monkeypatch, execute=train)
    train(resolve(chosen, halves))
    one, other = (load_file(RunFolder(folder).last / "model.safetensors") for folder in (whole, halves))
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_plan_names_the_neurons(recipe, tmp_path):
    lines = dict(line for line in make_plan(resolve(recipe(), tmp_path / "run")).lines if line[0] == "student")
    assert lines["student"].endswith("M parameters: 16 neurons a layer")


def test_layers_are_chosen_with_all_their_neurons(recipe, tmp_path):
    result = run(recipe(student__layers={"count": 1, "choose": "best"}, train__max_steps=1), tmp_path / "run")
    config = SentenceTransformer(str(result.folder / "student"), device="cpu")[0].auto_model.config
    assert (config.num_hidden_layers, config.intermediate_size) == (1, 16)
