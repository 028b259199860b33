"""`train.epochs: 0`: the student as it is fitted before the first step, and the training that goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.core.run_folder import RunFolder
from distilvec.models.load import load
from distilvec.models.parts import loses_space_unseen
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.report.next_step import next_step
from distilvec.train.metrics import read_metrics
from distilvec.verbs.plan.plan import make_plan
from distilvec.verbs.serve.model import ServedModel

pytestmark = pytest.mark.usefixtures("shared_cache", "no_pages")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A model of the tiny one's width with other weights, mean pooling and vectors of length 1."""
    folder = tmp_path_factory.mktemp("stranger")
    backbone = architectures.bert(folder / "backbone", seed=5)
    return architectures.sentence_transformer(folder / "model", backbone)


@pytest.fixture
def fitted(tiny_recipe, stranger):
    """A recipe without training, with changes."""

    def make(**changes):
        student = {"student__model": str(stranger), "student__layers": None}
        return tiny_recipe(**{**student, "train__epochs": 0, "train__learning_rate": None, **changes})

    return make


def test_the_student_is_its_model_behind_the_layer_of_least_squares(fitted, tiny_model, stranger, tmp_path):
    result = run(fitted(), tmp_path / "run")
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    texts = make_texts(200)
    own = torch.tensor(load(stranger, device="cpu").encode(texts))
    layer = next(module for module in student if type(module).__name__ == "Dense").linear
    expected = torch.nn.functional.normalize(own @ layer.weight.T, dim=-1)
    np.testing.assert_allclose(student.encode(texts), expected.detach(), atol=1e-5)

    training = result.record.training
    assert training.steps == 0 and training.fitted and "Fitted, not trained" in training.shipped
    assert result.validation["distance"] == result.validation["untrained_distance"] < 1
    assert result.record.overlap.start is None and "before training" not in result.verdict.text
    command = next_step(result.report).command
    assert command.startswith("distilvec run") and "train.epochs=auto" in command


def test_a_training_goes_on_from_it_and_fits_nothing_again(fitted, tmp_path, monkeypatch):
    before = run(fitted(), tmp_path / "run")
    fresh = run(fitted(train__epochs=2), tmp_path / "fresh")
    with monkeypatch.context() as patch:
        patch.setattr("distilvec.pipeline.start._find_start", lambda *arguments: pytest.fail("fitted again"))
        after = run(fitted(train__epochs=2), tmp_path / "run")
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    assert lines[0]["step"] == 0 and lines[-1]["step"] == after.record.training.steps > 0
    assert lines[0]["eval/distance"] == pytest.approx(before.validation["distance"], abs=1e-6)
    assert after.record.training.fitted is None and after.record.overlap.start is not None
    assert after.validation == fresh.validation, "as one command that trains from the beginning"

    with refused("--out", "train.epochs"):
        run(fitted(), tmp_path / "run")
    run(fitted(), tmp_path / "other")
    with refused("--out", "validation_rows"):
        run(fitted(train__epochs=2, corpus__validation_rows=20), tmp_path / "other")


def test_a_finished_run_without_training_is_opened(fitted, tmp_path, monkeypatch):
    first = run(fitted(), tmp_path / "run")
    monkeypatch.setattr("distilvec.pipeline.run.prepare", lambda job: pytest.fail("done again"))
    assert run(fitted(), tmp_path / "run").record == first.record


@pytest.mark.parametrize(
    "changes",
    [
        {"student__model": "teacher", "student__layers": 2},
        {"student__start": "random"},
        {"student__dense": "never"},
    ],
)
def test_it_is_refused_where_nothing_is_fitted(changes, fitted, tmp_path):
    with refused("train.epochs"):
        run(fitted(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fewer_tokens_narrower_and_chosen_layers_of_the_teacher_are_fitted(fitted, tmp_path):
    own = {"student__model": "teacher"}
    for name, changes in {
        "trimmed": {"student__vocabulary": {"kind": "trim"}},
        "narrow": {"student__intermediate_size": 16},
        "best": {"student__layers": {"count": 2, "choose": "best"}},
    }.items():
        result = run(fitted(**own, **changes), tmp_path / name)
        assert result.record.training.fitted and result.record.overlap is not None


def test_the_plan_counts_every_minute(fitted, tmp_path):
    rows = dict(make_plan(resolve(fitted(), tmp_path / "run")).lines)
    assert rows["start"].startswith("a linear layer, fitted to 168 texts")
    assert rows["training"] == "none (train.epochs=0)"
    measured = json.loads((Path(__file__).parents[2] / "results" / "fitted.json").read_text())["rows"]
    for name, row in {"all-MiniLM-L6-v2": measured["minilm"], "all-mpnet-base-v2": measured["mpnet"]}.items():
        shares = " to ".join(f"{row[when]['among'][0]:.2f}" for when in ("fitted", "trained"))
        assert f"{shares} for {name} at 5M" in rows["  60 seconds of it brought"], "an experiment's result, not a guess"
    assert "by the student: about" in rows["judgement"] and rows["in all"].startswith("about ")
    trained = dict(make_plan(resolve(fitted(train__epochs=2), tmp_path / "trained")).lines)
    assert "steps" in trained["training"] and trained["in all"].startswith("about ")


def test_an_equal_width_is_warned_of(fitted, tmp_path):
    """Software that leaves the layer out answers with vectors of the same width, which mean nothing here."""
    equal = run(fitted(), tmp_path / "equal")
    assert equal.record.student.loses_space_unseen
    card = (tmp_path / "equal" / "student" / "README.md").read_text()
    assert "**Load it whole.**" in card and "width of 32" in card
    assert ServedModel(str(tmp_path / "equal" / "student")).loses_space_unseen

    wide = architectures.sentence_transformer(
        tmp_path / "wide", architectures.bert(tmp_path / "backbone", seed=3), "mean dense:48 normalize"
    )
    other = run(fitted(teacher__model=str(wide)), tmp_path / "other")
    assert not other.record.student.loses_space_unseen
    assert "Load it whole" not in (tmp_path / "other" / "student" / "README.md").read_text()
    assert not loses_space_unseen(load(wide, device="cpu")), "32 to 48 dimensions"
    assert not ServedModel(str(tmp_path / "other" / "student")).loses_space_unseen


def test_an_old_index_gets_its_own_ranking_at_best(stranger, tiny_model, tmp_path):
    texts = make_texts(300)
    vectors = list(load(tiny_model, device="cpu").encode(texts))
    pq.write_table(pa.table({"text": texts, "embedding": vectors}), tmp_path / "dump.parquet")
    options = {"student": str(stranger), "overrides": {"train.device": "cpu"}}
    result = distilvec.distill(str(tmp_path / "dump.parquet"), epochs=0, out=tmp_path / "run", **options)
    assert result.record.overlap.origin == "index" and result.record.overlap.start is None
    said = " ".join(result.verdict.advice)
    assert "the ranking of the model that made the index" in said and "training has" not in said
    assert json.loads(RunFolder(tmp_path / "run").record.read_text())["training"]["fitted"] is True
