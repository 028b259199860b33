"""The evaluation of a run: planned, its teacher's vectors kept and shared, shown from the first batch, speed last."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from samples import make_texts

from distilvec.config.score_columns import SCORE_COLUMNS, ScoreColumn
from distilvec.pipeline import evaluate as evaluation
from distilvec.pipeline.overview import PerToken, measure_rate, measured_rows
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.verbs.evaluate.scores import score_models
from distilvec.verbs.plan.plan import make_plan

DOCUMENTS, QUERIES = 40, 10


@pytest.fixture
def suite(tmp_path):
    """One retrieval task; its texts are no training texts."""
    texts = make_texts(DOCUMENTS, seed=5)
    folder = tmp_path / "find"
    folder.mkdir()
    rows = [{"id": str(row), "title": "", "text": text} for row, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [{"id": str(row), "text": f"where is {text}"} for row, text in enumerate(texts[:QUERIES])]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = "".join(f"{row}\t{row}\t1\n" for row in range(QUERIES))
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{pairs}")
    (tmp_path / "suite.yaml").write_text("- {name: find, type: retrieval, path: find}\n")
    return str(tmp_path / "suite.yaml")


@pytest.fixture
def embedded(monkeypatch):
    """The texts that each model embeds, by its name."""
    asked, batches = {}, ModelEmbedder.batches

    def noted(self, prompted, *values, **named):
        asked.setdefault(self.name, []).extend(prompted)
        return batches(self, prompted, *values, **named)

    monkeypatch.setattr(ModelEmbedder, "batches", noted)
    return asked


def teacher_name(tiny_model):
    return tiny_model.name


def test_seeds_and_the_command_share_the_teachers_vectors(tiny_recipe, tiny_model, suite, tmp_path, embedded, no_pages):
    first = run(tiny_recipe(evaluation__suite=suite), tmp_path / "seed-0")
    found = embedded.pop(tiny_model.name)
    texts = [text for text in make_texts(DOCUMENTS, seed=5) if text in found]
    assert len(texts) == DOCUMENTS and len(set(found)) == len(found), "each once"
    second = run(tiny_recipe(evaluation__suite=suite, train__seed=1), tmp_path / "seed-1")
    assert tiny_model.name not in embedded, "neither training texts nor those of the suite"
    assert second.scores["teacher"][0].metrics == first.scores["teacher"][0].metrics
    embedded.clear()
    scores = score_models(tmp_path / "seed-1" / "student", suite, teacher=tiny_model)
    assert [*embedded] == ["seed-1"], "the student alone"
    for name in ("teacher", "student", "asymmetric"):
        assert scores.columns[name][0].metrics == second.scores[name][0].metrics


def test_scores_of_kept_vectors_are_the_same(tiny_recipe, tiny_model, suite, tmp_path, monkeypatch):
    """To the last bit: kept vectors are float32."""
    student = str(tiny_model)
    kept = [score_models(student, suite, teacher=tiny_model).columns["teacher"][0].metrics for _ in range(2)]
    monkeypatch.setattr(ModelEmbedder, "keep_in", lambda *values: None)
    plain = score_models(student, suite, teacher=tiny_model).columns["teacher"][0].metrics
    assert kept == [plain, plain]


def test_an_evaluation_shows_its_first_batch(tiny_recipe, tiny_model, suite, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("distilvec.teachers.encode.CPU_TOKENS", 64)
    monkeypatch.setattr("distilvec.teachers.encode.CPU_FLOOR", 16)
    monkeypatch.setattr("distilvec.core.log.FIRST_LINE_SECONDS", -1.0)
    score_models(str(tiny_model), suite)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("embedding with")]
    done, total = map(int, re.search(r"(\d+)/(\d+) texts, .*/s", lines[0]).groups())
    assert 0 < done < total == DOCUMENTS + QUERIES and f"{total}/{total} texts" in lines[-1]


def test_the_plan_has_the_evaluation(tiny_recipe, suite, tmp_path, no_pages):
    recipe = tiny_recipe(evaluation__suite=suite, evaluation__parts=["speed"], evaluation__speed_seconds=90)
    rows = dict(make_plan(resolve(recipe, tmp_path / "run")).lines)
    assert re.match(r"[\d,.]+ texts/s on average \([\d,]+ tokens/s on texts of \d+ tokens, ", rows["  rate"])
    assert rows["evaluation"] == "1 task: find"
    assert re.fullmatch(r"50 of 50 texts: about \d+ s; then stored", rows["  with the teacher"])
    assert re.fullmatch(r"50 texts, 2 times \(untrained, student\): about \d+ s", rows["  with the student"])
    assert rows["  table of speed"] == "at most 2 min (evaluation.speed_seconds)"
    run(tiny_recipe(evaluation__suite=suite), tmp_path / "run")
    rows = dict(make_plan(resolve(recipe, tmp_path / "again")).lines)
    assert rows["  with the teacher"].startswith("the vectors of all 50 texts are stored: ")


def test_the_plan_counts_the_queries_that_search_the_teachers_documents(tiny_recipe, suite, tmp_path):
    changes = {"evaluation__suite": suite, "evaluation__columns": ["teacher", "asymmetric", "untrained"]}
    job = resolve(tiny_recipe(**changes), tmp_path / "run")
    (task,) = job.tasks
    words = dict(make_plan(job).lines)["  with the student"]
    counts = rf"50 texts, 1 times \(untrained\); {len(set(task.queries))} texts, 1 times \(asymmetric\)"
    assert re.fullmatch(rf"{counts}: about \d+ s", words), words
    alone = resolve(tiny_recipe(**changes | {"evaluation__columns": ["teacher"]}), tmp_path / "run")
    assert "  with the student" not in dict(make_plan(alone).lines)


def test_the_plan_follows_the_table_of_columns(tiny_recipe, suite, tmp_path, monkeypatch):
    """Also those that nobody has thought of yet."""
    new = (ScoreColumn("searched", "teacher", "student"), ScoreColumn("copy", "untrained", "untrained"))
    columns = SCORE_COLUMNS | {column.name: column for column in new}
    monkeypatch.setattr("distilvec.verbs.plan.plan.SCORE_COLUMNS", columns)
    job = resolve(tiny_recipe(evaluation__suite=suite), tmp_path / "run")
    job.recipe.evaluation.columns[:] = ["teacher", "projected", "searched", "copy"]
    words = dict(make_plan(job).lines)["  with the student"]
    counts = rf"50 texts, 1 times \(copy\); {DOCUMENTS} texts, 1 times \(searched\)"
    assert re.fullmatch(rf"{counts}: about \d+ s", words), words


def test_a_plan_without_a_suite_has_no_evaluation(tiny_recipe, tmp_path, shared_cache):
    assert "evaluation" not in dict(make_plan(resolve(tiny_recipe(), tmp_path / "run")).lines)


@pytest.mark.parametrize("changes", [{"teacher__live": True}, {"method__name": "simcse"}])
def test_a_teacher_without_a_cache_is_planned_too(tiny_recipe, suite, tmp_path, changes):
    changes |= {"evaluation__suite": suite, "student__dropout": 0.1, "evaluation__columns": ["teacher", "student"]}
    rows = dict(make_plan(resolve(tiny_recipe(**changes), tmp_path / "run")).lines)
    assert rows["  with the teacher"].startswith("50 of 50 texts") and "1 times (student)" in rows["  with the student"]


def test_scores_come_first_and_speed_last(tiny_recipe, suite, tmp_path, monkeypatch, shared_cache, no_pages):
    order, add = [], evaluation._add

    def noted(job, models, report, name):
        order.append(name)
        add(job, models, report, name)

    monkeypatch.setattr(evaluation, "_add", noted)
    parts = ["agreement", "speed", "compression", "texts"]
    job = resolve(tiny_recipe(evaluation__suite=suite, evaluation__parts=parts), tmp_path / "run")
    run(job.recipe, job.folder)
    assert order == ["scores", "agreement", "compression", "texts", "speed"]


# -- rates -------------------------------------------------------------------------------------------------------------


def test_tokens_of_long_texts_count_more():
    rate = PerToken((10, 100), (1.0, 3.0))
    assert rate.total(np.array([10])) == 10 and rate.total(np.array([100])) == 300
    assert rate.total(np.array([55])) == pytest.approx(55 * 2)
    assert rate.total(np.array([5, 200])) == 5 + 600, "beyond both lengths as at the nearer one"
    assert rate.mean(np.array([10, 100])) == 155


def test_a_rate_predicts_a_mixture(monkeypatch):
    """A model that takes (1 + tokens / 100) ms a token: both measured lengths give what the whole corpus takes."""
    now, generator = [0.0], np.random.default_rng(0)
    lengths = np.concatenate([generator.integers(5, 30, 4000), generator.integers(200, 385, 200)])
    monkeypatch.setattr("distilvec.pipeline.overview.time.perf_counter", lambda: now[0])

    def compute(rows):
        now[0] += float((lengths[rows] * (1e-3 + 1e-5 * lengths[rows])).sum())

    rate, _ = measure_rate(compute, lengths)
    truth = float((lengths * (1e-3 + 1e-5 * lengths)).sum())
    assert rate.total(lengths) == pytest.approx(truth, rel=0.05)
    assert now[0] < truth / 50, "a small part is enough"


@pytest.mark.parametrize("lengths", [[7], [3, 3], [5000, 4], [1] * 5, list(range(1, 400))])
def test_measured_rows_are_short_and_long_ones(lengths):
    lengths = np.array(lengths)
    short, long = measured_rows(lengths)
    assert len(short) and len(long) and lengths[long].min() >= lengths[short].min()
    assert lengths.max() in lengths[long] and lengths[long].sum() <= max(1024, lengths.max())
