"""`distilvec export`: a student with experts becomes one file that needs no code of anyone's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from architectures import TEXTS, bert

from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.formats.onnx import OnnxEmbedder
from distilvec.formats.sentence_transformers import save_student
from distilvec.students.build import TeacherInfo, build_student
from distilvec.verbs.export.command import export


def test_a_student_with_experts_is_exported_beside_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    section = StudentSection(model=str(bert(tmp_path / "bert")), layers=2, experts=ExpertsSection(width=24))
    student = build_student(section, TeacherInfo(dim=48, normalized=True, max_length=60), seed=0)
    save_student(student, tmp_path / "student", {}, "")
    export(str(tmp_path / "student"))
    path = tmp_path / "student" / "onnx" / "model.onnx"
    assert str(path) in capsys.readouterr().out
    session = OnnxEmbedder(path)
    assert session.inputs == ("input_ids", "attention_mask")
    tokens = student[0].tokenizer(TEXTS, padding=True, truncation=True, max_length=60, return_tensors="pt")
    assert np.abs(session.encode_tokens(tokens) - student.encode(TEXTS)).max() < 1e-5
    export(str(tmp_path / "student"), out=tmp_path / "elsewhere.onnx")
    assert (tmp_path / "elsewhere.onnx").is_file()
