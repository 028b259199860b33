"""Descriptions of teachers and students, stored by content: a model is loaded for its description once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import transformers
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe, TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.artifacts import ArtifactStore, read_stored, store_json
from distilvec.core.errors import about
from distilvec.core.info import UNLIMITED, StudentInfo, TeacherInfo
from distilvec.core.log import log
from distilvec.data.corpus import Corpus
from distilvec.models.checks import check_place
from distilvec.models.experts import Experts
from distilvec.models.load import SETTINGS, folder_of, resolve_model
from distilvec.models.parts import is_static, max_length, text_tokenizer
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.models.weights import count_parameters, map_weights
from distilvec.pipeline.decide import hardware_dtype, is_open
from distilvec.pipeline.job import LoadedModels, TeacherDescription
from distilvec.pipeline.student import draw_fitting_texts, load_saved
from distilvec.report.record import TeacherRecord
from distilvec.students.build import build_with_notes, dropout_rates, source_model
from distilvec.teachers.cache.manifest import Manifest, hash_model, parse_manifest
from distilvec.teachers.model_embedder import ModelEmbedder, special_tokens
from distilvec.teachers.open import OpenTeacher, open_teacher

# Raised when the same settings and files would give another description; what is read of a tokenizer is transformers'
FORMAT = (6, transformers.__version__)
STUDENT_FORMAT = (8, transformers.__version__)


def describe_teacher(
    section: TeacherSection, device: str, store: ArtifactStore, loaded: LoadedModels | None = None
) -> TeacherDescription:
    """Describe the teacher of a recipe's section; its model is loaded unless a description is stored.

    A model that had to be loaded stays in memory, as `loaded.teacher`. Keys of errors are relative to the section.
    """
    path = _teacher_file(section, store)
    stored = None if path is None else read_stored(path, "description")
    if stored is not None:
        info = TeacherInfo(**_with_tuples(stored["info"]))
        description = TeacherDescription(info, parse_manifest(stored["manifest"]), stored["parameters"])
        return _with_notes(description)

    if loaded is None or section.local_model is None:
        with open_teacher(section, device) as teacher:
            description = describe_open(teacher)
    else:
        # In the precision that it is going to compute in (decide.py), so that it need not be loaded again
        dtype = hardware_dtype(device) if is_open(section) else section.dtype
        decided_section = section.model_copy(update={"dtype": dtype})
        teacher = open_teacher(decided_section, device)
        assert isinstance(teacher, ModelEmbedder)
        loaded.teacher, loaded.section = teacher, decided_section
        description = describe_open(teacher)
    if path is not None and path == _teacher_file(section, store):
        store_json(path, asdict(description))
    elif path is not None and loaded is not None:  # its files have changed meanwhile: it may be of either
        loaded.release_untaken()
    return _with_notes(description)


def _with_notes(description: TeacherDescription) -> TeacherDescription:
    """Log what the teacher states and is not used, and return its description."""
    for note in description.info.notes:
        log(f"{description.info.name}: {note}.")
    return description


def _teacher_file(section: TeacherSection, store: ArtifactStore) -> Path | None:
    """Return the file of a teacher's description, named by the settings and files that it depends on.

    None for a table of vectors, and for a model that is not on this machine yet.
    """
    folder = None
    if section.api is None and section.named_model is not None:
        with about(".model", section.named_model.name):
            check_place(section.named_model.name)
            folder = folder_of(section.named_model)[0]
    if folder is None and section.api is None:
        return None
    settings = section.model_dump(mode="json", exclude={"live", "weight", "batch_tokens", "api", "device_map"})
    settings["prompts"] = section.stated_prompts
    api_settings = section.api and section.api.model_dump(include={"base_url", "dimensions", "body", "by_role"})
    with about(".model"):
        model = api_settings if folder is None else hash_model(folder, section.adapters)
    # A model states its prompts and its similarity in this file, which no hash of a model reads
    settings_file = None if folder is None else folder / SETTINGS
    stated_settings = None
    if settings_file is not None and settings_file.is_file():
        stated_settings = settings_file.read_text(encoding="utf-8")
    return store.folder("descriptions", f"{recipes.fingerprint(FORMAT, settings, model, stated_settings)}.json")


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
    path = _student_file(recipe.student, teacher, in_teacher_space, vocabulary, store)
    stored = None if path is None else read_stored(path, "description")
    if stored is not None:
        return StudentInfo(**_with_tuples(stored["info"])), stored["length"]

    section, seed = recipe.student, recipe.train.seed
    texts = draw_fitting_texts(corpus, seed) if section.reads_texts else ()
    model, notes = build_with_notes(section, teacher, seed, in_teacher_space, vocabulary, texts)
    info, length = replace(student_info(model), notes=notes), max_length(model)
    store.root.mkdir(parents=True, exist_ok=True)
    map_weights(model, store.root)  # until the teacher is done
    loaded.untrained = model
    if path is not None:
        store_json(path, {"info": asdict(info), "length": length})
    return info, length


def _student_file(
    section: StudentSection, teacher: TeacherInfo, in_teacher_space: bool, vocabulary: Any, store: ArtifactStore
) -> Path | None:
    """Return the file of a student's description, named by what it depends on; None without its model's files."""
    folder = _student_folder(section, teacher)
    if folder is None:
        return None
    unread: Any = {"lora": True, "head": True, "start": True, "dims": True, "experts": {"residual"}}
    about_teacher = asdict(replace(teacher, name="", weight=1.0, logits=False, notes=()))
    for key in ("adapters", "similarity"):  # change no size
        del about_teacher[key]
    with about("student.model"):
        weights = hash_model(folder, ())
    fingerprint = recipes.fingerprint(
        STUDENT_FORMAT,
        section.model_dump(mode="json", exclude=unread),
        weights,
        None if vocabulary is None else tokenizer_hash(vocabulary),
        about_teacher,
        in_teacher_space,
    )
    return store.folder("descriptions", f"{fingerprint}.json")


def _student_folder(section: StudentSection, teacher: TeacherInfo) -> Path | None:
    """Return the folder of the model or, for a fresh one, of the tokenizer that a student is made from."""
    source = source_model(section, teacher)
    if source is None:
        return None
    is_fresh = section.config is not None
    with about("student.tokenizer" if is_fresh else "student.model", source.name):
        check_place(source.name, is_tokenizer=is_fresh)
        return folder_of(source)[0]


def student_content(section: StudentSection, teacher: TeacherInfo, vocabulary: Any) -> str:
    """Return a hash of the files and tokenizer that the untrained student is made from."""
    folder = _student_folder(section, teacher)
    # Without a folder the student comes from another place than a file: its name is in the recipe
    with about("student.model"):
        content = None if folder is None else hash_model(folder, ())
    return recipes.fingerprint(content, None if vocabulary is None else tokenizer_hash(vocabulary))


def describe_saved(folder: Path) -> tuple[StudentInfo, int]:
    """Describe a saved student, with its maximum input in tokens."""
    model = load_saved(folder)
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
        model[1].embedding_dimension,
        config.num_hidden_layers,
        model.get_embedding_dimension(),
        config.num_attention_heads,
        tokenizer_hash(model.tokenizer),
        special_tokens(model.tokenizer),
        experts,
        any(rates),
        parameters=count_parameters(model.parameters()),
    )


def _with_tuples(info: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a description with the tuples that JSON has as lists."""
    for name in ("special_tokens", "notes"):
        if info.get(name) is not None:
            info[name] = tuple(info[name])
    return info
