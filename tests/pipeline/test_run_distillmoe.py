"""Runs of DistillMoE across tokenizers: from the cache of several layers' states, killed and resumed, saved, exported;
on texts alone.
"""

from __future__ import annotations

import json

import architectures
import numpy as np
import pytest
from interrupted import interrupt
from jobs import train
from labelled import write_task

from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.formats.onnx import OnnxEmbedder, export_onnx, parity
from distilvec.methods.distillmoe import FACETS
from distilvec.models.experts import Experts
from distilvec.models.load import load
from distilvec.pipeline.caches import open_cache
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.students.task_head import predict
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher
from distilvec.train.metrics import read_metrics

KEPT = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)
LAYERS, TERMS = 2, ("task", "moe", "diversity", "dynamic_cka")


@pytest.fixture
def distillmoe(tiny_recipe, tmp_path, monkeypatch):
    """A recipe with experts and another tokenizer on the student's side; call it with dotted changes."""
    monkeypatch.setattr(
        "distilvec.report.write.draw_report", lambda folder, found: None
    )  # pages have tests of their own
    backbone = architectures.xlm_roberta(tmp_path / "backbone", num_hidden_layers=LAYERS)
    config = json.loads((backbone / "config.json").read_text())
    student = {
        "config": {key: config[key] for key in KEPT},
        "tokenizer": str(backbone),
        "max_length": 64,
        "experts": {"width": 24},
    }
    fixed = {"evaluation__columns": ["student"], "train__logging_steps": 1}
    method = {"name": "distillmoe", "options": {"layers": LAYERS}}

    def make(**changes):
        return tiny_recipe(**{"student": student, "method": method, **fixed, **changes})

    return make


def labelled(make, tmp_path, **changes):
    """The same on a small task in place of the texts."""
    recipe = make(**changes)
    path = write_task(tmp_path / "task.jsonl", "classification", 120, 30)
    tree = {**recipe.model_dump(mode="json"), "corpus": None, "task": {"type": "classification", "path": str(path)}}
    return type(recipe).model_validate(tree)


def series(folder, name):
    return [line[f"train/{name}"] for line in read_metrics(RunFolder(folder).metrics) if f"train/{name}" in line]


def weights(folder):
    return [(folder / "student" / name / "model.safetensors").read_bytes() for name in ("", "2_Experts")]


def test_it_trains_from_the_cache_resumes_and_ships_its_experts(distillmoe, tmp_path, monkeypatch):
    recipe = labelled(distillmoe, tmp_path, train__checkpoint_steps=3, train__epochs=2)
    job = resolve(recipe, tmp_path / "run")
    result = run(job.recipe, job.folder)
    names = ["loss", *(f"loss_{term}" for term in TERMS), *(f"facet_{facet}" for facet in FACETS), "kept_tokens"]
    found = {name.removeprefix("loss_"): np.array(series(tmp_path / "run", name)) for name in names}
    assert all(len(values) and np.isfinite(values).all() for values in found.values())
    assert found["dynamic_cka"].min() > 0.001 and (found["kept_tokens"] >= 1).all()
    mixed = 0.5 * found["task"] + 0.5 * (0.8 * (found["moe"] + found["diversity"]) + 0.2 * found["dynamic_cka"])
    np.testing.assert_allclose(found["loss"], mixed, rtol=1e-4)
    assert found["moe"][-3:].mean() < found["moe"][:3].mean()
    summary = json.loads(RunFolder(tmp_path / "run").record.read_text())["method"]["summary"]
    assert summary.startswith("Learns facets of the teacher's vectors")  # of the docstring
    cache = TeacherCache.open(open_cache(job, job.teacher).folder)
    assert list(cache.signals) == ["embedding", "hidden", "hidden-2"] and cache.verify() == []

    def look(loop):
        assert isinstance(loop.data.teacher, CachedTeacher)

    second = resolve(recipe, tmp_path / "again")
    interrupt(second, 7, monkeypatch, look, train)
    assert train(second).state.finished
    assert weights(tmp_path / "again") == weights(tmp_path / "run")

    folder, rows = (
        tmp_path / "run" / "student",
        [json.loads(line) for line in (tmp_path / "task.jsonl").read_text().splitlines()][120:],
    )
    student, texts = load(folder, device="cpu"), [row["text"] for row in rows]
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Experts", "Normalize"]
    assert isinstance(student[2], Experts) and student.encode(texts).shape == (30, 32)
    right = np.mean([answer == row["label"] for answer, row in zip(predict(folder, texts), rows, strict=True)])
    assert right == pytest.approx(result.record.supervised.scores["student"]["accuracy"])
    path = export_onnx(student, tmp_path / "student.onnx")
    assert parity(student, OnnxEmbedder(path), texts) < 1e-5


def test_a_live_teacher_gives_the_same_training(distillmoe, tmp_path, shared_cache):
    train(resolve(distillmoe(train__max_steps=4), tmp_path / "cached"))
    live = resolve(distillmoe(train__max_steps=4, teacher__live=True), tmp_path / "live")
    train(live)
    assert live.teacher.live
    for name in ("loss_moe", "loss_diversity", "loss_dynamic_cka"):
        np.testing.assert_allclose(
            series(tmp_path / "live", name), series(tmp_path / "cached", name), rtol=1e-2, atol=5e-4
        )


def test_without_dynamic_cka_vectors_are_enough(distillmoe, tmp_path):
    recipe = distillmoe(method__weights={"dynamic_cka": 0})
    job = resolve(recipe, tmp_path / "run")
    train(job)
    assert list(open_cache(job, job.teacher).signals) == ["embedding"] and not series(tmp_path / "run", "kept_tokens")
    assert len(series(tmp_path / "run", "loss_moe")) == 10


def test_out_of_domain_simcse_takes_the_place_of_labels(distillmoe, tmp_path, shared_cache):
    """Table 14: unlabelled texts, the backbone trained by unsupervised SimCSE; nothing held out but distances."""
    options = {"layers": LAYERS, "simcse": True}
    train(resolve(distillmoe(method__options=options, train__epochs=3), tmp_path / "run"))
    simcse, moe = (np.array(series(tmp_path / "run", f"loss_{name}")) for name in ("simcse", "moe"))
    assert len(simcse) == 30 and np.isfinite(simcse).all() and simcse.min() > 0
    assert simcse[-10:].mean() < simcse[:10].mean() and moe[-10:].mean() < moe[:10].mean()
    assert load(tmp_path / "run" / "student", device="cpu").encode("a text").shape == (32,)


def test_two_teachers_have_three_experts_each(distillmoe, tiny_model, tmp_path):
    other = architectures.sentence_transformer(
        tmp_path / "other", architectures.roberta(tmp_path / "roberta"), "mean dense:24 normalize"
    )
    two = {"more_teachers": [{"model": str(other), "weight": 2.0}]}
    with pytest.raises(DistilvecError, match=r"Set count: 6"):
        train(resolve(distillmoe(**two), tmp_path / "wrong"))
    job = resolve(distillmoe(**two, student__experts__count=6), tmp_path / "run")
    train(job)
    assert [list(open_cache(job, one).signals) for one in job.teachers] == [["embedding", "hidden", "hidden-2"]] * 2
    assert len(series(tmp_path / "run", "facet_pairwise_1")) == 10
    student = load(tmp_path / "run" / "student", device="cpu")
    assert student[2].experts == 6 and np.isfinite(student.encode("a text")).all()


def test_manual_weights_leave_a_plain_student(distillmoe, tmp_path, shared_cache):
    manual = {"layers": LAYERS, "manual": [0.3, 0.3, 0.3]}
    recipe = labelled(distillmoe, tmp_path, student__experts=None, method__options=manual, train__max_steps=2)
    train(resolve(recipe, tmp_path / "run"))
    assert [type(module).__name__ for module in load(tmp_path / "run" / "student", device="cpu")] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    assert series(tmp_path / "run", "loss_moe") and not series(tmp_path / "run", "loss_diversity")


def test_labels_alone_train_residual_experts_and_a_deeper_head(distillmoe, tmp_path, shared_cache):
    """The method task through the same student: what the experts cost without any distillation."""
    recipe = labelled(distillmoe, tmp_path, method={"name": "task"}, train__epochs=2)
    tree = recipe.model_dump(mode="json")
    tree["student"] |= {"experts": {"width": 24, "residual": True}, "head": {"dropout": 0.1, "hidden": 8}}
    tree["train"]["learning_rate_factors"] = {"encoder.model.2.gate": 0.1, "encoder.model.2": 2}
    result = run(type(recipe).model_validate(tree), tmp_path / "run")
    folder = tmp_path / "run" / "student"
    rows = [json.loads(line) for line in (tmp_path / "task.jsonl").read_text().splitlines()][120:]
    student, texts = load(folder, device="cpu"), [row["text"] for row in rows]
    assert student[2].residual and student[2].down.detach().abs().max() > 0, "the experts have left their start"
    right = np.mean([answer == row["label"] for answer, row in zip(predict(folder, texts), rows, strict=True)])
    assert right == pytest.approx(result.record.supervised.scores["student"]["accuracy"])
    path = export_onnx(student, tmp_path / "student.onnx")
    assert parity(student, OnnxEmbedder(path), texts) < 1e-5
    alone = distillmoe().model_dump(mode="json")
    alone["student"]["head"] = {"hidden": 8}
    with pytest.raises(DistilvecError, match=r"^\[student.head\].* task"):
        resolve(type(recipe).model_validate(alone), tmp_path / "other")
