"""Runs on labelled tasks: they learn, resume the same, test, save a head that predicts, and take a fine-tuned teacher."""  # noqa: E501

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from jobs import train, training_data
from labelled import write_task
from refusals import refused
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from distilvec.cli.terminal import show_end
from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.data.tokens import TokenStore
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.objectives import make_objective
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.report.json_values import to_json
from distilvec.students.encoder import Encoder
from distilvec.students.task_head import load_head, predict, predict_logits
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer
from distilvec.verbs.plan.plan import make_plan

pytestmark = pytest.mark.usefixtures("shared_cache")

FRESH = {"model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 128}
CASES = {"classification": "joint", "pair": "joint", "sts": "separate"}


@pytest.fixture
def task_recipe(tiny_model, tmp_path):
    """A complete recipe on a small task; call it with the kind and dotted changes."""

    def make(kind, **changes):
        path = tmp_path / f"{kind}.jsonl"
        if not path.exists():
            write_task(path, kind)
        tree = {
            "name": f"tiny-{kind}",
            "teacher": {"model": str(tiny_model)},
            "student": {"model": "teacher", "layers": 2},
            "task": {"type": kind, "path": str(path), "encode": CASES[kind]},
            "method": {"name": "task"},
            "train": {
                "epochs": 20,
                "batch_size": 16,
                "learning_rate": 2e-3,
                "logging_steps": 5,
                "precision": "fp32",
                "device": "cpu",
            },
            "evaluation": {"speed_seconds": 0.01, "parts": []},
        }
        for key, value in changes.items():
            recipes.set_key(tree, key.replace("__", "."), value)
        return recipes.validate(tree)

    return make


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("kind", CASES)
def test_learns_tests_and_saves_a_head(kind, task_recipe, tiny_model, tmp_path, capsys, monkeypatch):
    if kind != "pair":  # one page is enough
        monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    fresh = {
        "config": {**FRESH, "hidden_size": 32, "intermediate_size": 64},
        "tokenizer": str(tiny_model),
        "dropout": 0.0,
    }
    fast = {"train__epochs": 8, "train__learning_rate": 5e-3}
    job = resolve(task_recipe(kind, student=fresh, **fast), tmp_path / "run")
    result = run(job.recipe, job.folder)
    monitored = "spearman" if kind == "sts" else "accuracy"
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    found = report["supervised"]
    figures = found["scores"]["student"]
    assert figures["pearson" if kind == "sts" else monitored] > 0.9, (
        figures
    )  # the scores have few values, so that ranks are ties
    assert found["rows"] == 60 and to_json(result.record.supervised) == found
    assert (report["mistakes"] is not None) == (kind != "sts")
    if kind != "sts":
        wrong = report["mistakes"]
        assert wrong["rows"] == 60 and 1 - wrong["wrong"] / 60 == pytest.approx(figures["accuracy"])
    assert result.scores["student"][0].value == 100 * found["scores"]["student"][result.scores["student"][0].metric]
    assert [score.metric for score in FinishedRun.open(tmp_path / "run").scores["student"]] == [monitored]
    assert FinishedRun.open(tmp_path / "run").samples("student", [found["task"]])[found["task"]].metric == monitored
    best = max(
        line[f"eval/{monitored}"]
        for line in read_metrics(RunFolder(tmp_path / "run").metrics)[1:]
        if f"eval/{monitored}" in line
    )
    assert result.validation[monitored] == best
    capsys.readouterr()
    show_end(result)
    first, *rest = capsys.readouterr().out.splitlines()
    number = f"{100 * figures[monitored]:.1f}"
    expected = f"Spearman {number} on 60 test rows" if kind == "sts" else f"{number}% right on 60 test rows"
    assert first.startswith(expected) and "teacher" not in first  # nothing was learned from one
    # an ONNX file gives the labels of single texts
    assert rest[-1].startswith(
        "next: distilvec " + ("export" if kind in ("classification", "multilabel") else "report")
    )
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    assert (
        "from distilvec import TaskModel" in card
        and ("predict_proba" in card) == (kind != "sts")
        and f"{100 * figures[monitored]:.2f}" in card
    )
    assert (result.page is not None) == (kind == "pair")
    if result.page is not None:
        page = result.page.read_text()
        assert f"tiny-{kind}" in page and "60 test examples" in page
        assert f"{monitored} on {found['task']}" in page
        assert "teacher: " not in page.partition("</header>")[0] and "than the teacher" not in page
    assert "eacher-compatible" not in card and "distilled from" not in card

    rows = [json.loads(line) for line in (tmp_path / f"{kind}.jsonl").read_text().splitlines()][240:]
    texts = [row["text"] if kind == "classification" else (row["sentence1"], row["sentence2"]) for row in rows]
    answers = predict(tmp_path / "run" / "student", texts)
    if kind == "sts":
        assert min(answers) >= -1.5 * 5 and np.corrcoef(answers, [row["score"] for row in rows])[0, 1] > 0.5
    else:
        right = np.mean([answer == str(row["label"]) for answer, row in zip(answers, rows, strict=True)])
        assert right == pytest.approx(figures["accuracy"])
    assert SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu").encode("a text").shape == (32,)


def test_fixed_batches_do_not_hide_examples_without_a_label(task_recipe, tmp_path):
    changes = {"method__name": "mined", "train__fixed_batches": True}
    with refused("train.fixed_batches", "task.labels"):
        run(task_recipe("classification", task__labels=40, **changes), tmp_path / "few")
    run(task_recipe("classification", **changes), tmp_path / "all")


def test_examples_without_a_label_take_part_in_distillation_alone(task_recipe, tmp_path):
    for name, others in {"task": 0, "mined": 40}.items():
        job = resolve(task_recipe("classification", task__labels=40, method__name=name), tmp_path / name)
        data, labeled = training_data(job), set(job.examples.labeled)
        passes = [data.pass_rows(epoch, 0) for epoch in range(30)]
        assert all(len(set(rows)) == len(rows) == 40 + others and labeled <= set(rows) for rows in passes)
        assert data.pass_rows(3, 0).tolist() == passes[3].tolist()
        assert len(set(np.concatenate(passes))) == (216 if others else 40), "the others take turns"


def test_the_saved_student_gives_pairs_the_vectors_of_training(task_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    job = resolve(task_recipe("pair", train__epochs=1, train__max_steps=4), tmp_path / "run")
    run(job.recipe, job.folder)
    model = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    data = training_data(job, model)
    assert isinstance(data.tokens, TokenStore) and data.tokens.seconds is not None
    batch = data.batch(data.train_rows[:12])
    assert batch.tokens["token_type_ids"].any() and len(batch.labels) == 12 and batch.texts_per_example == 1
    encoder = Encoder(model).eval()
    required = make_objective(job.stages[-1], job.context).student_outputs | OutputSpec(embedding=True)
    with torch.no_grad():
        ours = encoder(batch, required)
    pairs = data.corpus.texts(batch.rows.numpy())
    assert all(isinstance(pair, tuple) for pair in pairs)
    np.testing.assert_allclose(ours.embedding.numpy(), model.encode(pairs), atol=1e-5)
    head, _ = load_head(tmp_path / "run" / "student")
    plain = predict_logits(model, head, [(pair,) for pair in pairs])
    torch.testing.assert_close(head(ours.vector).detach(), plain.detach(), atol=1e-4, rtol=1e-4)


def test_resumes_the_same(task_recipe, tmp_path, monkeypatch):
    recipe = task_recipe("sts", train__max_steps=10, train__checkpoint_steps=3)
    train(resolve(recipe, tmp_path / "whole"))
    step = Trainer._step

    def stop(self, batches, index):
        step(self, batches, index)
        self.stop_asked = self.state.step == 7

    monkeypatch.setattr(Trainer, "_step", stop)
    with pytest.raises(DistilvecError, match="Run the same command again"):
        train(resolve(recipe, tmp_path / "parts"))
    monkeypatch.setattr(Trainer, "_step", step)
    train(resolve(recipe, tmp_path / "parts"))
    for name in ("details/last/model.safetensors", "student/model.safetensors"):
        whole, parts = (load_file(tmp_path / folder / name) for folder in ("whole", "parts"))
        assert all(torch.equal(whole[key], parts[key]) for key in whole)
    assert (tmp_path / "whole" / "student" / "head.json").exists()


def test_a_finished_run_is_not_tested_again(task_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    recipe = task_recipe("classification", train__max_steps=2)
    first = run(recipe, tmp_path / "run")
    monkeypatch.setattr("distilvec.pipeline.evaluate.supervised_report", lambda *arguments: pytest.fail("tested again"))
    assert run(recipe, tmp_path / "run").record.supervised == first.record.supervised


def test_a_plan_counts_examples(task_recipe, tmp_path):
    lines = dict(make_plan(resolve(task_recipe("sts"), tmp_path / "run")).lines)
    assert lines["examples"] == "240 (24 for validation)"
    assert "280 steps of 16" in lines["training"]


def test_the_method_needs_a_task(tiny_recipe, tmp_path):
    with pytest.raises(DistilvecError, match="task"):
        run(tiny_recipe(method__name="task"), tmp_path / "run")
    with pytest.raises(DistilvecError, match="does not train on labels"):
        recipe = tiny_recipe(method__name="redact").model_dump(mode="json")
        task = {"type": "pair", "path": str(write_task(tmp_path / "pair.jsonl", "pair"))}
        run(recipes.validate({**recipe, "corpus": None, "task": task}), tmp_path / "other")


def test_a_random_head_is_no_candidate_to_ship(task_recipe, tmp_path, no_pages):
    """Where training changes no prediction, the start is as good by its score; what it gets right is chance."""
    recipe = task_recipe("classification", train__learning_rate=1e-12, train__max_steps=2)
    training = run(recipe, tmp_path / "run").record.training
    assert training.best_step == 2 and training.shipped is None


def test_methods_that_compare_distributions_refuse_several_labels(task_recipe, tmp_path, no_pages):
    path = tmp_path / "classification.jsonl"
    single = task_recipe("classification")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lists = [{**row, "label": [row["label"], "a text"]} for row in rows]
    path.write_text("\n".join(map(json.dumps, lists)))
    several = single.model_dump(mode="json")
    several["task"]["type"] = "multilabel"
    several["train"]["max_steps"] = 2
    teacher = run(recipes.validate(several), tmp_path / "teacher")
    assert "f1" in teacher.validation and teacher.record.supervised.scores["student"]["f1"] > 0.3
    several["teacher"]["model"] = str(tmp_path / "teacher" / "student")
    several["method"] = {"name": "uld"}
    with refused("task.type"):
        resolve(recipes.validate(several), tmp_path / "run")


def test_a_fitted_head_is_a_candidate_to_ship(task_recipe, tmp_path, no_pages):
    changes = {"student__head": {"start": "logistic"}, "train__learning_rate": 1e-12, "train__max_steps": 2}
    training = run(task_recipe("classification", **changes), tmp_path / "run").record.training
    assert training.best_step == 0 and "logistic regression" in training.shipped
    with refused("student.head.start", "scores"):
        run(task_recipe("sts", **changes), tmp_path / "scores")


def test_a_fine_tuned_teacher_gives_logits_in_bfloat16(task_recipe, tmp_path, monkeypatch):
    """On any processor, whatever `auto` takes there; its head and what follows the backbone are in float32."""
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    run(task_recipe("classification", train__max_steps=2), tmp_path / "teacher")
    changes = {"teacher__model": str(tmp_path / "teacher" / "student"), "train__max_steps": 2}
    scores = {}
    for dtype in ("float32", "bfloat16"):
        result = run(task_recipe("classification", teacher__dtype=dtype, **changes), tmp_path / dtype)
        scores[dtype] = result.record.supervised.scores["teacher"]["accuracy"]
    assert scores["bfloat16"] == pytest.approx(scores["float32"], abs=0.1)


def test_a_fine_tuned_teacher_has_logits_and_the_same_classes(task_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    run(task_recipe("classification", train__max_steps=2), tmp_path / "teacher")
    teacher = str(tmp_path / "teacher" / "student")
    job = resolve(task_recipe("classification", teacher__model=teacher, train__max_steps=2), tmp_path / "run")
    assert job.teacher.head is not None
    found = run(job.recipe, job.folder).record.supervised.scores
    assert set(found) == {"teacher", "student"}
    other = write_task(tmp_path / "other.jsonl", "classification")
    other.write_text(other.read_text().replace("about ocean", "of the ocean"))
    changes = {"teacher__model": teacher, "task__path": str(other)}
    with pytest.raises(DistilvecError, match="about desert.*of the ocean"):
        run(task_recipe("classification", method__name="mined", **changes), tmp_path / "third")
    with pytest.raises(DistilvecError, match="fine-tuned for classification.*is pair"):
        run(task_recipe("pair", method__name="mined", teacher__model=teacher), tmp_path / "fourth")
    # A method that asks a teacher nothing trains on the other labels, with a head of its own
    job = resolve(task_recipe("classification", train__max_steps=2, **changes), tmp_path / "fifth")
    assert job.teacher.head is None
