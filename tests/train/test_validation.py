"""What is watched on held-out rows: distance and cosine in the teacher's space, the gap between similarities in any."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import training_data
from loops import make_loop
from sentence_transformers import SentenceTransformer

from distilvec.core.run_folder import RunFolder
from distilvec.core.similarity import SIMILARITIES
from distilvec.evaluation.overlap import find_overlap, nearest_rows
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.train.accelerator import make_accelerator
from distilvec.train.metrics import Metric, read_metrics, shipped_numbers, watched_metric
from distilvec.train.validation import overlap_found, teacher_distance

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture
def parts(tiny_recipe, tmp_path):
    recipe = tiny_recipe()
    job = resolve(recipe, tmp_path / "run")
    encoder = Encoder(untrained_student(job))
    return (
        job,
        encoder,
        training_data(job, encoder.model),
        make_accelerator(recipe.train, tmp_path),
    )


def test_the_gap_is_that_of_the_cosine_matrices_of_each_batch(parts):
    job, encoder, data, accelerator = parts
    found = teacher_distance(encoder, data, accelerator, 16)
    texts = data.corpus.texts(data.holdout_rows)
    vectors = [
        model.encode(texts) for model in (encoder.model, SentenceTransformer(job.recipe.teacher.model, device="cpu"))
    ]
    lengths, values = data.tokens.lengths[data.holdout_rows], []
    for group in np.array_split(np.argsort(lengths, kind="stable"), len(texts) // 16):
        ours, theirs = (vector[group] @ vector[group].T for vector in vectors)
        values += (np.abs(ours - theirs).sum(1) / (len(group) - 1)).tolist()
    assert found["similarity_gap"] == pytest.approx(
        np.mean(values), abs=1e-3
    )  # the teacher's vectors are kept in float16
    assert found["distance"] == pytest.approx(np.linalg.norm(vectors[0] - vectors[1], axis=1).mean(), abs=1e-3)
    assert 0 < found["cosine"] < 1


def test_overlap_is_what_a_search_by_hand_finds(parts):
    """The ten nearest other texts of each text, among the teacher's vectors, as sets."""
    _, encoder, data, accelerator = parts
    rows = data.holdout_rows
    ours = encoder.model.encode(data.corpus.texts(rows))
    theirs = data.teacher.signals(data.batch(rows)).embedding.numpy()
    ours, theirs = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (ours, theirs))

    def nearest_rows(vectors, row):
        ranked = np.argsort(-(theirs @ vectors[row]), kind="stable")
        return {*ranked[ranked != row][:10].tolist()}

    found = teacher_distance(encoder, data, accelerator, 16)["overlap_of_validation_texts"]
    shares = [len(nearest_rows(ours, row) & nearest_rows(theirs, row)) / 10 for row in range(len(rows))]
    assert found == pytest.approx(np.mean(shares), abs=1e-6) and 0.1 < found < 1
    assert overlap_found(torch.from_numpy(theirs), torch.from_numpy(theirs)) == 1.0


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_overlap_is_searched_by_the_similarity_of_the_teacher(similarity):
    """Vectors of several lengths, of which each similarity finds others; the same search as of the report."""
    generator = np.random.default_rng(0)
    teacher = (generator.normal(size=(60, 8)) * generator.uniform(0.2, 3, (60, 1))).astype(np.float32)
    student = (teacher + generator.normal(size=(60, 8))).astype(np.float32)
    rows = np.arange(60)
    hits = []
    for row in rows:
        others = teacher[rows != row]
        near = nearest_rows(teacher[row : row + 1], others, 10, similarity)
        hits.append(find_overlap(near, others, similarity, student[row : row + 1], None, True).among)
    share = np.mean(hits)
    found = {kind: overlap_found(*map(torch.from_numpy, (student, teacher)), kind) for kind in SIMILARITIES}
    assert found[similarity] == pytest.approx(share, abs=1e-6)
    assert len(set(found.values())) == 3


def test_an_index_of_vectors_of_several_lengths_is_validated_by_its_similarity(tiny_recipe, tmp_path):
    job = resolve(tiny_recipe(teacher__similarity="euclidean"), tmp_path / "run")
    assert training_data(job, untrained_student(job)).similarity == "euclidean"


def test_too_few_rows_have_no_overlap(parts):
    _, encoder, data, accelerator = parts
    few = replace(data, holdout_rows=data.holdout_rows[:20])
    assert "overlap_of_validation_texts" not in teacher_distance(encoder, few, accelerator, 16)


def test_no_distance_between_two_spaces(parts):
    _, encoder, data, accelerator = parts
    whole = teacher_distance(encoder, data, accelerator, 16)
    assert teacher_distance(encoder, data, accelerator, 16, compatible=False) == {
        "similarity_gap": whole["similarity_gap"]
    }


def test_the_watched_number_of_a_line():
    assert watched_metric({"step": 1, "train/loss": 2.0}) is None
    line = {"eval/distance": 1.0, "eval/similarity_gap": 0.1, "watched": "distance", "better": "lower"}
    assert watched_metric(line) == Metric("distance", 1.0, higher_is_better=False)
    assert watched_metric({"eval/f1": 0.5, "watched": "f1", "better": "higher"}) == Metric("f1", 0.5, True)
    unranked = {"eval/similarity_gap": 0.1, "watched": "similarity_gap"}
    assert watched_metric(unranked) == Metric("similarity_gap", 0.1, None)


@pytest.mark.parametrize(("name", "step"), [("distance", 0), ("similarity_gap", 3), ("accuracy", 1), ("accuracy", 2)])
def test_the_figures_of_the_student_that_ships(tmp_path, name, step):
    """Those of its step, also where a head that began at random had the same score by chance."""
    values = (0.4, 0.4, 0.2, 0.3)
    lines = []
    for number, value in enumerate(values):
        lines.append(json.dumps({"step": number, f"eval/{name}": value, "watched": name}) + "\n")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    shipped = shipped_numbers([tmp_path / "metrics.jsonl"], step)
    assert shipped.numbers == {name: values[step], f"untrained_{name}": values[0]}
    assert shipped.watched == Metric(name, values[step], None)


@pytest.mark.parametrize("method", ["redact", "simcse"])
def test_the_student_that_ships(tiny_recipe, tmp_path, monkeypatch, method):
    """The nearest to the teacher, here that of the second validation; of students in a space of their own, the last."""
    from distilvec.train import validation

    values = iter((0.9, 0.2, *np.linspace(0.5, 0.6, 20)))
    measure = validation.teacher_distance

    def worse(*arguments):
        found = measure(*arguments)
        return dict.fromkeys(found.keys() - {"overlap_of_validation_texts"}, next(values))

    monkeypatch.setattr(validation, "teacher_distance", worse)
    loop = make_loop(tiny_recipe(method__name=method, train__epochs=3), tmp_path / "run")
    saved: list[int] = []
    loop.hooks = replace(loop.hooks, save=lambda name: saved.append(loop.state.best_step))
    state = loop.run()
    steps = [
        line["step"] for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "eval/similarity_gap" in line
    ]
    assert saved == {"redact": steps[:2], "simcse": steps[1:]}[method]
    assert state.best_step == saved[-1]
    names = {"redact": "distance", "simcse": "similarity_gap"}
    metrics = shipped_numbers([RunFolder(tmp_path / "run").metrics], state.best_step).numbers
    last = 0.5 + 0.1 / 19 * (len(steps) - 3)
    assert metrics[names[method]] == pytest.approx({"redact": 0.2, "simcse": last}[method])


def test_small_losses_of_overlap_do_not_add_up(tiny_recipe, tmp_path, monkeypatch):
    """Each student is nearer than the one before and finds 1.5 points less, which is within chance of it."""
    from distilvec.train import validation

    distances = iter(np.linspace(0.9, 0.1, 40))
    shares = iter(0.60 - 0.015 * np.arange(40))
    measure = validation.teacher_distance

    def nearer_with_less_overlap(*arguments):
        return {**measure(*arguments), "distance": next(distances), "overlap_of_validation_texts": next(shares)}

    monkeypatch.setattr(validation, "teacher_distance", nearer_with_less_overlap)
    loop = make_loop(tiny_recipe(train__epochs=4), tmp_path / "run")
    saved: list[int] = []
    loop.hooks = replace(loop.hooks, save=lambda name: saved.append(loop.state.best_step))
    loop.run()
    lines = [
        line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "eval/overlap_of_validation_texts" in line
    ]
    assert len(lines) > 3 and saved == [line["step"] for line in lines[:2]], "0.600 and 0.585, not 0.570"


def test_a_student_in_a_space_of_its_own_has_no_asymmetric_column(tiny_recipe, tmp_path):
    import json

    suite = tmp_path / "suite.yaml"
    sts = tmp_path / "sts.jsonl"
    sts.write_text(
        "".join(
            json.dumps({"sentence1": f"text {n}", "sentence2": f"text {n % 3}", "score": n % 5}) + "\n"
            for n in range(12)
        )
    )
    suite.write_text(f"- {{name: sts, type: sts, path: {sts}}}\n")
    for method, expected in (("redact", True), ("simcse", False)):
        recipe = tiny_recipe(
            method__name=method, train__max_steps=2, evaluation__suite=str(suite), evaluation__parts=["margin"]
        )
        result = run(recipe, tmp_path / method)
        assert ("asymmetric" in result.scores) is expected and result.record.teacher_compatible is expected
        page = result.page.read_text(encoding="utf-8")
        assert ("similarity gap" in page) and (tmp_path / method / "student" / "README.md").exists()
