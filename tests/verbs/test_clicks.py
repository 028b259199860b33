"""Clicks on an index: what is read, split, and counts as a negative; a stage that is kept, dropped or resumed."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from samples import make_texts

import distilvec
from distilvec.__main__ import run_command
from distilvec.config import recipe as recipes
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.run_folder import RunFolder
from distilvec.data.pairs import read_pairs
from distilvec.evaluation.pairs import PairJudgement, PairScore, compare_on_pairs
from distilvec.losses.contrastive import answer_loss, search_scores, true_negatives
from distilvec.models.load import load
from distilvec.pipeline import pairs as pipeline_pairs
from distilvec.pipeline.objectives import make_objective
from distilvec.pipeline.pairs import load_pairs
from distilvec.pipeline.prepare import prepare
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.report.verdicts import pairs_sentence
from distilvec.train.trainer import Trainer
from distilvec.verbs.distill.recipe import make_recipe
from distilvec.verbs.distill.request import Request
from distilvec.verbs.plan.plan import make_plan

DOCUMENTS, QUERIES = make_texts(120), [f"{text.split()[0]} {number}" for number, text in enumerate(make_texts(60, 1))]
FAST = {
    "train.max_steps": 3, "train.device": "cpu", "train.precision": "fp32", "train.batch_size": 16,
    "evaluation.stored": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def index(tmp_path_factory, tiny_model):
    """An index with the ids d0, d1, ...; document 1 is nearly document 0."""
    vectors = load(tiny_model, device="cpu").encode(DOCUMENTS)
    vectors[1] = vectors[0] + 1e-3
    path = tmp_path_factory.mktemp("index") / "index.parquet"
    names = [f"d{number}" for number in range(len(DOCUMENTS))]
    pq.write_table(pa.table({"id": names, "text": DOCUMENTS, "embedding": list(vectors)}), path)
    return path


def write_rows(path, names, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


@pytest.fixture
def clicks(tmp_path):
    """Each query has two answers, of which one is its own."""
    rows = [(query, f"d{number}") for number, query in enumerate(QUERIES)]
    rows += [(query.upper(), f"d{number + 60}") for number, query in enumerate(QUERIES)]
    return write_rows(tmp_path / "clicks.csv", ("query", "id"), rows)


def stored_pairs(index, path, tmp_path, **settings):
    tree = {
        "name": "pairs",
        "teacher": {"vectors": str(index)},
        "student": {"model": "all-MiniLM-L6-v2"},
        "corpus": {"sources": [{"builtin": "teacher"}]},
        "method": {"name": "clicks"},
        "pairs": {"path": str(path), **settings},
    }
    recipe = recipes.validate(tree)
    return load_pairs(recipe, recipe.pairs, ArtifactStore(tmp_path / "cache"))


def recipe_of(index, clicks, tiny_model, folder, **options):
    request = Request(
        str(index), student=str(tiny_model), layers=2, pairs=clicks, out=folder, overrides=FAST, **options
    )
    return make_recipe(request, folder.parent)


def answers_of(pairs, number):
    """The ids of the trained answers of a pair's query."""
    candidates = np.arange(len(pairs.log_frequency))
    return candidates[pairs.are_answers(pairs.queries[[number]], candidates)[0]]


# -- rows ------------------------------------------------------------------------------------------------------------


def test_every_clicked_document_of_a_query_is_an_answer_and_queries_are_split_by_their_text(index, clicks, tmp_path):
    pairs = stored_pairs(index, clicks, tmp_path)
    assert (len(pairs), len(pairs.corpus), len(pairs.validation)) == (96, 60, 24)
    vectors = torch.nn.functional.normalize(torch.tensor(pairs.vectors, dtype=torch.float32), dim=-1)
    for number in range(96):
        answers = pairs.answers[pairs.queries == pairs.queries[number]]
        are_copies = (vectors[answers] @ vectors.T > 0.95).any(dim=0)
        assert len(answers) == 2 and answers_of(pairs, number).tolist() == are_copies.nonzero()[:, 0].tolist()
    trained = {text.lower() for text in pairs.corpus.stored(pairs.queries)}
    decided = {text.lower() for text in pairs.corpus.stored(pairs.validation[:, 0])}
    assert len(decided) == 12 and not trained & decided
    assert not pairs.is_seen.any() and pairs.weights.tolist() == [1.0] * 96


def test_negatives_are_near_but_no_copy_of_the_answer(index, tmp_path):
    rows = [(f"query {number}", f"d{0 if number < 9 else number}") for number in range(10)]
    pairs = stored_pairs(index, write_rows(tmp_path / "c.csv", ("query", "id"), rows), tmp_path, negatives=3)
    vectors = pairs.vectors.astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    chosen = pairs.negatives[0]
    assert (chosen >= 0).all() and (vectors[chosen] @ vectors[pairs.answers[0]] <= 0.951).all()
    assert not pairs.is_stated.any()


def test_stated_negatives_come_first_and_texts_name_stored_rows(index, tmp_path):
    rows = [(f"query {number}", DOCUMENTS[number], DOCUMENTS[number + 10]) for number in range(10)]
    path = write_rows(tmp_path / "c.csv", ("anchor", "positive", "negative"), rows)
    pairs = stored_pairs(index, path, tmp_path, negatives=2)
    assert pairs.is_stated.tolist() == [[True, False, False]] * 8
    table = pq.read_table(index)["embedding"].to_pylist()
    number = int(pairs.corpus.stored(pairs.queries[:1])[0].split()[1])
    expected = np.array(table[number + 10], dtype=np.float16)
    assert np.array_equal(pairs.vectors[pairs.negatives[0, 0]], expected)


def test_judgements_of_a_folder_and_of_0_are_no_answers(index, tmp_path):
    folder = tmp_path / "judged"
    folder.mkdir()
    lines = [json.dumps({"id": f"q{number}", "text": f"query {number}"}) for number in range(10)]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    judged = [f"q{number}\td{number}\t1\nq{number}\td{number + 20}\t0" for number in range(10)]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged))
    pairs = stored_pairs(index, folder, tmp_path)
    assert len(pairs) == 8 and len(pairs.validation) == 2 and pairs.is_stated.sum() == 8
    with (folder / "qrels.tsv").open("a") as file:
        file.write("\nq77\td1\t1\n")
    again = stored_pairs(index, folder, tmp_path)
    assert len(again) == 8 and again.counts.left_out == 1 and "no query" in again.counts.example


def test_popular_documents_are_capped_and_corrected_and_clicks_count_by_position(index, tmp_path):
    rows = [(f"query {number}", "d0", 1, 1) for number in range(20)] + [("query 0", "d7", 2, 2), ("other", "d8", 1, 1)]
    path = write_rows(tmp_path / "c.csv", ("query", "id", "count", "position"), rows)
    pairs = stored_pairs(index, path, tmp_path, most=5, propensity=[1.0, 0.5], seed=1)
    counts = np.bincount(pairs.answers)
    popular = int(counts.argmax())
    assert counts[popular] == 5 and pairs.counts.capped > 0
    answers = np.flatnonzero(counts)
    frequency = pairs.log_frequency[answers]
    np.testing.assert_allclose(np.exp(frequency), counts[answers] / counts[answers].mean(), rtol=1e-5)
    if 2 in np.bincount(pairs.queries):  # query 0 is trained on: two clicks at a place that half of all look at
        assert np.isclose(pairs.weights.max() / pairs.weights.min(), 4.0)


def test_times_keep_the_latest_queries_and_drop_later_clicks_on_earlier_ones(index, tmp_path):
    rows = [(f"query {number}", f"d{number}", f"2026-01-{number + 1:02d}") for number in range(10)]
    rows.append(("query 0", "d50", "2026-02-01T10:00:00Z"))
    path = write_rows(tmp_path / "c.csv", ("query", "id", "time"), rows)
    pairs = stored_pairs(index, path, tmp_path)
    assert sorted(pairs.corpus.stored(pairs.validation[:, 0])) == ["query 8", "query 9"]
    assert len(pairs) == 8 and pairs.counts.later == 1 and "1 later clicks" in pairs.counts.line


def test_milliseconds_are_no_dates_of_another_century(tmp_path):
    """Python reads 1723112520743 as a day of the year 1723."""
    times = [1_723_112_520_743, 1_719_103_012_001, 20_240_131]
    rows = [(f"query {number}", "d1", time) for number, time in enumerate(times)]
    read = read_pairs(write_rows(tmp_path / "c.csv", ("query", "id", "time"), rows), {}).rows
    assert [row.time for row in read] == [*times[:2], 1_706_659_200.0], "8 digits are a day"


def test_of_two_columns_of_ids_the_one_that_is_read_is_named(index, tmp_path, capsys):
    rows = [(number, f"query {number}", f"d{number}") for number in range(10)]
    with refused("pairs", "not stored"):
        stored_pairs(index, write_rows(tmp_path / "c.csv", ("id", "query", "doc_id"), rows), tmp_path)
    assert "'id' is read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "row", "reason"),
    [
        (("query", "id"), ("any query", "gone"), "'gone' is not stored"),
        (("query", "id"), ("any query", ""), "'' is not stored"),
        (("query", "id"), ("", "d1"), "no query"),
        (("query", "id", "count"), ("any query", "d1", "0"), "0 clicks"),
        (("query", "id", "count"), ("any query", "d1", "-2"), "-2 clicks"),
        (("query", "id", "time"), ("any query", "d1", ""), "no time, though other rows have one"),
    ],
)
def test_a_row_that_says_nothing_costs_itself_alone_and_is_counted(index, tmp_path, names, row, reason):
    value = "2026-01-{:02d}" if "time" in names else "{}"
    rows = [(f"query {number}", f"d{number}", value.format(number + 1))[: len(names)] for number in range(10)]
    pairs = stored_pairs(index, write_rows(tmp_path / "c.csv", names, [*rows, row]), tmp_path)
    assert (len(pairs), len(pairs.corpus), pairs.counts.left_out) == (8, 10, 1)
    assert f"rows left out: 1, such as {tmp_path}/c.csv, line 12: {reason}" in pairs.counts.line


def test_a_stated_text_is_read_beside_the_ids_of_the_rows(index, tmp_path):
    rows = [(f"query {number}", f"row {number}", DOCUMENTS[number]) for number in range(10)]
    path = write_rows(tmp_path / "c.csv", ("query", "id", "answer"), rows)
    pairs = stored_pairs(index, path, tmp_path, columns={"document": "answer"})
    assert len(pairs) == 8 and pairs.counts.left_out == 0


def test_popular_pairs_are_not_the_whole_loss(index, tmp_path):
    rows = [(f"query {number}", f"d{number}", 10_000 if number < 3 else 1) for number in range(100)]
    pairs = stored_pairs(index, write_rows(tmp_path / "c.csv", ("query", "id", "count"), rows), tmp_path)
    assert pairs.weights.max() == pytest.approx(10, rel=0.02) and pairs.weights.mean() == pytest.approx(1)


@pytest.mark.parametrize(
    ("names", "rows", "key", "words"),
    [
        (("query", "id"), [("a", "x1"), ("b", "x2")], "pairs", ["line 2", "'x1'", "'d0'"]),
        (("query", "id"), [("a", "d1"), ("A ", "d2")], "pairs", ["found 1 queries"]),
        (("query", "title"), [("a", "d1")], "pairs", ["query, title"]),
        (("query", "id", "count"), [("a", "d1", "many")], "pairs", ["line 2", "'many'"]),
        (("query", "id", "count"), [("a", "d1", "0")], "pairs", ["found 0 queries"]),
        (("query", "id", "time"), [("a", "d1", "soon"), ("b", "d2", "later")], "pairs", ["line 2", "'soon'"]),
        (("query", "id", "time"), [("a", "d1", "2026-01-01"), ("b", "d2", "2026-01-01")], "pairs", ["found 2"]),
        (("query", "id"), [], "pairs", ["found 0 queries"]),
    ],
)
def test_rows_that_say_nothing_are_named(index, tmp_path, names, rows, key, words):
    with refused(key) as caught:
        stored_pairs(index, write_rows(tmp_path / "c.csv", names, rows), tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_a_propensity_needs_positions(index, clicks, tmp_path):
    with refused("pairs.propensity", "no position"):
        stored_pairs(index, clicks, tmp_path, propensity=[1.0, 0.5])
    path = write_rows(tmp_path / "c.csv", ("query", "id", "position"), [("a", "d1", 1), ("b", "d2", 0)])
    with refused("pairs.propensity", "line 3"):
        stored_pairs(index, path, tmp_path, propensity=[1.0, 0.5])


# -- the loss --------------------------------------------------------------------------------------------------------


def test_who_is_a_negative():
    """The answer, that of another query, an equal document, one mined near in score, one far, another answer."""
    cosines = torch.tensor([[0.8, 0.79, 0.7, 0.79, 0.7, 0.1]])
    likeness = torch.tensor([[1.0, 0.5, 0.96, 0.5, 0.5, 0.2]])
    may_be_negative = torch.tensor([[False, True, True, True, True, False]])
    is_mined = torch.tensor([[False, False, False, True, True, True]])
    negatives = true_negatives(cosines, likeness, torch.tensor([0]), may_be_negative, is_mined)
    assert negatives.tolist() == [[False, True, False, False, True, False]]


def test_the_loss_is_a_cross_entropy_with_frequencies_taken_back():
    scores, frequency = torch.tensor([[2.0, 1.0, 5.0]]), torch.tensor([0.0, 0.7, 0.0])
    loss = answer_loss(scores, torch.tensor([0]), torch.tensor([[False, True, False]]), frequency)
    assert loss.item() == pytest.approx(np.log(1 + np.exp(1.0 - 0.7 - 2.0)))


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_scores_rank_as_the_index_does(similarity):
    generator = torch.Generator().manual_seed(0)
    queries, documents = torch.randn(4, 8, generator=generator), torch.randn(9, 8, generator=generator)
    expected = {
        "cosine": queries @ torch.nn.functional.normalize(documents, dim=-1).T,
        "dot": queries @ documents.T,
        "euclidean": -torch.cdist(queries, documents),
    }[similarity]
    scores = search_scores(queries, documents, similarity)
    assert scores.argsort(1).tolist() == expected.argsort(1).tolist()


# -- the decision ----------------------------------------------------------------------------------------------------


def test_scores_of_seen_and_unseen_documents_are_apart():
    documents = np.eye(4, dtype=np.float32)
    before, after = documents[[1, 1]], documents[[0, 1]]
    answers, is_seen = np.array([[0, 0], [1, 1]]), np.array([True, False])
    score, (low, high), seen, unseen = compare_on_pairs(before, after, documents, answers, is_seen, "cosine")
    assert score.queries == 2 and score.after == 1.0 and score.before < 1
    assert (seen.queries, unseen.queries) == (1, 1) and unseen.before == unseen.after == 1.0
    assert low <= score.after - score.before <= high


def judgement(low=0.01, after=0.6, overlap=0.62, **changes):
    return PairJudgement("clicks", PairScore(200, 0.5, after), low, 0.2, 0.63, overlap, None, None, True, **changes)


def test_a_stage_is_kept_for_a_gain_that_costs_at_most_two_points():
    assert judgement().is_kept and judgement(overlap=0.6101).is_kept
    assert not judgement(low=0.0).is_kept and not judgement(overlap=0.6).is_kept
    assert "was kept" in pairs_sentence(judgement()) and "old search" in pairs_sentence(judgement())
    dropped = pairs_sentence(judgement(low=-0.1, overlap=0.5))
    assert "was dropped" in dropped and "not above 0" in dropped and "more than two points" in dropped


# -- runs ------------------------------------------------------------------------------------------------------------


def weights_of(folder):
    model = load(folder, device="cpu")
    return {name: value.clone() for name, value in model.state_dict().items()}


def run_judged(monkeypatch, recipe, folder, verdict):
    """Run with this verdict; the real one is computed all the same."""
    real = pipeline_pairs.judge_stage
    judged = []

    def judge(*arguments):
        judged.append(real(*arguments))
        return verdict

    monkeypatch.setattr(pipeline_pairs, "judge_stage", judge)
    finished = run(recipe, folder)
    assert len(judged) == 1 and judged[0].score.queries == 12
    return finished


def test_a_kept_stage_ships_and_says_what_it_brought(index, clicks, tiny_model, tmp_path, monkeypatch):
    recipe = recipe_of(index, clicks, tiny_model, tmp_path / "run")
    finished = run_judged(monkeypatch, recipe, tmp_path / "run", judgement())
    record = finished.record.training
    assert not record.stages[-1].dropped and "was kept" in record.shipped
    assert "was kept" in (tmp_path / "run" / "report.html").read_text()
    shipped, last = weights_of(tmp_path / "run" / "student"), RunFolder(tmp_path / "run")
    assert not last.last.exists() and any(value.isfinite().all() for value in shipped.values())
    assert run(recipe, tmp_path / "run").record.training.shipped == record.shipped  # read back, nothing is trained


def test_a_dropped_stage_ships_the_student_before_it(index, clicks, tiny_model, tmp_path, monkeypatch):
    recipe = recipe_of(index, clicks, tiny_model, tmp_path / "run")
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"keep_checkpoint": True})})
    finished = run_judged(monkeypatch, recipe, tmp_path / "run", judgement(low=-0.1))
    record = finished.record.training
    assert record.stages[-1].dropped and record.best_step == 0 and "was dropped" in record.shipped
    before = load_file(RunFolder(tmp_path / "run").stage("distil").checkpoint)
    shipped = weights_of(tmp_path / "run" / "student")
    name = next(name for name in shipped if name.endswith("query.weight"))
    torch.testing.assert_close(shipped[name], before[f"model/encoder.model.{name}"])


def test_a_killed_stage_goes_on_to_the_same_student(index, clicks, tiny_model, tmp_path, monkeypatch):
    recipe = recipe_of(index, clicks, tiny_model, tmp_path / "run")
    monkeypatch.setattr(pipeline_pairs, "judge_stage", lambda *arguments: judgement())
    run(recipe, tmp_path / "whole")
    job = resolve(recipe, tmp_path / "run")
    interrupt_second_stage(job, monkeypatch)
    run(recipe, tmp_path / "run")
    whole, resumed = (weights_of(tmp_path / name / "student") for name in ("whole", "run"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def interrupt_second_stage(job, monkeypatch):
    """Ctrl-C in the second step of the stage of clicks."""
    step = Trainer._step

    def stepped(self, batches, index):
        if self.module.objective.reads_pairs and self.state.step == 1:
            raise KeyboardInterrupt
        return step(self, batches, index)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "_step", stepped)
        run(job.recipe, job.folder)


def test_as_many_stored_texts_as_pairs_hold_the_student(index, clicks, tiny_model, tmp_path):
    job = resolve(recipe_of(index, clicks, tiny_model, tmp_path / "run"), tmp_path / "run")
    data = prepare(job).data.data_of(make_objective(job.stages[-1], job.context))
    rows = data.pass_rows(0, 0)
    texts = rows[rows < len(job.corpus)]
    assert (
        len(rows) - len(texts) == len(texts) == 96
        and set(texts) == set(job.corpus.train_rows)
        and len(set(texts)) == 80
    )


def test_the_plan_counts_pairs_and_times_their_stage(index, clicks, tiny_model, tmp_path):
    rows = dict(make_plan(resolve(recipe_of(index, clicks, tiny_model, tmp_path / "run"), tmp_path / "run")).lines)
    assert rows["pairs"].startswith("96 pairs of 48 queries") and rows["  clicks"].startswith("3 steps of 16 texts")


def test_the_command_names_what_is_wrong(index, tiny_model, tmp_path, capsys):
    words = [f"{key}={value}" for key, value in FAST.items()]
    bad = write_rows(tmp_path / "bad.csv", ("query", "id"), [("a", "x1"), ("b", "x2")])
    assert run_command(["distill", str(index), "--student", str(tiny_model), "--pairs", "absent.csv", *words]) == 2
    assert "--pairs" in capsys.readouterr().err
    assert run_command(["distill", str(index), "--student", str(tiny_model), "--pairs", str(bad), *words]) == 2
    assert "[--pairs]" in capsys.readouterr().err


def test_pairs_are_for_an_index(tiny_model, clicks):
    with refused("pairs"):
        distilvec.plan(str(tiny_model), make_texts(40), pairs=clicks)


def test_a_recipe_with_pairs_needs_a_method_that_reads_them_last(index, clicks, tiny_model, tmp_path):
    recipe = recipe_of(index, clicks, tiny_model, tmp_path / "run")
    alone = recipe.model_copy(update={"stages": []})
    with refused("pairs", "no method"):
        resolve(alone, tmp_path / "alone")
    with refused("pairs", "clicks"):
        resolve(recipe.model_copy(update={"pairs": None}), tmp_path / "none")
    with refused("stages", "another stage follows"):
        resolve(recipe.model_copy(update={"stages": recipe.stages[::-1]}), tmp_path / "turned")
