"""The parts of a report: those that failed are measured again, settings count, all models are on one device."""

from __future__ import annotations

import json

import architectures
import pytest
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline import evaluate as evaluation
from distilvec.pipeline import parts
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run

pytestmark = pytest.mark.usefixtures("shared_cache", "no_pages")


@pytest.fixture
def suite(tmp_path):
    texts = make_texts(40, seed=5)
    rows = []
    for number in range(20):
        first, second = texts[2 * number : 2 * number + 2]
        rows.append({"sentence1": first, "sentence2": second, "score": number % 6, "split": "test"})
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    path = tmp_path / "suite.yaml"
    path.write_text("- {name: sts, type: sts, path: sts.jsonl}\n")
    return str(path)


def fail(*args, **kwargs):
    raise DistilvecError("the server does not answer.", "Run the same command again.", key="teacher.api")


def failed_parts(result):
    return {problem.task for problem in result.problems}


def test_what_failed_for_a_minute_is_measured_by_the_same_command(tiny_recipe, suite, tmp_path, monkeypatch):
    recipe = tiny_recipe(evaluation__suite=suite, evaluation__parts=["compression"], train__max_steps=2)
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "judge_run", fail)
        patched.setattr(parts, "compression_part", fail)
        assert failed_parts(run(recipe, tmp_path / "run")) == {"overlap", "compression"}
        again = run(recipe, tmp_path / "run")
        assert sorted(problem.task for problem in again.problems) == ["compression", "overlap"], "each is named once"
    monkeypatch.setattr("distilvec.pipeline.evaluate.score_columns", lambda *a: pytest.fail("scored again"))
    result = run(recipe, tmp_path / "run")
    assert not result.problems
    assert result.record.overlap is not None and result.report.compression is not None
    monkeypatch.setattr(evaluation, "judge_run", lambda job: pytest.fail("judged again"))
    assert not run(recipe, tmp_path / "run").problems


def test_a_part_that_breaks_costs_no_run(tiny_recipe, suite, tmp_path, monkeypatch):
    """Whatever it raises: a model that cannot be moved, memory that is full."""

    def out_of_memory(models):
        raise RuntimeError("not enough memory: you tried to allocate 64 GB.")

    monkeypatch.setattr(parts, "compression_part", out_of_memory)
    result = run(
        tiny_recipe(evaluation__suite=suite, evaluation__parts=["compression"], train__max_steps=2), tmp_path / "run"
    )
    assert [str(problem.message) for problem in result.problems] == [
        "RuntimeError: not enough memory: you tried to allocate 64 GB."
    ]
    assert result.record.scores["student"]


def test_speed_beside_a_teacher_with_layers_on_the_disk(tiny_recipe, suite, tmp_path):
    folder = architectures.mistral(tmp_path / "teacher")
    places = dict.fromkeys(["embed_tokens", "rotary_emb", "norm", "layers.0", "layers.1", "layers.2"], "cpu")
    recipe = tiny_recipe(
        teacher={
            "model": str(folder),
            "pooling": "lasttoken",
            "normalize": True,
            "device_map": {**places, "layers.3": "disk"},
        },
        student={"model": str(architectures.bert(tmp_path / "student"))},
        evaluation={"suite": suite, "parts": ["speed"], "speed_seconds": 2},
        train__max_steps=2,
    )
    result = run(recipe, tmp_path / "run")
    assert not result.problems
    speed = result.report.speed
    assert set(speed.models) == {"student"} and "the teacher is not measured" in speed.notes[0]


def test_a_failure_that_an_earlier_version_kept_as_measured_is_measured_again(tiny_recipe, tmp_path):
    recipe = tiny_recipe(train__max_steps=2)
    run(recipe, tmp_path / "run")
    path = RunFolder(tmp_path / "run").report
    content = json.loads(path.read_text())
    del content["seal"], content["overlap"]
    assert "overlap" in content["measured"]
    content["failures"] = [{"task": "overlap", "message": "[teacher.api] the server does not answer."}]
    write_json(path, content, sealed=True)
    result = run(recipe, tmp_path / "run")
    assert result.report.overlap is not None and not result.problems


def test_a_task_that_cannot_be_scored_is_named_again_and_not_scored_again(
    tiny_recipe, suite, tmp_path, monkeypatch, shared_cache
):
    """Its failure belongs to scores that are measured."""
    recipe = tiny_recipe(evaluation__suite=suite, evaluation__columns=["student"], train__max_steps=2)
    with monkeypatch.context() as patched:
        patched.setattr("distilvec.evaluation.columns.score_task", fail)
        first = run(recipe, tmp_path / "run").problems
    assert [(problem.task, problem.column) for problem in first] == [("sts", "student")]
    monkeypatch.setattr("distilvec.pipeline.evaluate.score_columns", lambda *a: pytest.fail("scored again"))
    assert run(recipe, tmp_path / "run").problems == first


def test_all_models_are_on_the_device_of_the_training(tiny_recipe, suite, tmp_path, monkeypatch):
    columns = ["teacher", "untrained", "student", "projected"]
    recipe = tiny_recipe(evaluation__suite=suite, evaluation__columns=columns, method__name="talas", train__max_steps=2)
    run(recipe, tmp_path / "run")
    job = resolve(recipe, tmp_path / "run")
    moves = {}
    move = SentenceTransformer.to

    def to(model, device):
        moves[id(model)] = device
        return move(model, device)

    monkeypatch.setattr(SentenceTransformer, "to", to)
    monkeypatch.setattr(evaluation, "pick_device", lambda name: f"{name}:0")  # what a GPU would be to these tests
    with evaluation._models(job, evaluation.stored_report(job), None) as models:
        assert models.untrained is not None and models.projected is not None
        for embedder in (models.student, models.untrained, models.projected):
            assert moves[id(embedder.model)] == "cpu:0"


def test_saved_checkpoints_are_loaded_onto_the_device_of_the_others(tiny_recipe, suite, tmp_path, monkeypatch):
    devices = []
    load = parts.load_saved

    def load_saved(folder, device="cpu", *more):
        devices.append(device)
        return load(folder, device, *more)

    monkeypatch.setattr(parts, "load_saved", load_saved)
    monkeypatch.setattr(parts.Models, "device", property(lambda models: "cpu:0"))
    recipe = tiny_recipe(
        evaluation__suite=suite,
        evaluation__columns=["teacher", "student"],
        evaluation__parts=["margin"],
        train__keep_students=3,
        train__max_steps=6,
    )
    run(recipe, tmp_path / "run")
    assert len(devices) >= 3 and set(devices) == {"cpu:0"}
