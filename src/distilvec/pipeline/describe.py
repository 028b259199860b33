"""Descriptions of teachers and students, stored by content: a model is loaded for its description once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe, StudentSection, TeacherSection
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.files import read_json
from distilvec.core.hashing import hash_files
from distilvec.core.info import UNLIMITED, StudentInfo, TeacherInfo
from distilvec.models.load import load, resolve_model
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.models.unreadable import readable
from distilvec.pipeline.job import errors_of
from distilvec.students.build import build_student
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.manifest import Manifest, hash_folder, parse_manifest
from distilvec.teachers.model import LocalTeacher, folder_of, special_tokens
from distilvec.teachers.teacher import open_teacher

FORMAT = 1
BYTES = 10_000


@dataclass(frozen=True)
class TeacherDescription:
    """A teacher's info, the manifest of its embeddings (stored as float16), and its number of parameters."""

    info: TeacherInfo
    manifest: Manifest
    parameters: int | None


def describe_teacher(section: TeacherSection, key: str, device: str, store: ArtifactStore) -> TeacherDescription:
    """Describe the teacher of a recipe's section; its model is loaded unless a description is stored."""
    with errors_of(key):
        if section.vectors is not None:
            return _description(section, device)
        assert section.model is not None
        with readable(section.model, "teacher.model"):
            folder, _ = folder_of(resolve_model(section.model), section.revision)
        if folder is None:  # not on this machine yet
            return _description(section, device)
        settings = section.model_dump(mode="json", exclude={"live", "weight", "batch_tokens"})
        name = recipes.fingerprint(FORMAT, settings, hash_folder(folder))
        content = _stored(store, name, lambda: asdict(_description(section, device)))
    info = TeacherInfo(**{**content["info"], "special_tokens": _pair(content["info"]["special_tokens"])})
    return TeacherDescription(info, parse_manifest(content["manifest"]), content["parameters"])


def _description(section: TeacherSection, device: str) -> TeacherDescription:
    with open_teacher(section, device) as teacher:
        count = None
        if isinstance(teacher, LocalTeacher):
            count = sum(weight.numel() for weight in teacher.model.parameters())
        return TeacherDescription(teacher.info(), teacher.manifest("float16"), count)


def known_teacher(manifest: Manifest, record: Mapping[str, Any]) -> TeacherDescription:
    """Describe a teacher by its cache's manifest and its part of distillation.json."""
    info = TeacherInfo(
        manifest.width,
        manifest.normalized,
        manifest.max_length or UNLIMITED,
        dict(manifest.prompts),
        name=record["name"],
        hidden_size=manifest.vector_width,
        pre_dense_dim=manifest.pre_dense_width,
    )
    return TeacherDescription(info, manifest, record.get("parameters"))


def describe_student(
    recipe: Recipe, teacher: TeacherInfo, in_teacher_space: bool, vocabulary: Any, store: ArtifactStore
) -> tuple[StudentInfo, int]:
    """Describe the untrained student, with its maximum input in tokens; built unless its description is stored."""

    def describe() -> dict[str, Any]:
        model = build_student(recipe.student, teacher, 0, in_teacher_space, vocabulary)
        return {"info": asdict(student_info(model)), "length": int(model.max_seq_length)}

    files = _settings_of(recipe.student, teacher)
    if files is None:
        content = describe()
    else:
        settings = recipe.student.model_dump(mode="json", exclude={"lora"})
        tokenizer = None if vocabulary is None else tokenizer_hash(vocabulary)
        known = replace(teacher, name="", weight=1.0, logits=False)
        name = recipes.fingerprint(FORMAT, settings, files, tokenizer, asdict(known), in_teacher_space)
        content = _stored(store, name, describe)
    info = StudentInfo(**{**content["info"], "special_tokens": _pair(content["info"]["special_tokens"])})
    return info, content["length"]


def describe_saved(folder: Path) -> tuple[StudentInfo, int]:
    """Describe a saved student, with its maximum input in tokens."""
    model = load(folder, device="cpu")
    return student_info(model), int(model.max_seq_length)


def student_info(model: SentenceTransformer) -> StudentInfo:
    """Describe a student in memory."""
    encoder = Encoder(model)
    return StudentInfo(
        encoder.hidden_size,
        encoder.layers,
        model.get_embedding_dimension(),
        encoder.backbone.config.get_text_config().num_attention_heads,
        tokenizer_hash(model.tokenizer),
        special_tokens(model.tokenizer),
        encoder.experts,
    )


def _settings_of(section: StudentSection, teacher: TeacherInfo) -> str | None:
    """Hash the settings and tokenizer files that a student's description depends on; None if they are not found."""
    name, revision = (
        (teacher.model, teacher.revision) if section.model == "teacher" else (section.model, section.revision)
    )
    name = name or section.tokenizer
    if name is None:
        return None
    with readable(name, "student.model"):
        folder, _ = folder_of(resolve_model(name), revision)
    if folder is None:
        return None
    files = [
        path for path in sorted(folder.rglob("*")) if path.suffix in (".json", ".txt", ".model") and path.is_file()
    ]
    return hash_files(files, folder, "student.model")


def _stored(store: ArtifactStore, name: str, describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    def load(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = read_json(folder / "meta.json", "Delete the folder.")
        return found

    return store.build("descriptions", name, name, "description", BYTES, lambda folder: describe(), load)


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
