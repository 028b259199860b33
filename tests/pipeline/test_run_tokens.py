"""Runs whose method learns from the teacher's tokens: from the compressed cache, or with the teacher in every step."""

from __future__ import annotations

import json

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interrupted import interrupt
from jobs import answering, filled, train
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.model_name import ModelName
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.models.load import load_tokenizer
from distilvec.pipeline.caches import bytes_of_a_text, open_cache
from distilvec.pipeline.overview import overview
from distilvec.pipeline.prepare import align_tokens, prepare_data, tokenize_for
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import student_tokenizer, untrained_student
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher, LiveTeacher, NoTeacher
from distilvec.train.metrics import read_metrics
from distilvec.verbs.plan.plan import make_plan

KEPT = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


@pytest.fixture
def emo(tiny_recipe, tmp_path):
    """A recipe with another tokenizer on the student's side; call it with dotted changes."""
    backbone = architectures.xlm_roberta(tmp_path / "student", num_hidden_layers=2)
    config = json.loads((backbone / "config.json").read_text())
    student = {"config": {key: config[key] for key in KEPT}, "tokenizer": str(backbone), "max_length": 64}

    def make(**changes):
        return tiny_recipe(
            method__name="emo", student=student, evaluation__columns=["student"], train__logging_steps=1, **changes
        )

    return make


def losses(folder):
    return [line["train/loss"] for line in read_metrics(RunFolder(folder).metrics) if "train/loss" in line]


def weights(folder):
    return (folder / "student" / "model.safetensors").read_bytes()


def test_simcse_in_the_role_of_the_task_trains_and_resumes(emo, tmp_path, monkeypatch):
    options = {"simcse": True, "distillation_weight": 0.25}
    changes = {"method__options": options, "train__epochs": 3, "train__checkpoint_steps": 3, "train__max_steps": 8}
    interrupt(resolve(emo(**changes), tmp_path / "stopped"), 5, monkeypatch)
    run(resolve(emo(**changes), tmp_path / "stopped").recipe, tmp_path / "stopped")
    run(resolve(emo(**changes), tmp_path / "whole").recipe, tmp_path / "whole")
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    lines = [line for line in read_metrics(RunFolder(tmp_path / "whole").metrics) if "train/loss" in line]
    simcse = [line["train/loss_simcse"] for line in lines]
    assert len(simcse) == 8 and np.isfinite(simcse).all() and min(simcse) > 0
    for line in lines:
        parts = (line[f"train/loss_{name}"] for name in ("ira", "otis"))
        assert line["train/loss"] == pytest.approx(0.75 * line["train/loss_simcse"] + 0.25 * sum(parts), abs=1e-5)


def test_it_trains_from_the_cache_resumes_and_leaves_a_plain_student(emo, tmp_path, monkeypatch):
    recipe = emo(train__checkpoint_steps=3, train__max_steps=8)
    job = resolve(recipe, tmp_path / "run")
    run(job.recipe, job.folder)
    assert np.isfinite(losses(tmp_path / "run")).all()
    cache = TeacherCache.open(open_cache(job, job.teacher).folder)
    assert list(cache.signals) == ["embedding", "hidden", "importance", "selected", "grams"] and cache.verify() == []
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Normalize"][: len(student)]
    assert student.encode(["a text"]).shape == (1, 32)

    def look(loop):
        assert isinstance(loop.data.teacher, CachedTeacher)

    second = resolve(recipe, tmp_path / "again")
    interrupt(second, 7, monkeypatch, look, train)
    assert train(second).state.finished
    assert weights(tmp_path / "again") == weights(tmp_path / "run")


def test_a_live_teacher_gives_the_same_training(emo, tmp_path, capsys, shared_cache):
    train(resolve(emo(train__max_steps=5), tmp_path / "cached"))
    live = resolve(emo(train__max_steps=5, teacher__live=True), tmp_path / "live")
    train(live)
    assert live.teacher.live and "runs in every step (teacher.live is set)" in "".join(capsys.readouterr())
    np.testing.assert_allclose(losses(tmp_path / "live"), losses(tmp_path / "cached"), rtol=1e-2)
    with pytest.raises(DistilvecError, match=r"\[teacher.live\].*nothing to cache"):
        filled(live.recipe, live.folder)


def test_an_objective_is_told_of_both_sides(emo, tiny_recipe, tmp_path, shared_cache):
    info = []
    for recipe in (emo(), tiny_recipe()):
        info.append(resolve(recipe, tmp_path / "run").context)
    for found, layers, same in zip(info, (2, 2), (False, True), strict=True):
        assert (found.student.hidden_size, found.student.layers, found.student.heads) == (32, layers, 4)
        assert (found.teacher.hidden_size, found.teacher.layers, found.teacher.heads) == (32, 4, 4)
        assert found.same_tokenizer is same and found.student.special_tokens == found.teacher.special_tokens == (1, 1)


METHOD = """
import torch
from distilvec.core.outputs import OutputSpec
from distilvec.core.objective import Objective


class Odd(Objective):
    default_weights = {{"x": 1.0}}
    teacher_outputs = {required}

    def forward(self, batch, student, teacher):
        {check}
        return {{"x": student.embedding.sum(-1)}}
"""


def odd(tmp_path, required, check="pass"):
    path = tmp_path / "odd.py"
    path.write_text(METHOD.format(required=required, check=check))
    return str(path)


def test_what_no_cache_keeps_makes_the_teacher_live(tiny_recipe, tmp_path, capsys, shared_cache):
    method = odd(tmp_path, "OutputSpec(attention_layers=(2,))", "assert teacher.attentions[2].shape[0] == len(batch)")
    job = resolve(tiny_recipe(method__name=method, train__max_steps=2), tmp_path / "run")
    train(job)
    assert "the method requires attention maps, which no cache stores" in "".join(capsys.readouterr())
    assert isinstance(answering(job), LiveTeacher)


def test_what_a_head_reads_is_cached(tiny_recipe, tmp_path):
    method = odd(tmp_path, "OutputSpec(vector=True)", "assert teacher.vector.shape == (len(batch), 32)")
    job = resolve(tiny_recipe(method__name=method, train__max_steps=2), tmp_path / "run")
    train(job)
    assert list(open_cache(job, job.teacher).signals) == ["embedding", "vector"] and not job.teacher.live


def test_nothing_wanted_is_nothing_cached(tiny_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.pipeline.resolve.required_outputs", lambda objective, examples: OutputSpec())
    job = resolve(tiny_recipe(method__name=odd(tmp_path, "OutputSpec()")), tmp_path / "run")
    data = prepare_data(job, untrained_student(job)).training_data(OutputSpec())
    assert isinstance(data.teacher, NoTeacher)
    assert (
        not (job.store.root / "teachers").exists() and data.teacher.signals(data.batch(np.array([1]))).embedding is None
    )


def test_a_table_of_vectors_has_no_tokens(emo, tmp_path, shared_cache):
    recipe = emo()
    texts = make_texts(200)
    vectors = np.random.default_rng(0).normal(size=(200, 32)).astype(np.float32)
    pq.write_table(pa.table({"text": texts, "teacher_embedding_final": list(vectors)}), tmp_path / "vectors.parquet")
    tree = recipe.model_dump(mode="json")
    tree["teacher"] = {"vectors": str(tmp_path / "vectors.parquet")}
    tree["method"] = {"name": odd(tmp_path, "OutputSpec(attention_layers=(1,))")}
    with refused("teacher.vectors", "teacher.model"):
        train(resolve(recipes.validate(tree), tmp_path / "run"))


def test_a_cache_for_another_student_is_refused(emo, tmp_path, shared_cache):
    filled(emo(cache__path=str(tmp_path / "tokens")), tmp_path / "run")
    with refused("cache.path", "tokens.student_max_length"):
        filled(emo(cache__path=str(tmp_path / "tokens"), student__max_length=32), tmp_path / "run")
    with refused("cache.path", "tokens.hidden"):
        filled(emo(cache__path=str(tmp_path / "tokens"), cache__hidden="float16"), tmp_path / "run")


def test_a_trimmed_student_keeps_the_tokens_of_every_prompt(tiny_recipe, tmp_path):
    """Also of that for queries, where all texts are documents."""
    prompts = {"query": "find xylophone: ", "document": "read: "}
    vocabulary = {"kind": "trim", "letters": "seen"}
    recipe = tiny_recipe(teacher__prompts=prompts, student={"model": "teacher", "vocabulary": vocabulary})
    job = resolve(recipe, tmp_path / "run")
    before = load_tokenizer(ModelName(str(recipe.teacher.model)))
    assert len(job.vocabulary.tokenizer) < len(before)
    for prompt in prompts.values():
        assert job.vocabulary.tokenizer.tokenize(prompt) == before.tokenize(prompt)


def test_plan_tells_the_size_of_the_tokens(emo, tmp_path):
    job = resolve(emo(), tmp_path / "run")
    rows = dict(make_plan(job).lines)
    assert rows["teacher vectors to compute"].startswith("200 of 200")
    told = float(rows["disk for them"].split()[0])
    cache = filled(emo(), tmp_path / "run")
    assert told == pytest.approx(cache.inspect()["bytes"] / 1e6, rel=0.2)


def test_the_bytes_of_a_text_are_those_of_the_cache(emo, tmp_path, shared_cache):
    job = resolve(emo(), tmp_path / "run")
    with job.teacher.load("cpu") as model:
        lengths = np.asarray(tokenize_for(job, job.teacher, model).lengths, dtype=np.int64)
        pairs = np.asarray(align_tokens(job, student_tokenizer(job), model).counts, dtype=np.int64)
    stored = filled(emo(), tmp_path / "run").inspect()["bytes"]
    # The rest are headers of files
    assert len(lengths) * bytes_of_a_text(job.teacher, lengths, pairs) == pytest.approx(stored, rel=0.02)


def test_the_first_screen_tells_the_size_of_the_tokens(emo, tmp_path, shared_cache):
    """It is estimated from characters: the texts are not tokenized yet."""
    job = resolve(emo(), tmp_path / "run")
    about, megabytes = dict(overview(job))["disk"].split()[:2]
    stored = filled(emo(), tmp_path / "run").inspect()["bytes"] / 1e6
    assert about == "about" and stored / 2 < float(megabytes) < 2 * stored


def test_the_method_chooses_the_number_format_of_states_unless_the_recipe_does(
    emo, tiny_recipe, tmp_path, shared_cache
):
    def stored(recipe, number):
        return resolve(recipe, tmp_path / str(number)).teacher.manifest.tokens.hidden

    moe = {"method__name": "distillmoe", "method__options": {"layers": 1}}
    student = {"model": "teacher", "experts": {"count": 3, "width": 8}}
    assert stored(tiny_recipe(student=student, **moe), 0) == "float16"
    assert stored(tiny_recipe(student=student, cache__hidden="int8", **moe), 1) == "int8"
    assert stored(emo(), 2) == "int8" and stored(emo(cache__hidden="float16"), 3) == "float16"
