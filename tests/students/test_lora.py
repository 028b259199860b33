"""Adapters: they change nothing at first, train alone, merge exactly, leave small checkpoints and resume the same."""

from __future__ import annotations

import pytest
import torch
from labelled import write_task
from refusals import refused
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.student import LoraSection, StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.run import run
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.lora import add_adapters, base_weights, merged
from distilvec.train.trainer import Trainer

TEXTS = ["a text", "another text about stones", "Documents are longer."]


@pytest.fixture
def student(tiny_model):
    return build_student(
        StudentSection(model="teacher", layers=2), TeacherInfo(32, True, 64, model=str(tiny_model)), seed=0
    )


def test_adapters_begin_without_effect_and_merge_exactly(student):
    plain, names = student.encode(TEXTS), set(student.state_dict())
    assert merged(student) is student and not base_weights(student)
    add_adapters(student, LoraSection(r=4, alpha=8, dropout=0.1), seed=0)
    assert (student.encode(TEXTS) == plain).all()
    trained = [name for name, parameter in student.named_parameters() if parameter.requires_grad]
    assert trained and all("lora_" in name and "pooler" not in name for name in trained)
    assert set(student.state_dict()) - base_weights(student) == set(trained)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    changed, whole = student.encode(TEXTS), merged(student)
    assert abs(changed - plain).max() > 0.05
    assert abs(whole.encode(TEXTS) - changed).max() < 1e-5
    assert set(whole.state_dict()) == names and not base_weights(whole)
    assert (student.encode(TEXTS) == changed).all(), "merging changed the model in training"


def test_adapters_are_drawn_from_the_seed(student, tiny_model):
    info = TeacherInfo(32, True, 64, model=str(tiny_model))
    drawn = []
    for seed in (0, 0, 1):
        model = build_student(StudentSection(model="teacher", layers=2), info, seed=0)
        torch.manual_seed(5)
        add_adapters(model, LoraSection(r=4), seed)
        drawn.append(torch.cat([value.ravel() for name, value in model.state_dict().items() if "lora_A" in name]))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_targets_are_chosen_by_name_and_refused(student):
    with refused("student.lora.targets", "'querry'"):
        add_adapters(student, LoraSection(targets=["querry"]), seed=0)
    add_adapters(student, LoraSection(r=2, targets=["query", "value"]), seed=0)
    assert {name.split(".")[-4] for name in student.state_dict() if "lora_A" in name} == {"query", "value"}


def test_a_run_trains_adapters_only_resumes_and_saves_them_merged(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    recipe = recipes.validate(
        {
            "name": "lora",
            "teacher": {"model": str(tiny_model)},
            "student": {"model": "teacher", "lora": {"r": 4, "alpha": 16}},
            "task": {
                "type": "classification",
                "path": str(write_task(tmp_path / "task.jsonl", "classification", 64, 16)),
            },
            "method": {"name": "task"},
            "train": {
                "epochs": 2,
                "batch_size": 16,
                "learning_rate": 1e-2,
                "precision": "fp32",
                "device": "cpu",
                "keep_checkpoint": True,
            },
            "evaluation": {"parts": []},
        }
    )
    run(recipe, tmp_path / "whole")
    checkpoint = load_file(RunFolder(tmp_path / "whole").checkpoint)
    weights = [name for name in checkpoint if name.startswith("model/")]
    assert all("lora_" in name or "objective.head" in name for name in weights), weights

    seen, step = [], Trainer._step

    def stop(self, batches, index):
        step(self, batches, index)
        self.stop_asked = self.state.step == 3
        base = base_weights(self.module)
        seen.append({name: value.clone() for name, value in self.module.state_dict().items() if name in base})

    monkeypatch.setattr(Trainer, "_step", stop)
    with pytest.raises(DistilvecError, match="Run the same command again"):
        run(recipe, tmp_path / "parts")
    run(recipe, tmp_path / "parts")
    assert len(seen) > 4 and all(torch.equal(seen[0][name], seen[-1][name]) for name in seen[0])
    whole, parts = (load_file(RunFolder(tmp_path / folder).last / "model.safetensors") for folder in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    base = load_file(tiny_model / "model.safetensors")
    assert whole.keys() == base.keys() and any(not torch.equal(whole[name], base[name]) for name in whole)
    assert SentenceTransformer(str(tmp_path / "whole" / "student"), device="cpu").encode("a text").shape == (32,)


def test_a_distillation_takes_adapters_as_well(tiny_recipe, tmp_path):
    result = run(tiny_recipe(student__lora={"r": 4}, train__max_steps=3), tmp_path / "run")
    assert result.validation["distance"] < 2
    saved = load_file(tmp_path / "run" / "student" / "model.safetensors")
    assert not [name for name in saved if "lora" in name or "base_layer" in name]
