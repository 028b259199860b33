"""Whether a student's model lies in its teacher's space already, and the linear layer that follows from it.

Two models of another family have nothing in common but the texts, also where their vectors have the same number of
dimensions: all-MiniLM-L6-v2 finds 0.001 of multilingual-e5-small's ten nearest neighbours among the vectors of the
latter, and 0.35 behind a linear layer that is fitted in seconds. So such a student gets a layer by default, as one of
another width does. A student that distilvec made of this teacher is in its space, and keeps the layers it has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilvec.config.student import StudentSection
from distilvec.core.info import TeacherInfo
from distilvec.formats.replace import read_record
from distilvec.models.load import folder_of, load_backbone, resolve_model
from distilvec.models.unreadable import readable


def with_linear_layer(section: StudentSection, teacher: TeacherInfo) -> StudentSection:
    """Decide on `student.dense: auto` for a student that is trained into the teacher's space.

    Without a named model of its own (the teacher's layers, a fresh backbone) 'auto' stays: such a student gets a layer
    where the widths differ.
    """
    if section.dense != "auto" or section.model is None or section.model == "teacher":
        return section
    if teacher.model is not None and resolve_model(section.model) == resolve_model(teacher.model):
        return section
    record = read_record(_model_folder(section))
    if record is None or _teacher_name(record) != teacher.name:
        return section.model_copy(update={"dense": "always"})
    student: dict[str, Any] = record.get("student") or {}
    if student.get("dense") and student.get("width") == teacher.dim:
        return section.model_copy(update={"dense": "keep"})
    return section


def _model_folder(section: StudentSection) -> Path:
    """Return the folder of the student's model, which is downloaded if it is not on this machine yet.

    The decision must not depend on whether it was: it is part of a run's fingerprint.
    """
    assert section.model is not None
    source = resolve_model(section.model)
    with readable(section.model, "student.model"):
        folder = folder_of(source, section.revision)[0]
    if folder is None:
        load_backbone(source, "student.model", revision=section.revision, trust_remote_code=section.trust_remote_code)
        folder = folder_of(source, section.revision)[0]
    return folder or Path(source)


def _teacher_name(record: dict[str, Any]) -> str | None:
    """Return the name of the model that a student or a transplanted model was made of, from its record."""
    teacher = record.get("teacher")
    name = teacher.get("name") if isinstance(teacher, dict) else teacher
    return name if isinstance(name, str) else None
