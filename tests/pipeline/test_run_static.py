"""Whole runs of static students: `student.layers: 0`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import Command
from interrupted import interrupt
from refusals import refused
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run

TEXTS = ["river stone bridge", "a letter from the captain of the island", "music"]


@pytest.fixture
def recipe(tiny_recipe, shared_cache):
    return tiny_recipe(student__layers=0, student__embedding={"rank": 16}, train__epochs=4, train__learning_rate=3e-4)


def test_a_whole_run_leaves_a_folder_that_loads_without_distilvec(recipe, tmp_path, no_pages):
    parts = ["agreement", "compression", "margin", "projections", "tokens", "vocabulary", "texts", "speed"]
    recipe = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"parts": parts})})
    result = run(recipe, tmp_path / "run")
    distance = result.validation
    assert distance["distance"] < distance["untrained_distance"]

    folder = tmp_path / "run" / "student"
    record = json.loads((folder / "distillation.json").read_text())["student"]
    assert (record["layers"], record["hidden_width"], record["width"]) == (0, 16, 32)
    command = Command(tmp_path / "modules", json.dumps(TEXTS), folder, module="without_distilvec", folder=tmp_path)
    out, problems = command.communicate()
    assert command.returncode == 0, problems
    loaded = json.loads(out.strip().splitlines()[-1])
    assert loaded["refused"] == ""
    assert [kind.rpartition(".")[2] for kind in loaded["kinds"]] == ["StaticEmbedding", "Dense", "Normalize"]

    student = SentenceTransformer(str(folder), device="cpu")
    table = student[0].embedding.weight.detach().numpy()
    linear = student[1].linear.weight.detach().numpy()
    for text, vector in zip(TEXTS, loaded["vectors"], strict=True):
        ids = student.tokenizer.encode(text, add_special_tokens=False).ids
        expected = linear @ table[ids].mean(0)
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-6)


def test_resume_ends_with_the_same_weights(recipe, tmp_path, monkeypatch, no_pages):
    run(recipe, tmp_path / "whole")
    interrupt(resolve(recipe, tmp_path / "stopped"), 15, monkeypatch)
    run(recipe, tmp_path / "stopped")
    for name in ("model.safetensors", "1_Dense/model.safetensors"):
        whole = load_file(tmp_path / "whole" / "last" / name)
        stopped = load_file(tmp_path / "stopped" / "last" / name)
        assert whole.keys() == stopped.keys()
        assert all((whole[key] == stopped[key]).all() for key in whole)


def test_a_trimmed_vocabulary_has_fewer_rows(tiny_recipe, tmp_path, shared_cache):
    recipe = tiny_recipe(student__layers=0, student__vocabulary={"kind": "trim", "letters": "seen"})
    job = resolve(recipe, tmp_path / "run")
    whole = resolve(tiny_recipe(student__layers=0), tmp_path / "whole")
    assert job.student.layers == 0
    assert job.student.hidden_size == whole.student.hidden_size == 32  # no wider than the teacher's vectors
    assert job.student.tokenizer != whole.student.tokenizer


@pytest.mark.parametrize("method", ["tinybert", "minilm", "talas", "simcse", "distillmoe", "emo"])
def test_methods_that_read_layers_are_refused(tiny_recipe, tmp_path, method, shared_cache):
    weights = {"moe": 0, "diversity": 0} if method == "distillmoe" else {}  # it has no experts either
    recipe = tiny_recipe(student__layers=0, method={"name": method, "weights": weights})
    with refused("student.layers", "static"):
        resolve(recipe, tmp_path / "run")
