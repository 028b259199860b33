"""Experts in a report: gates against the model's own, groups of texts, bins of length, whole runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from labelled import write_task
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.core.task_head import TaskInfo
from distilvec.data.examples import Labelled
from distilvec.evaluation.diagnostics import (
    ExpertsReport,
    Group,
    experts_report,
    labelled_groups,
    run_mixture,
    sample,
    task_groups,
)
from distilvec.evaluation.tasks import ClassificationTask, StsTask, make_retrieval
from distilvec.pipeline.run import run
from distilvec.report.json_values import from_json, to_json
from distilvec.report.values import Report
from distilvec.report.write import draw_report
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.model_embedder import ModelEmbedder
from tests.architectures import TEXTS
from tests.samples import make_texts

pytestmark = pytest.mark.usefixtures("shared_cache")


@pytest.fixture(scope="module")
def student(tiny_model):
    section = StudentSection(model=str(tiny_model), layers=2, experts=ExpertsSection(count=3, width=16))
    model = build_student(section, TeacherInfo(32, True, 128), seed=0)
    with torch.no_grad():
        next(module for module in model if type(module).__name__ == "Experts").gate.weight.mul_(5)  # gates that differ
    return ModelEmbedder(model, "student", prompts={"query": "query: ", "document": ""})


# -- what is measured -------------------------------------------------------------------------------------------------


def test_gates_outputs_and_lengths_are_the_models_own(student):
    texts = [*TEXTS, ("a pair", "of texts")]
    found = run_mixture(student.model, texts)
    for number, text in enumerate(texts):
        tokens = student.model.tokenizer(*(text if isinstance(text, tuple) else (text,)), return_tensors="pt")
        with torch.no_grad():
            own = Encoder(student.model).eval()(
                TextBatch(torch.arange(1), dict(tokens), torch.zeros(1, dtype=torch.long)),
                OutputSpec(experts=True, vector=True),
            )
        torch.testing.assert_close(found.gates[number], own.gates[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.outputs[number], own.experts[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.mixed[number], own.vector[0], atol=1e-4, rtol=1e-4)
        assert found.lengths[number] == tokens["input_ids"].shape[1]


def test_a_group_is_read_behind_its_prompt(student):
    one, other = (experts_report(student, [Group("texts", TEXTS, role)]).gates for role in ("query", "document"))
    behind = experts_report(student, [Group("texts", [f"query: {text}" for text in TEXTS])]).gates
    assert one == behind != other


def test_groups_and_lengths_hold_every_text_once(student):
    groups = [
        Group("short", make_texts(30)),
        Group("long", [" ".join(make_texts(12, seed)) for seed in range(20)]),
        Group("empty", [" "]),
    ]
    found = experts_report(student, groups)
    assert [(row.name, row.rows) for row in found.groups] == [("short", 30), ("long", 20)] and found.rows == 50
    assert sum(row.rows for row in found.lengths) == 50
    lengths = run_mixture(student.model, [text for group in groups[:2] for text in sample(group, 100)]).lengths
    for row in found.lengths:
        assert row.rows == sum(row.first <= length <= row.last for length in lengths)
    weighed = sum(row.rows * np.array(row.gates) for row in found.groups) / 50
    np.testing.assert_allclose(weighed, found.gates, atol=1e-4)
    np.testing.assert_allclose(sum(found.gates), 1, atol=1e-4)
    assert np.shape(found.cosines) == (3, 3) and np.allclose(np.diag(found.cosines), 1)
    assert from_json(ExpertsReport, to_json(found)) == found


def test_without_experts_or_texts_there_is_nothing(student, tiny_model):
    assert (
        experts_report(
            ModelEmbedder(SentenceTransformer(str(tiny_model), device="cpu"), "plain"), [Group("texts", TEXTS)]
        )
        is None
    )
    assert experts_report(student, []) is None and experts_report(student, [Group("blank", [" "])]) is None
    alone = build_student(
        StudentSection(model=str(tiny_model), layers=2, experts=ExpertsSection(count=1, width=16)),
        TeacherInfo(32, True, 128),
        seed=0,
    )
    assert experts_report(ModelEmbedder(alone, "one expert"), [Group("texts", TEXTS)]) is None


def test_samples_are_drawn_by_seed_without_repeats():
    group = Group("texts", [*make_texts(50), *make_texts(50), "", ("a", "b")])
    assert sample(group, 9) == sample(group, 9) and len(set(sample(group, 99))) == 51 and len(sample(group, 9)) == 9


def test_groups_of_tasks_and_of_classes():
    sts = StsTask("sts", ["a", "b"], ["c", "d"], np.array([1.0, 2.0]), role="query")
    classes = ClassificationTask("classes", ["x"], ["1"], ["y", "z"], ["1", "2"])
    search = make_retrieval("search", {"1": "document"}, {"2": "query"}, {("2", "1"): 1.0})
    found = [(group.name, list(group.texts), group.role) for group in task_groups([sts, classes, search])]
    assert found == [
        ("sts", ["a", "b", "c", "d"], "query"), ("classes", ["y", "z"], "document"), ("search, queries", ["query"], "query"),  # noqa: E501
        ("search, documents", ["document"], "document"),
    ]  # fmt: skip

    class Examples:
        name, classes, info = "intents", ["no", "yes"], TaskInfo("classification", 2)

    test = Labelled([("a", "b"), ("c", "d"), ("e", "f")], np.array([1, 0, 1]))
    groups = labelled_groups(Examples, test)
    assert [(group.name, group.texts) for group in groups] == [
        ("intents: no", ["c", "d"]),
        ("intents: yes", ["a", "b", "e", "f"]),
    ]
    Examples.classes = [str(number) for number in range(13)]
    (whole,) = labelled_groups(Examples, test)
    assert (whole.name, whole.texts) == ("intents, test split", ["a", "b", "c", "d", "e", "f"])


# -- whole runs -------------------------------------------------------------------------------------------------------

EXPERTS = {"student__experts": {"count": 3, "width": 16}, "evaluation__parts": ["experts"]}


def test_a_run_with_a_suite_shows_its_experts(tiny_recipe, tmp_path, no_pages, figures):
    rows = [
        {"sentence1": one, "sentence2": two, "score": number % 5}
        for number, (one, two) in enumerate(zip(make_texts(40), make_texts(40, 1), strict=True))
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "suite.yaml").write_text("- {name: graded, type: sts, path: sts.jsonl}\n", encoding="utf-8")
    recipe = tiny_recipe(
        **EXPERTS,
        evaluation__suite=str(tmp_path / "suite.yaml"),
        evaluation__columns=["teacher", "student", "untrained"],
    )
    run(recipe, tmp_path / "run")
    found = json.loads(RunFolder(tmp_path / "run").report.read_text(encoding="utf-8"))
    assert [row["name"] for row in found["experts"]["groups"]] == ["graded"]
    own = from_json(Report, {part: found[part] for part in ("experts", "history")})
    page = draw_report(RunFolder(tmp_path / "run"), own).read_text(encoding="utf-8")
    names = {path.stem for path in RunFolder(tmp_path / "run").figures.glob("*.svg")}
    assert {"experts_gates", "experts_training"} <= names
    assert '<section id="experts"' in page and "gate-table" in page
    before = {path.name: path.read_bytes() for path in RunFolder(tmp_path / "run").figures.glob("*.svg")}
    draw_report(RunFolder(tmp_path / "run"), own)
    assert before == {path.name: path.read_bytes() for path in RunFolder(tmp_path / "run").figures.glob("*.svg")}, (
        "it can be redrawn"
    )


@pytest.mark.parametrize("encode", ["joint", "separate"])
def test_a_labelled_run_without_a_suite_shows_its_experts_by_class(tiny_recipe, tmp_path, encode, no_pages):
    tree = tiny_recipe(**EXPERTS, train__max_steps=3, method__name="task").model_dump(mode="json")
    path = write_task(tmp_path / "pair.jsonl", "pair")
    task = {"type": "pair", "path": str(path), "encode": encode}
    recipe = recipes.validate(tree | {"corpus": None, "task": task})
    found = json.loads(run(recipe, tmp_path / "run").files.report.read_text(encoding="utf-8"))
    assert [row["name"] for row in found["experts"]["groups"]] == ["pair: 0", "pair: 1"] and found["failures"] == []
    assert found["speed"] is None


def test_a_run_without_experts_has_an_empty_part(tiny_recipe, tmp_path, no_pages):
    path = write_task(tmp_path / "pair.jsonl", "classification")
    tree = tiny_recipe(train__max_steps=2, method__name="task", evaluation__parts=["experts"]).model_dump(mode="json")
    recipe = recipes.validate(tree | {"corpus": None, "task": {"type": "classification", "path": str(path)}})
    found = json.loads(run(recipe, tmp_path / "run").files.report.read_text(encoding="utf-8"))
    assert found["experts"] is None and found["measured"] == ["overlap", "supervised", "experts"]
