"""Descriptions of teachers and students, stored by content: a model is loaded for its description once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe, TeacherSection
from distilvec.core.artifacts import META, ArtifactStore
from distilvec.core.files import read_json
from distilvec.core.hashing import hash_files
from distilvec.core.info import UNLIMITED, StudentInfo, TeacherInfo
from distilvec.data.corpus import Corpus
from distilvec.models.experts import Experts
from distilvec.models.load import folder_of, load, max_length, resolve_model
from distilvec.models.placement import count_parameters
from distilvec.models.static import is_static, text_tokenizer
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.models.unreadable import Kind, readable
from distilvec.pipeline.job import errors_of
from distilvec.pipeline.loaded import LoadedModels
from distilvec.pipeline.precision import hardware_dtype, is_open
from distilvec.pipeline.student import draw_fitting_texts
from distilvec.report.record import TeacherRecord
from distilvec.students.build import build_with_notes, dropout_rates
from distilvec.teachers.cache.manifest import Manifest, hash_model, parse_manifest
from distilvec.teachers.model_embedder import ModelEmbedder, special_tokens
from distilvec.teachers.teacher import OpenTeacher, open_teacher

FORMAT = 4  # raised when the same settings and files would give another description
STUDENT_FORMAT = 5
BYTES = 10_000  # of a stored description
_READ = (".json", ".txt", ".model")  # endings of settings and tokenizer files


@dataclass(frozen=True)
class TeacherDescription:
    """A teacher's info, the manifest of its embeddings (stored as float16), and its number of parameters."""

    info: TeacherInfo
    manifest: Manifest
    parameters: int | None


def describe_teacher(
    section: TeacherSection, key: str, device: str, store: ArtifactStore, loaded: LoadedModels | None = None
) -> TeacherDescription:
    """Describe the teacher of a recipe's section; its model is loaded unless a description is stored.

    A model that had to be loaded stays in memory, as `loaded.teacher`.
    """

    def describe() -> TeacherDescription:
        if loaded is None:
            with open_teacher(section, device) as teacher:
                return describe_open(teacher)
        # In the precision that it is going to compute in (precision.py), so that it need not be loaded again
        dtype = hardware_dtype(device) if is_open(section) else section.dtype
        decided_section = section.model_copy(update={"dtype": dtype})
        kept_teacher = open_teacher(decided_section, device)
        if isinstance(kept_teacher, ModelEmbedder):
            loaded.teacher, loaded.section = kept_teacher, decided_section
        return describe_open(kept_teacher)

    with errors_of(key):
        folder = _folder(section.local_model, section.revision, "teacher.model")
        if folder is None and section.api is None:  # a table of vectors, or a model that is not on this machine yet
            return describe()
        settings = section.model_dump(mode="json", exclude={"live", "weight", "batch_tokens", "api", "device_map"})
        settings["prompts"] = section.stated_prompts
        asked = section.api and section.api.model_dump(include={"base_url", "dimensions", "body", "by_role"})
        model = asked if folder is None else hash_model(folder, section.adapters)
        stated = None if folder is None else _stated(folder)
        content = _stored(store, [FORMAT, settings, model, stated], lambda: asdict(describe()))
    return TeacherDescription(
        TeacherInfo(**content["info"]), parse_manifest(content["manifest"]), content["parameters"]
    )


def describe_open(teacher: OpenTeacher) -> TeacherDescription:
    """Describe a teacher that is open."""
    parameters = count_parameters(teacher.model.parameters()) if isinstance(teacher, ModelEmbedder) else None
    return TeacherDescription(teacher.info(), teacher.manifest("float16"), parameters)


def known_teacher(section: TeacherSection, manifest: Manifest, record: TeacherRecord) -> TeacherDescription:
    """Describe a teacher by its cache's manifest and its part of a run's record."""
    info = TeacherInfo(
        manifest.width,
        manifest.normalized,
        manifest.max_length or UNLIMITED,
        dict(manifest.prompts),
        model=None if section.local_model is None else resolve_model(section.local_model),
        name=record.name or "",
        revision=section.revision,
        hidden_size=manifest.vector_width,
        pre_dense_dim=manifest.pre_dense_width,
        similarity=record.similarity or "cosine",
        pooling=manifest.pooling,
        attention=manifest.attention,
    )
    return TeacherDescription(info, manifest, record.parameters)


def describe_student(
    recipe: Recipe,
    teacher: TeacherInfo,
    in_teacher_space: bool,
    vocabulary: Any,
    corpus: Corpus,
    store: ArtifactStore,
    loaded: LoadedModels,
) -> tuple[StudentInfo, int]:
    """Describe the untrained student, with its maximum input in tokens; built unless its description is stored.

    A student that had to be built stays in memory, as `loaded.untrained`.
    """
    section, seed = recipe.student, recipe.train.seed

    def describe() -> dict[str, Any]:
        texts = draw_fitting_texts(corpus, seed) if section.reads_texts else ()
        model, notes = build_with_notes(section, teacher, seed, in_teacher_space, vocabulary, texts)
        loaded.untrained = model
        info = replace(student_info(model), notes=notes)
        return {"info": asdict(info), "length": max_length(model)}

    name, revision = section.model or section.tokenizer, section.revision
    if section.model == "teacher":
        name, revision = teacher.model or section.tokenizer, teacher.revision
    fresh = section.config is not None
    folder = _folder(
        name, revision, "student.tokenizer" if fresh else "student.model", "tokenizer" if fresh else "model"
    )
    if folder is None:
        content = describe()
    else:
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in _READ and path.is_file()]
        unread: Any = {"lora": True, "head": True, "start": True, "dims": True, "experts": {"residual"}}
        settings = section.model_dump(mode="json", exclude=unread)
        tokenizer = None if vocabulary is None else tokenizer_hash(vocabulary)
        known = asdict(replace(teacher, name="", weight=1.0, logits=False))
        known = {key: value for key, value in known.items() if key not in ("adapters", "similarity")}  # change no size
        parts = [
            STUDENT_FORMAT,
            settings,
            hash_files(files, folder, "student.model"),
            tokenizer,
            known,
            in_teacher_space,
        ]
        content = _stored(store, parts, describe)
    return StudentInfo(**content["info"]), content["length"]


def describe_saved(folder: Path) -> tuple[StudentInfo, int]:
    """Describe a saved student, with its maximum input in tokens."""
    model = load(folder, device="cpu")
    return student_info(model), max_length(model)


def student_info(model: SentenceTransformer) -> StudentInfo:
    """Describe a student in memory. A static one has no layers and no special tokens; its width is its table's."""
    if is_static(model):
        tokenizer = tokenizer_hash(text_tokenizer(model))
        dim = model.get_embedding_dimension()
        return StudentInfo(model[0].embedding_dim, 0, dim, None, tokenizer, (0, 0), dropout=False)
    config = model[0].auto_model.config.get_text_config()
    experts = next((module.experts for module in model if isinstance(module, Experts)), 0)
    heads = ("classifier", "summary")  # a student has no classification head
    rates = [rate for name, rate in dropout_rates(config).items() if not name.startswith(heads)]
    return StudentInfo(
        config.hidden_size,
        config.num_hidden_layers,
        model.get_embedding_dimension(),
        config.num_attention_heads,
        tokenizer_hash(model.tokenizer),
        special_tokens(model.tokenizer),
        experts,
        any(rates),
        parameters=count_parameters(model.parameters()),
    )


def _stated(folder: Path) -> str | None:
    """Return the file in which a model states its prompts and its similarity, which no hash of a model reads."""
    path = folder / "config_sentence_transformers.json"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _folder(name: str | None, revision: str | None, key: str, kind: Kind = "model") -> Path | None:
    """Return the folder of a model's files, None without a name or if it is not on this machine yet."""
    if name is None:
        return None
    with readable(name, key, kind):
        return folder_of(resolve_model(name), revision)[0]


def _stored(store: ArtifactStore, parts: list[Any], describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a description as JSON, made by `describe` unless it is stored under the fingerprint of its `parts`."""
    name = recipes.fingerprint(*parts)
    content = store.build(
        "descriptions", name, name, "description", BYTES, lambda folder: describe(),
        lambda folder: read_json(folder / META, "Delete the folder."),
    )  # fmt: skip
    info = content["info"]
    for field in ("special_tokens", "notes"):  # tuples, which JSON writes as lists
        if info.get(field) is not None:
            info[field] = tuple(info[field])
    return content
