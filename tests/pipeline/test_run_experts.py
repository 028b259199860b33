"""A run whose student has experts, with a method that knows nothing of them: it trains, is evaluated, loads, and says
how.
"""

from __future__ import annotations

import json

import numpy as np

from distilvec.core.run_folder import RunFolder
from distilvec.models.experts import Experts
from distilvec.models.load import load
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student


def test_a_run_with_experts(tiny_recipe, tmp_path, capsys, forked_modules, shared_cache):
    rows = [
        {"sentence1": f"text {i} of rows", "sentence2": f"text {i * i % 7} of rows", "score": i % 5} for i in range(20)
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "suite.yaml").write_text("- {name: sts, type: sts, path: sts.jsonl}\n")
    recipe = tiny_recipe(
        student__experts={"width": 24},
        evaluation__suite=str(tmp_path / "suite.yaml"),
        evaluation__parts=["speed"],
        evaluation__speed_batches=[1, 2],
    )
    result = run(recipe, tmp_path / "run")
    assert result.validation["distance"] < result.validation["untrained_distance"]
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    assert report["failures"] == [] and not [
        note for note in report["speed"]["notes"] if "student" in note and "could not" in note
    ]
    assert report["speed"]["models"]["student"]["memory_mb"] > 0 and result.record.student.experts["width"] == 24
    page = result.page.read_text()
    assert "distilvec.load(" in page and "SentenceTransformer(" not in page
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    assert "trust_remote_code=True" in card and "distilvec.load(" in card
    student, untrained = (
        load(tmp_path / "run" / "student", device="cpu"),
        untrained_student(resolve(recipe, tmp_path / "other")),
    )
    assert isinstance(student[2], Experts) and np.isfinite(student.encode("a text")).all()
    assert not np.allclose(student[2].up.weight.detach(), untrained[2].up.weight.detach()), "the experts were trained"
