"""Students behind the projection that their method trained: the model "projected", and its export."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from samples import make_texts
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.run import run
from distilvec.verbs.export.export import export_model

pytestmark = pytest.mark.usefixtures("shared_cache")
TEXTS = make_texts(40, seed=5)


@pytest.fixture
def finished(tiny_recipe, tmp_path):
    """Run a method on a suite of one STS task."""
    rows = [
        {"sentence1": a, "sentence2": b, "score": i % 6}
        for i, (a, b) in enumerate(zip(TEXTS[::2], TEXTS[1::2], strict=True))
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "suite.yaml").write_text("- {name: sts, type: sts, path: sts.jsonl}\n")

    def make(method, **changes):
        recipe = tiny_recipe(
            method__name=method, train__max_steps=4, evaluation__suite=str(tmp_path / "suite.yaml"), **changes
        )
        return recipe, run(recipe, tmp_path / method)

    return make


def behind(folder, method, vectors):
    """Vectors [texts, dim] of the shipped student behind the saved projection, by the methods' own formulas."""
    saved = load_file(RunFolder(folder).objective("student"))
    if method == "talas":
        (last,) = [saved[name] for name in saved if name == "anchors.2.weight"]
        return vectors @ last.numpy().T
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit * vectors.shape[1] ** 0.5 @ saved["projection.weight"].numpy().T + saved["projection.bias"].numpy()


@pytest.mark.parametrize("method", ["talas", "distilcse_ckd"])
def test_the_student_is_scored_both_ways(finished, method, monkeypatch):
    if method != "talas":  # one page is enough
        monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    recipe, result = finished(method)
    assert list(result.scores) == ["teacher", "untrained", "student", "projected"]
    student = SentenceTransformer(str(result.folder / "student"), device="cpu")
    vectors = behind(result.folder, method, student.encode(TEXTS))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.sum(unit[::2] * unit[1::2], axis=1)
    expected = 100 * spearmanr(cosines, [i % 6 for i in range(20)]).statistic
    assert result.scores["projected"][0].value == pytest.approx(expected, abs=1e-6)
    assert result.scores["projected"][0].value != pytest.approx(result.scores["student"][0].value, abs=1e-6)
    report = json.loads(result.files.report.read_text())
    assert set(report["intervals"]["projected"]) == {"sts", "average"}
    assert "projected" in (result.folder / "student/README.md").read_text()
    assert method != "talas" or "projected" in result.page.read_text()

    path = export_model(str(result.folder / "student"), "projected").path
    shipped = SentenceTransformer(str(path), device="cpu")
    assert path == result.folder / "projected" and np.allclose(shipped.encode(TEXTS), unit, atol=1e-5)
    assert {type(module).__name__ for module in shipped} == {"Transformer", "Pooling", "Dense", "Normalize"}
    record = json.loads((path / "distillation.json").read_text())
    assert record["teacher_compatible"] and record["student"]["dense"]
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    assert run(recipe, result.folder).scores == result.scores, "nothing is measured again"


def test_a_linear_layer_of_the_students_own_is_left_out(finished, no_pages):
    """W_L reads the vector before the student's linear layer."""
    _, result = finished("talas", student__dense="always", method__weights={"simcse": 0.1})
    student = SentenceTransformer(str(result.folder / "student"), device="cpu")
    pooled = SentenceTransformer(modules=list(student)[:2], device="cpu").encode(TEXTS)
    path = export_model(str(result.folder / "student"), "projected").path
    found = SentenceTransformer(str(path), device="cpu").encode(TEXTS)
    expected = torch.nn.functional.normalize(torch.from_numpy(behind(result.folder, "talas", pooled)), dim=1)
    assert np.allclose(found, expected.numpy(), atol=1e-5)


def test_what_has_no_projection(finished, tmp_path, no_pages):
    _, result = finished("redact", evaluation__columns=["student", "projected"])
    assert list(result.scores) == ["student"]
    with refused("--to", "'redact'"):
        export_model(str(result.folder / "student"), "projected")
    with refused("model"):
        export_model(str(tmp_path), "projected")
    _, without = finished("talas", method__weights={"tamd": 0, "simcse": 1})
    assert list(without.scores) == ["teacher", "untrained", "student"]
    _, less = finished("distilcse_ckd", evaluation__columns=["student"])
    assert list(less.scores) == ["student"]


def test_a_trained_student_is_never_replaced_by_an_export(finished, tmp_path, no_pages):
    _, result = finished("talas")
    student = result.folder / "student"
    before = {path: path.read_bytes() for path in student.rglob("*") if path.is_file()}
    for to in ("projected", "router"):
        with refused("--out"):
            export_model(str(student), to, out=student)
        with refused("--suite"):
            export_model(str(student), to, suite=tmp_path / "suite.yaml")
    assert {path: path.read_bytes() for path in student.rglob("*") if path.is_file()} == before
    for _ in range(2):
        assert export_model(str(student), "projected", out=tmp_path / "mine").path == tmp_path / "mine"
    with refused("--out"):
        export_model(str(student), "router", out=tmp_path / "mine")
