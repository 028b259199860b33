"""Whether a student's model lies in its teacher's space already, and the linear layer that follows from it.

Two models of another family have nothing in common but the texts, also where their vectors have the same number of
dimensions: all-MiniLM-L6-v2 has an overlap@10 of 0.002 with multilingual-e5-small among the vectors of the
latter, and 0.37 behind a linear layer fitted to 4,500 texts (results/linear_layer.json). So such a student gets a layer
by default, as one of another width does. The teacher's layers and a student that distilvec made of them are in its
space, and keep the modules they have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilvec.config.student import StudentSection
from distilvec.core.info import TeacherInfo
from distilvec.formats.replace import read_record
from distilvec.models.load import folder_of, load_backbone, resolve_model
from distilvec.models.unreadable import readable
from distilvec.pipeline.describe import TeacherDescription
from distilvec.students.after_pooling import has_own_modules, read_later_modules, why_not_kept
from distilvec.students.build import source_name


def with_linear_layer(section: StudentSection, description: TeacherDescription) -> StudentSection:
    """Decide on `student.dense: auto` for a student that is trained into the teacher's space.

    What is in this space already (the teacher's layers, what was made of them) keeps its modules after the pooling
    ('fold'), or gets a new layer ('always') where they cannot be kept, such as those behind another pooling. 'auto'
    stays without such modules, and for a fresh backbone or a static student: a layer then follows where widths differ.
    """
    if section.dense != "auto" or section.config is not None:
        return section
    if section.model != "teacher":
        folder = _model_folder(section)
        if not _is_model_of(description.info, folder) and not _is_made_of(description, read_record(folder)):
            return section.model_copy(update={"dense": "always"})
    name, revision = source_name(section, description.info)
    if name is None or section.is_static:
        return section
    with readable(name, "student.model"):
        later_modules = read_later_modules(name, revision)
    if not has_own_modules(later_modules):
        return section
    is_kept = why_not_kept(later_modules, section.pooling, description.info.dim) is None
    return section.model_copy(update={"dense": "fold" if is_kept else "always"})


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


def _is_model_of(teacher: TeacherInfo, folder: Path) -> bool:
    """Return whether a folder is that of the teacher's model.

    A folder has many spellings; in the hub's cache every revision of a model has its own.
    """
    if teacher.model is None:
        return False
    teacher_folder = folder_of(teacher.model, teacher.revision)[0]
    return teacher_folder is not None and teacher_folder.resolve() == folder.resolve()


def _is_made_of(description: TeacherDescription, record: dict[str, Any] | None) -> bool:
    """Return whether a student or a transplanted model was made of this teacher, by its record; without one it was not.

    The weights decide: the folders of different models often have one name, such as `model`, and a folder may be
    renamed. Records of earlier versions have the name alone. Of an index or an API the name decides: an index grows,
    and a server moves, while the model stays.
    """
    if record is None:
        return False
    teacher = record.get("teacher")
    if not isinstance(teacher, dict):  # of a transplanted model
        teacher = {"name": teacher, "weights": record.get("weights")}
    if teacher.get("weights") is not None and description.info.model is not None:
        return bool(teacher["weights"] == description.manifest.weights)
    return teacher.get("name") == description.info.name
