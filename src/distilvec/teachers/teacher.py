"""Embedders that a run can learn from, and the one that a recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from distilvec.config.presets import Preset
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.core.info import TeacherInfo
from distilvec.data.corpus import Corpus
from distilvec.models.load import has_routes
from distilvec.models.settings import ModelSettings, PlainSettings
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.cache.fill import FillSteps
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.model_embedder import ModelEmbedder, load_embedder
from distilvec.teachers.table_embedder import TableEmbedder


class Teacher(Embedder, Protocol):
    """An embedder that a run can learn from. To add a kind:

    1. Write a class with these methods in a new file of this folder; the three of OpenTeacher are examples.
    2. Add the keys that name it to TeacherSection, and a line to `open_teacher`.

    A kind that computes vectors text by text needs `batches(prompted, pre_dense)`, which yields EmbeddedBatch, and its
    `fill_steps` returns those of cache/fill.py. A kind that runs in every step has a `model` (LiveTeacher). Its memory
    is freed at the end of a `with` block; `info()` and `manifest()` come before that.
    """

    def info(self) -> TeacherInfo:
        """Description of the teacher: all that students and methods know of it."""
        ...

    def manifest(self, store_dtype: str = "float16", pre_dense: bool = False) -> Manifest:
        """Settings that the vectors depend on; two teachers with equal fingerprints share a cache."""
        ...

    def fill_steps(self, cache: TeacherCache, corpus: Corpus) -> FillSteps:
        """Append the vectors of the corpus's rows that the cache lacks, as `cache.signals` has them, step by step."""
        ...

    def __enter__(self) -> Teacher:
        """The teacher itself."""
        ...

    def __exit__(self, *error: object) -> None:
        """Free the memory."""
        ...


OpenTeacher = ModelEmbedder | TableEmbedder | ApiEmbedder


def open_teacher(
    section: TeacherSection, device: str = "auto", counts: Path | None = None, sharded: bool = False
) -> OpenTeacher:
    """Open the teacher that a recipe names; an API's requests are counted in the file `counts`.

    `sharded`: a model stays on the CPU, since it is going to be sharded. Errors: DistilvecError for a model, API or
    table that cannot be used.
    """
    if section.api is not None:
        return ApiEmbedder(section, counts)
    if section.vectors is not None:
        return TableEmbedder(section, device=device)
    return load_teacher(section, device, sharded)


def load_teacher(section: TeacherSection, device: str = "auto", sharded: bool = False) -> ModelEmbedder:
    """Load the model that a recipe names as its teacher.

    Errors: DistilvecError for a model that cannot be loaded or gives no finite vectors, a plain model without
    `pooling`, and for `max_length` or `truncate_dim` beyond the model's.
    """
    if section.model is None:
        raise DistilvecError(
            "expected a model; found a table of vectors (teacher.vectors).", "Name one.", key="teacher.model"
        )
    teacher = load_embedder(
        section.model,
        "teacher.model",
        device,
        model_settings(section),
        name=section.name,
        batch_tokens=section.batch_tokens,
        prompts=section.stated_prompts,
        similarity=section.similarity,
        truncate_dim=section.truncate_dim,
        sharded=sharded,
    )
    # Also after a cut of the folder's own, which loses the length: students normalise after their last layer
    teacher.normalized = type(teacher.model[-1]).__name__ == "Normalize"
    if has_routes(section.model, section.revision):
        teacher.notes = (*teacher.notes, "it is a Router: all texts go through its model for documents")
    return teacher


def model_settings(section: TeacherSection) -> ModelSettings:
    """Return the settings that a recipe loads its teacher with.

    `dtype: auto` is float32 here: a job decides it before (pipeline/precision.py).
    """
    return ModelSettings(
        revision=section.revision,
        trust_remote_code=section.trust_remote_code,
        pooling=section.pooling,
        normalize=section.normalize,
        plain=plain_settings(section.known),
        max_length=section.max_length,
        dtype="bfloat16" if section.dtype == "bfloat16" else "float32",
        attention=section.attention,
        adapters=tuple(section.adapters or ()),
        quantize=section.quantize,
        device_map=section.device_map,
    )


def plain_settings(preset: Preset | None) -> PlainSettings | None:
    """Return a preset's settings of a plain checkpoint; None where it has none."""
    if preset is None or preset.pooling is None:
        return None
    return PlainSettings(preset.pooling, preset.normalize, preset.max_length)
