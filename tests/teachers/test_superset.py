"""Caches that hold more signals than a recipe wants answer for it: no text is embedded twice."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import architectures
import numpy as np
import pytest
import torch
from jobs import answering, filled, opened
from refusals import refused
from samples import make_texts

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.pipeline.caches import find_cache, open_cache
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.manifest import read_manifest
from distilvec.teachers.cache.store import MANIFEST, TeacherCache
from distilvec.teachers.model_embedder import ModelEmbedder

FINAL, PRE_DENSE = {"name": "offline_cosine"}, {"name": "offline_cosine", "options": {"target": "pre_dense"}}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A teacher with two linear layers behind its pooling."""
    folder = tmp_path_factory.mktemp("dense")
    return architectures.sentence_transformer(
        folder / "dense", architectures.bert(folder / "backbone"), "mean dense:48 dense:32 normalize"
    )


@pytest.fixture
def recipe(tiny_recipe, teacher):
    """The tiny recipe with that teacher and a student that keeps its linear layers; call it with the method and dotted
    changes.
    """

    def make(method, **changes):
        return tiny_recipe(
            teacher__model=str(teacher),
            student__dense="keep",
            method=method,
            evaluation__columns=["student"],
            **changes,
        )

    return make


@pytest.fixture
def idle(monkeypatch):
    """Called, it forbids every pass of a teacher from then on; students that are judged may run."""
    batches = ModelEmbedder.batches

    def forbid():
        def refuse(model, *args, **kwargs):
            assert model.name in ("student", "the student before training"), "the teacher ran again"
            return batches(model, *args, **kwargs)

        monkeypatch.setattr(ModelEmbedder, "batches", refuse)

    return forbid


def caches(run):
    return sorted(path.parent for path in (run.store.root / "teachers").glob(f"*/{MANIFEST}"))


def test_a_manifest_answers_for_those_with_fewer_signals(recipe, tmp_path):
    job = resolve(recipe(PRE_DENSE), tmp_path / "run")
    wide = job.teacher.manifest
    narrow = replace(wide, pre_dense_width=None)
    assert list(wide.signals) == ["embedding", "pre_dense"] and wide.pre_dense_width == 32
    assert wide.subsets == {narrow.fingerprint} and narrow.subsets == frozenset()
    assert len(replace(wide, vector_width=32).subsets) == 3
    assert replace(wide, width=20).subsets.isdisjoint(wide.subsets), "another vector is not a signal more"


def test_both_targets_share_one_pass_of_the_teacher(recipe, tmp_path, idle, no_pages):
    trained = run(recipe(PRE_DENSE), tmp_path / "pre-dense")
    assert 0 <= trained.validation["distance"] <= 2
    before = resolve(recipe(FINAL), tmp_path / "final")
    marks = before.teacher.manifest.fingerprint, before.fingerprint
    idle()
    job = resolve(recipe(FINAL), tmp_path / "final")
    assert run(job.recipe, job.folder).record.training.steps
    assert (job.teacher.manifest.fingerprint, job.fingerprint) == marks, "what was read does not tell from where"
    (folder,) = caches(job)
    assert open_cache(job, job.teacher).folder == folder and list(open_cache(job, job.teacher).signals) == [
        "embedding",
        "pre_dense",
    ]
    found = answering(job).signals(batch_of(range(4)))
    assert found.embedding.shape == (4, 32) and found.pre_dense is None


def batch_of(rows):
    numbers = torch.as_tensor(list(rows))
    return TextBatch(numbers, {"input_ids": numbers[:, None]}, torch.zeros_like(numbers))


def test_student_and_teacher_begin_with_equal_vectors(recipe, tmp_path):
    """The teacher's own signals are those of a student that keeps everything of it."""
    job = resolve(recipe(PRE_DENSE, student__layers=None, cache__dtype="float32"), tmp_path / "run")
    filled(job.recipe, job.folder)
    encoder = Encoder(untrained_student(job)).eval()
    objective = make_objective(job.stages[-1], job.context)
    data = prepare_data(job, encoder.model).training_data(required_outputs(objective, job.examples))
    batch = data.batch(np.arange(16))
    with torch.no_grad():
        terms = objective(batch, encoder(batch, objective.student_outputs), data.teacher.signals(batch))
    assert terms["cosine"].abs().max() < 1e-5


def test_a_wider_cache_counts_where_it_has_every_row(recipe, tmp_path, idle):
    """Until then the recipe has a cache of its own, and once that is full it stays with it."""
    other = tmp_path / "fewer.txt"
    other.write_text("\n".join(make_texts(120)), encoding="utf-8")
    small = {"corpus__sources": [{"path": str(other)}]}
    filled(recipe(PRE_DENSE, **small), tmp_path / "wide")
    job = resolve(recipe(FINAL), tmp_path / "all")
    own = filled(job.recipe, job.folder).folder
    assert (
        len(caches(job)) == 2
        and list(open_cache(job, job.teacher).signals) == ["embedding"]
        and len(open_cache(job, job.teacher)) == 200
    )
    idle()
    again = resolve(recipe(FINAL, **small), tmp_path / "small")
    assert filled(again.recipe, again.folder).folder == own, "its own is complete"
    own.rename(tmp_path / "gone")
    assert filled(recipe(FINAL, **small), tmp_path / "small").folder == caches(job)[0]


def test_a_folder_that_the_recipe_names(recipe, tmp_path, idle):
    """More signals than wanted are fine, fewer are not; what is filled up has all of them."""
    place = {"cache__path": str(tmp_path / "vectors")}
    fewer = tmp_path / "fewer.txt"
    fewer.write_text("\n".join(make_texts(120)), encoding="utf-8")
    filled(recipe(PRE_DENSE, **place, corpus__sources=[{"path": str(fewer)}]), tmp_path / "wide")
    cache = filled(recipe(FINAL, **place), tmp_path / "final")
    assert list(cache.signals) == ["embedding", "pre_dense"] and len(cache) == 200
    assert read_manifest(tmp_path / "vectors" / MANIFEST).pre_dense_width == 32
    idle()
    assert filled(recipe(PRE_DENSE, **place), tmp_path / "wide").verify() == []
    narrow = {"cache__path": str(tmp_path / "narrow")}
    opened(recipe(FINAL, **narrow), tmp_path / "empty").close()
    with pytest.raises(DistilvecError, match="pre_dense_width: found None, expected 32"):
        filled(recipe(PRE_DENSE, **narrow), tmp_path / "wide")


def test_signals_of_tokens_are_passed_over_and_never_made_up(tiny_recipe, tmp_path, idle):
    """A cache with hidden states answers for embeddings; filling it takes the recipe that wants them."""
    texts, fewer = make_texts(200), tmp_path / "fewer.txt"
    fewer.write_text("\n".join(texts[:120]), encoding="utf-8")
    changes = {"student__layers": 2, "method": {"name": "emo"}}
    wide = resolve(tiny_recipe(**changes), tmp_path / "tokens")
    filled(wide.recipe, wide.folder)
    assert len(open_cache(wide, wide.teacher).signals) > 1
    place = {"cache__path": str(tmp_path / "vectors"), "corpus__sources": [{"path": str(fewer)}]}
    filled(tiny_recipe(**changes, **place), tmp_path / "named")
    with refused("cache.path", "lacks 80 of"):
        filled(tiny_recipe(cache__path=str(tmp_path / "vectors")), tmp_path / "plain")
    idle()
    job = resolve(tiny_recipe(), tmp_path / "plain")
    assert filled(job.recipe, job.folder).folder == open_cache(wide, wide.teacher).folder
    found = answering(job).signals(batch_of(range(4)))
    assert found.embedding.shape == (4, 32) and not found.hidden_layers and found.mask is None


def test_damaged_neighbours_are_passed_over(recipe, tmp_path):
    wide = filled(recipe(PRE_DENSE), tmp_path / "wide")
    next(Path(wide.folder).glob("*.pre_dense.npy")).unlink()
    broken = wide.folder.parent / "broken"
    broken.mkdir()
    (broken / MANIFEST).write_text("{", encoding="utf-8")
    cache = filled(recipe(FINAL), tmp_path / "final")
    assert cache.folder not in (wide.folder, broken) and len(cache) == 200


def test_forbidden_neighbours_are_passed_over(recipe, tmp_path, monkeypatch):
    neighbour = filled(recipe(PRE_DENSE), tmp_path / "wide").folder
    read_text = Path.read_text

    def read(path, *args, **kwargs):
        if path == neighbour / MANIFEST:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read)
    assert filled(recipe(FINAL), tmp_path / "final").folder != neighbour


def test_a_finished_run_finds_the_vectors_it_was_trained_from(recipe, tmp_path):
    wide = filled(recipe(PRE_DENSE), tmp_path / "wide")
    job = resolve(recipe(FINAL), tmp_path / "final")
    found = find_cache(job.recipe, job.store, job.teacher.info.name, job.teacher.manifest.fingerprint)
    assert isinstance(found, TeacherCache) and found.folder == wide.folder
    with pytest.raises(DistilvecError, match="are no longer in"):
        find_cache(job.recipe, job.store, job.teacher.info.name, "0" * 16)
