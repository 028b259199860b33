"""The one door to embedders: models, files of exports, tables of vectors, indexes, APIs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from sentence_transformers import SentenceTransformer

from distilvec.config.presets import PRESETS, Preset, find_preset
from distilvec.config.recipe import section_of
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import user_cache
from distilvec.core.info import Role, TeacherInfo
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.data.corpus import Corpus
from distilvec.models.checks import check_model
from distilvec.models.load import has_routes, one_route
from distilvec.models.settings import ModelSettings, PlainSettings
from distilvec.teachers.api_embedder import ApiEmbedder, named_api
from distilvec.teachers.cache.fill import FillSteps
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.graph_embedder import open_exported
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.model_embedder import ModelEmbedder, RoutedEmbedder, load_embedder
from distilvec.teachers.sources import NAMES, Kind, shown, source_kind
from distilvec.teachers.table_embedder import TableEmbedder

CACHE_VARIABLE = "DISTILVEC_CACHE"
Source: TypeAlias = str | os.PathLike[str] | SentenceTransformer


def open_embedder(
    source: Source, *, key: str = "model", device: str = "auto", trust_remote_code: bool = False
) -> Embedder:
    """Open whatever `source` names.

    - a model: a folder, a hub id, a SentenceTransformer
    - the file of an export: .onnx or .xml, below its model's folder
    - a table or index of vectors by its path or address (docs/index_formats.md). Other forms than whole Parquet files
      are copied to the cache folder first.
    - an API: `openai:MODEL` with the key in OPENAI_API_KEY; or the URL of a server with OpenAI's interface, with
      #MODEL behind it if the server has several models, and the key, if it needs one, in DISTILVEC_API_KEY

    An API holds connections until it is closed: `with opened(...)` closes it.

    Errors: DistilvecError with `key` if nothing can be opened there, or if the folder holds another kind of model.
    """
    kind = source_kind(source)
    if kind == "export":
        return open_exported(Path(str(source)), key, trust_remote_code)
    if kind == "table":
        with errors_named(key):
            return open_table(section_of(TeacherSection, "teacher", {"vectors": str(source)}), key)
    if kind == "api":
        with errors_named(key):
            api = ApiEmbedder(named_api(str(source), key), key=key)
            with closed_on_error(api):
                assert api.dim  # asks the server once, so that one that does not answer is found out here
            return api
    open_route = partial(open_model, source, key=key, device=device, trust_remote_code=trust_remote_code)
    if _is_routed(source):
        return RoutedEmbedder(open_route(role="query"), open_route(role="document"))
    return open_route()


@contextmanager
def opened(
    source: Source, *, key: str = "model", device: str = "auto", trust_remote_code: bool = False
) -> Iterator[Embedder]:
    """Open an embedder, and close the connections of an API at the end; arguments and errors as `open_embedder`."""
    embedder = open_embedder(source, key=key, device=device, trust_remote_code=trust_remote_code)
    if isinstance(embedder, ApiEmbedder):
        with embedder:
            yield embedder
    else:
        yield embedder


@contextmanager
def closed_on_error(api: ApiEmbedder) -> Iterator[None]:
    """Close an API's connections if the block fails."""
    try:
        yield
    except BaseException:
        api.client.close()
        raise


def _is_routed(source: Source) -> bool:
    if isinstance(source, SentenceTransformer):
        return one_route(source, "query") is not source
    with suppress(OSError, ValueError):  # a name without a model: opening it says so
        return has_routes(ModelName(str(source)))
    return False


def open_model(
    source: Source,
    *,
    key: str = "model",
    device: str = "auto",
    trust_remote_code: bool = False,
    role: Role = "document",
) -> ModelEmbedder:
    """Open a folder, hub id or SentenceTransformer, where the model itself is needed: to time it, to try prompts.

    Of a Router the model for this role is opened.

    Errors: DistilvecError with `key` for another kind of source, which is not opened, and as `open_embedder`.
    """
    expect_kind(source, ("model",), key)
    if isinstance(source, SentenceTransformer):
        model = one_route(source, role)
        with about(key):
            check_model(model, "the model")
        return ModelEmbedder(model, key, key=key)
    if not isinstance(source, (str, os.PathLike)):
        problem = f"expected a folder, an id or a SentenceTransformer; found {type(source).__name__}."
        raise DistilvecError(problem, key=key)
    name = str(source)
    preset = PRESETS.get(find_preset(None, name) or "")
    settings = ModelSettings(plain=plain_settings(preset))
    prompts: Any = None if preset is None else dict(preset.prompts)
    model_name = ModelName(name, trusted=trust_remote_code)
    embedder = load_embedder(model_name, key, device, settings, prompts=prompts, role=role)
    for note in embedder.notes:
        log(f"{embedder.name}: {note}.")
    return embedder


def open_table(
    section: TeacherSection, key: str = "teacher.vectors", refresh: bool = False, root: Path | None = None
) -> TableEmbedder:
    """Open a table or index with settings, through its copy in the cache folder unless it is Parquet and read whole.

    Args:
        refresh: make the copy again
        root: the cache's folder; by default the user's

    Errors: DistilvecError with the keys of a recipe for what cannot be read; with DISTILVEC_CACHE for a user's cache
    folder that cannot be written.
    """
    if root is not None:
        return TableEmbedder(local_table(section, root, refresh), key)
    with cache_named():
        table = local_table(section, user_cache(), refresh)
    return TableEmbedder(table, key)


def expect_kind(source: Source, kinds: Sequence[Kind], key: str) -> None:
    """Raise DistilvecError with `key` for a source of another kind."""
    kind = source_kind(source)
    if kind not in kinds:
        expected = " or ".join(NAMES[kind] for kind in kinds)
        raise DistilvecError(f"{shown(source)} is {NAMES[kind]}; expected {expected}.", "Name another one.", key=key)


@contextmanager
def cache_named() -> Iterator[None]:
    """Name the environment variable in errors about the cache's folder, for verbs that read no recipe."""
    try:
        yield
    except DistilvecError as error:
        if error.key != "cache.root":
            raise
        fix = "Set this environment variable to a folder that can be written."
        raise DistilvecError(error.problem, fix, key=CACHE_VARIABLE) from error


@contextmanager
def errors_named(key: str) -> Iterator[None]:
    """Give the errors inside this key, but for those about the cache's folder.

    What is opened by its name alone can name neither columns nor a file of texts: such errors get another fix.
    """
    try:
        yield
    except DistilvecError as error:
        if error.key == CACHE_VARIABLE:
            raise
        fix = error.fix
        if error.key == "teacher.columns":
            fix = "Rename the columns, or use `distilvec check` with --column."
        elif error.key == "teacher.texts":
            fix = "Give a table with a column of texts, or use `distilvec check` with --texts."
        raise DistilvecError(error.problem, fix, key=key) from error


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
        made_by = section.made_by
        return TableEmbedder(section, open_maker=partial(open_maker, made_by, device=device) if made_by else None)
    return load_teacher(section, device, sharded)


def load_teacher(section: TeacherSection, device: str = "auto", sharded: bool = False) -> ModelEmbedder:
    """Load the model that a recipe names as its teacher.

    Errors: DistilvecError for a model that cannot be loaded or gives no finite vectors, a plain model without
    `pooling`, and for `max_length` or `truncate_dim` beyond the model's.
    """
    model = section.named_model
    if model is None:
        raise DistilvecError(
            "expected a model; found a table of vectors (teacher.vectors).", "Name one.", key="teacher.model"
        )
    teacher = load_embedder(
        model,
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
    if has_routes(model):
        teacher.notes = (*teacher.notes, "it is a Router: all texts go through its model for documents")
    return teacher


def model_settings(section: TeacherSection) -> ModelSettings:
    """Return the settings that a recipe loads its teacher with.

    `dtype: auto` is float32 here: a job decides it before (pipeline/decide.py).
    """
    return ModelSettings(
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


def open_maker(name: str, key: str = "teacher.made_by", device: str = "auto") -> ModelEmbedder | ApiEmbedder:
    """Open a model or an API that may have made a table.

    Errors: DistilvecError with `key` for another kind of source, and as `open_embedder`.
    """
    expect_kind(name, ("model", "api"), key)
    embedder = open_embedder(name, key=key, device=device)
    if isinstance(embedder, RoutedEmbedder):  # a table holds documents
        return embedder.document
    assert isinstance(embedder, (ModelEmbedder, ApiEmbedder))
    return embedder
