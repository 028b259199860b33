"""The judgement without labels of whole runs, against vectors of the models themselves."""

from __future__ import annotations

import json
from types import SimpleNamespace

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from samples import make_texts

from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.overlap import Judgement, overlap_by_query
from distilvec.evaluation.text_distances import row_batches
from distilvec.models.load import load
from distilvec.pipeline import judgement, parts
from distilvec.pipeline.judgement import CANDIDATES, LEAST, TOKENS, draw_rows
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.start import read_start
from distilvec.report.json_values import from_json
from distilvec.report.verdicts import overlap_sentence
from distilvec.verbs.plan.plan import make_plan


def judged(result):
    return result.record.overlap


def by_hand(job, model, rows):
    """Shares alone and among the teacher's vectors, from `encode` of both models."""
    asked, searched = job.corpus.stored(rows.queries), job.corpus.stored(rows.candidates)
    teacher = load(job.teacher.info.model, device="cpu")
    theirs, own = teacher.encode(searched), model.encode(searched)
    vectors = (teacher.encode(asked), theirs, model.encode(asked))
    return [overlap_by_query(*vectors, candidates).mean() for candidates in (own, theirs)]


def test_a_run_without_a_suite_ends_with_a_judgement_and_a_page(tiny_recipe, tmp_path, shared_cache):
    """Start and student, alone and among the teacher's vectors: the same numbers in report, record, card and page."""
    job = resolve(tiny_recipe(train__epochs=2), tmp_path / "run")
    result = run(job.recipe, job.folder)
    found = judged(result)
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    assert from_json(Judgement, report["overlap"]) == found and report["verdict"]["text"] == overlap_sentence(found)
    rows = draw_rows(job, SimpleNamespace(lengths=np.full(len(job.corpus), 10)))
    assert (found.queries, found.query_origins, found.candidates, found.texts) == (32, 32, 136, 200)
    assert set(rows.queries) == set(job.corpus.holdout_rows.tolist()) and set(rows.every) == {*range(200)}
    for shares, model in ((found.student, result.student), (found.start, read_start(job).student(job))):
        alone, among = by_hand(job, model, rows)
        assert shares.alone.mean == pytest.approx(alone, abs=0.01)  # the cache has float16 vectors
        assert shares.among.mean == pytest.approx(among, abs=0.01)
    assert found.gain.among.mean == pytest.approx(found.student.among.mean - found.start.among.mean)
    assert found.trained.among.mean > 0 and found.sources == () and found.cosine > 0.1
    page, card = result.page.read_text(), (tmp_path / "run" / "student" / "README.md").read_text()
    first = overlap_sentence(found).partition(" among")[0]
    assert first[1:] in page.replace("&#39;", "'") and f"It {overlap_sentence(found)}. " in card


def test_no_text_is_embedded_twice(tiny_recipe, tmp_path, no_pages, shared_cache, monkeypatch):
    """Distances text by text are of the judgement's vectors; a later evaluation, without these, finds the same."""
    embedded = []

    def counted(corpus, rows, embedder):
        embedded.append((embedder.name, len(rows)))
        return row_batches(corpus, rows, embedder)

    monkeypatch.setattr(judgement, "row_batches", counted)
    recipe = tiny_recipe(train__max_steps=2, evaluation__parts=["texts"])
    found = run(recipe, tmp_path / "run").report.texts
    assert embedded == [("the student before training", 200), ("student", 200)]

    with monkeypatch.context() as patched:
        patched.setattr(parts, "texts_part", lambda models: 1 / 0)
        assert run(recipe, tmp_path / "later").report.texts is None
    embedded.clear()
    later = run(recipe, tmp_path / "later").report.texts
    assert embedded == [("student", 32), ("student", 168)]
    assert (later.mean, later.trained.mean) == pytest.approx((found.mean, found.trained.mean), abs=1e-5)
    assert {text.text for text in later.worst} == {text.text for text in found.worst}


def test_a_student_with_a_space_of_its_own_is_judged_alone(tiny_recipe, tmp_path, no_pages, shared_cache):
    result = run(tiny_recipe(method__name="rkd", train__max_steps=2), tmp_path / "run")
    found = judged(result)
    assert found.student.among is found.start.among is found.cosine is None and 0 < found.student.alone.mean < 1
    assert "with its own vectors" in result.verdict.text
    assert "**Teacher-compatible: no.** It finds" in (tmp_path / "run" / "student" / "README.md").read_text()


def test_a_live_teacher_embeds_the_judged_texts(tiny_recipe, tmp_path, no_pages, shared_cache):
    cached = judged(run(tiny_recipe(train__max_steps=2), tmp_path / "cached"))
    live = judged(run(tiny_recipe(train__max_steps=2, teacher__live=True), tmp_path / "live"))
    assert live.student.among.mean == pytest.approx(cached.student.among.mean, abs=0.02)


def test_a_table_of_any_length_is_searched_by_the_stated_similarity(tiny_recipe, tiny_model, tmp_path, no_pages):
    """Its student states the same similarity, on the disk too."""
    texts, random = make_texts(200), np.random.default_rng(0)
    vectors = random.normal(size=(200, 20)) * random.uniform(0.2, 5, size=(200, 1))
    table = pa.table({"text": texts, "teacher_embedding_final": list(vectors.astype(np.float32))})
    pq.write_table(table, tmp_path / "vectors.parquet")
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    given = {"student": {"model": str(tiny_model), "layers": 2}, "train__max_steps": 2}
    shares = {}
    for similarity in ("dot", "cosine"):
        teacher = {"vectors": str(tmp_path / "vectors.parquet"), "similarity": similarity}
        result = run(tiny_recipe(teacher=teacher, **given), tmp_path / similarity)
        found = judged(result)
        assert found.similarity == similarity == result.record.teacher.similarity
        assert load(tmp_path / similarity / "student", device="cpu").similarity_fn_name == similarity
        job = resolve(tiny_recipe(teacher=teacher, **given), tmp_path / similarity)
        rows = draw_rows(job, SimpleNamespace(lengths=np.full(200, 10)))
        asked, searched = job.corpus.stored(rows.queries), job.corpus.stored(rows.candidates)
        queries, known = (vectors[[texts.index(text) for text in some]] for some in (asked, searched))
        by_loop = overlap_by_query(queries, known, result.student.encode(asked), known, similarity, similarity)
        assert found.student.among.mean == pytest.approx(by_loop.mean(), abs=0.02)
        shares[similarity] = found.student.among.mean
    assert abs(shares["dot"] - shares["cosine"]) > 0.02


def test_languages_have_rows_of_their_own(tiny_recipe, tmp_path, no_pages):
    sources = []
    for seed, language in ((1, "tr"), (2, "de")):
        path = tmp_path / f"{language}.txt"
        path.write_text("\n".join(make_texts(150, seed=seed)))
        sources.append({"path": str(path), "language": language})
    recipe = tiny_recipe(corpus={"sources": sources, "validation_rows": 96}, train__max_steps=2)
    found = judged(run(recipe, tmp_path / "run"))
    assert {source.name for source in found.sources} == {"tr", "de"}
    assert sum(source.queries for source in found.sources) == found.queries == 60  # a fifth of 300
    means = [source.queries * source.shares.among.mean for source in found.sources]
    assert sum(means) / 60 == pytest.approx(found.student.among.mean)


def corpus_of(rows, held_out, **changes):
    parts = {"holdout_rows": np.arange(held_out), "train_rows": np.arange(held_out, rows), "origins": np.arange(rows)}
    corpus = type("Corpus", (), {"__len__": lambda self: rows, **parts})()
    return SimpleNamespace(corpus=corpus, examples=None, **changes)


@pytest.mark.parametrize(
    ("rows", "held_out", "length", "candidates", "queries"),
    [
        (40_000, 4_096, 20, CANDIDATES, 500),
        (40_000, 4_096, 200, TOKENS // 200, 500),
        (40_000, 4_096, 500, TOKENS // 500, 200),  # at most a fifth
        (40_000, 4_096, 8_000, LEAST, 40),
        (2_000, 100, 20, 1_800, 100),
        (50, 10, 20, 32, 10),
    ],
)
def test_long_texts_are_fewer(rows, held_out, length, candidates, queries):
    """No model reads more than half a million tokens, but for two hundred texts."""
    found = draw_rows(corpus_of(rows, held_out), SimpleNamespace(lengths=np.full(rows, length)))
    assert (len(found.candidates), len(found.queries)) == (candidates, queries)
    assert len(set(found.every.tolist())) == len(found.every), "no text twice"
    assert (found.queries < held_out).all()
    assert (found.trained >= held_out).all() and len(found.trained) == min(queries, (rows - held_out) // 5)
    again = draw_rows(corpus_of(rows, held_out), SimpleNamespace(lengths=np.full(rows, length)))
    assert again.every.tolist() == found.every.tolist()


def test_neighbours_of_a_piece_are_of_other_texts(tiny_recipe, tmp_path, shared_cache):
    """Held-out queries, and trained ones, have no piece of their own text among what is searched."""
    path = tmp_path / "long.txt"
    words = [f"{text} {number}." for number, text in enumerate(make_texts(1200))]
    path.write_text("\n".join(" ".join(words[start : start + 6]) for start in range(0, 1200, 6)))
    sources = [{"path": str(path)}, {"path": str(path), "name": "pieces", "pieces": 80}]
    job = resolve(tiny_recipe(corpus={"sources": sources}), tmp_path / "run")
    corpus, rows = job.corpus, draw_rows(job, SimpleNamespace(lengths=np.full(10_000, 10)))
    queries, trained, candidates = (
        set(corpus.origins[part].tolist()) for part in (rows.queries, rows.trained, rows.candidates)
    )
    assert len(queries) == len(set(corpus.origins[corpus.holdout_rows].tolist())) and len(rows.queries) > len(queries)
    assert not queries & candidates and not trained & candidates and not queries & trained
    assert set(rows.trained) <= set(corpus.train_rows) and set(rows.queries) <= set(corpus.holdout_rows)


def test_too_few_texts_and_no_teacher_have_no_judgement(tiny_recipe, tmp_path, shared_cache, monkeypatch):
    assert draw_rows(corpus_of(15, 5), SimpleNamespace(lengths=np.full(15, 9))) is None
    job = resolve(tiny_recipe(), tmp_path / "run")
    assert "judgement" in dict(make_plan(job).lines)
    object.__setattr__(job, "required", OutputSpec())
    assert judgement.judge_run(job) is None


def test_the_plan_says_rows_tokens_and_time(tiny_recipe, tmp_path, shared_cache):
    row = dict(make_plan(resolve(tiny_recipe(), tmp_path / "run")).lines)["judgement"]
    assert row.startswith("32 validation texts, searched for among 136 others: ") and "about " in row
    assert "by the student before and after training" in row


def test_a_judgement_that_fails_is_named_and_the_run_is_kept(
    tiny_recipe, tmp_path, shared_cache, no_pages, monkeypatch
):
    from distilvec.core.errors import DistilvecError

    def fail(job):
        raise DistilvecError("the server is down.", "Try again.", key="teacher.api")

    monkeypatch.setattr("distilvec.pipeline.evaluate.judge_run", fail)
    result = run(tiny_recipe(train__max_steps=2), tmp_path / "run")
    assert [problem.task for problem in result.problems] == ["overlap"] and "down" in result.problems[0].message
    assert result.verdict.text == "not evaluated" and (tmp_path / "run" / "student").is_dir()


def test_a_teacher_with_prompts_and_roles(tiny_recipe, tmp_path, no_pages):
    """Queries and documents get the prompts that they have in training."""
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.bert(tmp_path / "backbone"))
    prompts = {"query": "lantern ", "document": "candle planet "}
    for name in ("query", "document"):
        (tmp_path / f"{name}.txt").write_text("\n".join(make_texts(100, seed=len(name))))
    sources = [{"path": str(tmp_path / f"{name}.txt"), "role": name} for name in prompts]
    recipe = tiny_recipe(
        teacher={"model": str(folder), "prompts": prompts},
        corpus={"sources": sources, "validation_rows": 32},
        train__max_steps=2,
    )
    job = resolve(recipe, tmp_path / "run")
    result = run(recipe, tmp_path / "run")
    rows = draw_rows(job, SimpleNamespace(lengths=np.full(200, 10)))
    teacher = load(folder, device="cpu")
    asked, searched = job.corpus.prompted(rows.queries), job.corpus.prompted(rows.candidates)
    theirs, ours = (model.encode(asked, prompt="") for model in (teacher, result.student))
    candidates = teacher.encode(searched, prompt="")
    expected = overlap_by_query(theirs, candidates, ours, candidates).mean()
    assert judged(result).student.among.mean == pytest.approx(expected, abs=0.02)
