"""The report of a student with a tokenizer of its own: texts by language, a whole run and its page, runs without such a
student.
"""

from __future__ import annotations

import json

import architectures
import pytest
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import CorpusSection
from distilvec.core.run_folder import RunFolder
from distilvec.data.corpus import build_corpus
from distilvec.evaluation import diagnostics
from distilvec.evaluation.diagnostics import language_texts, vocabulary_report
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.vocabulary.compare import parameter_counts, text_statistics
from distilvec.vocabulary.pieces import Pieces

pytestmark = pytest.mark.usefixtures("shared_cache")

KEPT = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


@pytest.fixture
def sources(tmp_path):
    """Two files in one language, one in another, one that names none."""
    found = []
    for number, language in enumerate(["en", "tr", "en", None]):
        path = tmp_path / f"part{number}.txt"
        path.write_text("\n".join(f"{text} {number}" for text in make_texts(60, number)), encoding="utf-8")
        found.append({"path": str(path), **({"language": language} if language else {})})
    return found


@pytest.fixture
def other(tmp_path):
    """A student whose tokenizer is Unigram, beside a teacher with WordPiece."""
    backbone = architectures.xlm_roberta(tmp_path / "backbone", num_hidden_layers=2)
    config = json.loads((backbone / "config.json").read_text(encoding="utf-8"))
    return {"config": {key: config[key] for key in KEPT}, "tokenizer": str(backbone), "max_length": 24}


def test_texts_are_drawn_by_language_held_out_ones_first(sources, tmp_path, monkeypatch):
    corpus = build_corpus(
        CorpusSection(sources=sources, validation_rows=64), {"document": "passage: "}, tmp_path / "corpus"
    )
    found = language_texts(corpus)
    assert {name: len(texts) for name, texts in found.items()} == {"en": 120, "tr": 60, "part3": 60}
    assert set(found["tr"]) == set((tmp_path / "part1.txt").read_text(encoding="utf-8").splitlines())
    held_out = set(corpus.stored(corpus.holdout_rows))
    monkeypatch.setattr(diagnostics, "LANGUAGE_TEXTS", 20)
    few = language_texts(corpus)
    assert all(
        len(texts) == 20 and sorted(set(texts)) == sorted(texts) for texts in few.values()
    ) and few == language_texts(corpus)
    for name, texts in few.items():
        assert len(held_out & set(texts)) == min(20, len(held_out & set(found[name])))


def test_a_run_with_another_tokenizer_shows_what_it_changes(tiny_recipe, tiny_model, sources, other, tmp_path, figures):
    pairs = zip(make_texts(20), make_texts(20, 1), strict=True)
    rows = [{"sentence1": one, "sentence2": two, "score": place % 5} for place, (one, two) in enumerate(pairs)]
    (tmp_path / "sts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "suite.yaml").write_text("- {name: graded, type: sts, path: sts.jsonl}\n", encoding="utf-8")
    suite = {
        "evaluation__suite": str(tmp_path / "suite.yaml"),
        "evaluation__parts": ["vocabulary"],
        "evaluation__columns": ["teacher", "student"],
    }
    recipe = tiny_recipe(student=other, corpus={"sources": sources, "validation_rows": 32}, train__max_steps=3, **suite)
    job = resolve(recipe, tmp_path / "run")
    result = run(job.recipe, job.folder)
    report = json.loads(RunFolder(tmp_path / "run").report.read_text(encoding="utf-8"))
    found = report["vocabulary"]
    assert report["failures"] == [] and list(found["languages"]) == ["en", "tr", "part3"] and found["max_length"] == 24
    texts = language_texts(job.corpus)
    models = {"before": tiny_model, "after": tmp_path / "run" / "student"}
    for side, folder in models.items():
        model = SentenceTransformer(str(folder), device="cpu")
        for name, own in found["languages"].items():
            expected = text_statistics(Pieces(model.tokenizer), texts[name], 24)["mean_length"]
            assert own[side]["mean_length"] == pytest.approx(expected)
        assert found[side]["parameters"]["total"] == parameter_counts(model)["total"]
    page = result.page.read_text(encoding="utf-8")
    assert '<section id="vocabulary"' in page and "tokens per word, teacher" in page
    assert (RunFolder(tmp_path / "run").figures / "vocabulary.svg").exists()


def test_a_labelled_run_has_the_part_without_a_suite(tiny_recipe, other, tmp_path, monkeypatch):
    from labelled import write_task

    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    path = write_task(tmp_path / "pair.jsonl", "pair", 80, 20)
    tree = tiny_recipe(
        student=other, train__max_steps=2, method__name="task", evaluation__parts=["vocabulary"]
    ).model_dump(mode="json")
    recipe = recipes.validate(tree | {"corpus": None, "task": {"type": "pair", "path": str(path)}})
    found = json.loads(run(recipe, tmp_path / "run").files.report.read_text(encoding="utf-8"))
    (figures,) = found["vocabulary"]["languages"].values()
    assert figures["before"]["texts"] == 2 * 80 and found["failures"] == []  # both texts of every pair


def test_equal_tokenizers_and_what_cannot_be_compared_have_no_part(sources, tiny_model, tmp_path):
    corpus = build_corpus(CorpusSection(sources=sources, validation_rows=16), {}, tmp_path / "corpus")
    model = SentenceTransformer(str(tiny_model), device="cpu")
    student = ModelEmbedder(model, "student")
    assert vocabulary_report(ModelEmbedder(model, "teacher"), student, corpus) == {}
    assert vocabulary_report(None, student, corpus) == {}
    path = architectures.sentence_transformer(tmp_path / "other", architectures.roberta(tmp_path / "roberta"))
    teacher = ModelEmbedder(SentenceTransformer(str(path), device="cpu"), "teacher")
    found = vocabulary_report(teacher, student, corpus)
    assert found["names"] == {"before": "teacher", "after": "student"} and found["max_length"] == student.max_length
    assert json.loads(json.dumps(found)) == found
