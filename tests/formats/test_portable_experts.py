"""A student with experts on disk: what lies there, and that it loads without distilvec."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import TEXTS, bert
from commands import Command
from sentence_transformers import SentenceTransformer

from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.formats.sentence_transformers import save_student
from distilvec.models import experts as module
from distilvec.models.load import load
from distilvec.students.build import TeacherInfo, build_student


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    folder = bert(tmp_path_factory.mktemp("experts") / "bert")
    info = TeacherInfo(dim=48, normalized=True, max_length=60, prompts={"query": "query: "})
    return build_student(StudentSection(model=str(folder), layers=2, experts=ExpertsSection(width=24)), info, seed=0)


def test_loads_without_distilvec(student: SentenceTransformer, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    save_student(student, folder, {}, "# Tiny\n")
    words = [tmp_path / "modules", json.dumps(TEXTS), folder]
    command = Command(*words, module="without_distilvec", folder=tmp_path)
    out, problems = command.communicate()
    assert command.returncode == 0, problems
    said = json.loads(out.strip().splitlines()[-1])
    assert "trust_remote_code=True" in said["refused"]
    assert said["kinds"][2] == "distilvec_experts.Experts"
    assert np.abs(student.encode(TEXTS) - np.array(said["vectors"])).max() < 1e-6
    assert np.abs(student.encode_query(TEXTS) - np.array(said["queries"])).max() < 1e-6


def test_files(student: SentenceTransformer, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    save_student(student, folder, {}, "")
    entries = json.loads((folder / "modules.json").read_text())
    assert entries[2] == {"idx": 2, "name": "2", "path": "2_Experts", "type": "distilvec_experts.Experts"}
    assert [entry["type"].rsplit(".", 1)[-1] for entry in entries] == [
        "Transformer",
        "Pooling",
        "Experts",
        "Dense",
        "Normalize",
    ]
    assert all(entry["type"].startswith("sentence_transformers.") for entry in entries if entry["idx"] != 2)
    assert sorted(path.name for path in (folder / "2_Experts").iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "distilvec_experts.py").read_bytes() == Path(module.__file__).read_bytes()
    settings = json.loads((folder / "2_Experts" / "config.json").read_text())
    assert settings == {"dim": 32, "experts": 3, "width": 24, "gate_width": None, "dropout": 0.1}
    save_student(load(folder, device="cpu"), tmp_path / "again", {}, "")
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert all((folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)


def test_a_class_of_the_same_name_is_not_ours(student: SentenceTransformer, tmp_path: Path) -> None:
    """Ours would be copied beside weights that it may not fit."""
    save_student(student, tmp_path / "student", {}, "")
    found = load(tmp_path / "student", device="cpu")
    found[2] = type("Experts", (torch.nn.Identity,), {})()
    with pytest.raises(DistilvecError, match="module 2 is a Experts of "):
        save_student(found, tmp_path / "other", {}, "")
    assert not (tmp_path / "other").exists()
