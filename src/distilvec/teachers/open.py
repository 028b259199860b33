"""The one door to embedders: models, files of exports, tables of vectors, indexes, APIs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from sentence_transformers import SentenceTransformer

from distilvec.config.presets import PRESETS, find_preset
from distilvec.config.recipe import section_of
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import ColumnError, DistilvecError
from distilvec.core.files import user_cache
from distilvec.core.info import Role
from distilvec.core.log import log
from distilvec.models.load import has_routes, one_route
from distilvec.models.settings import ModelSettings
from distilvec.models.unreadable import check_model
from distilvec.teachers.api_embedder import ApiEmbedder, named_api
from distilvec.teachers.embedder import Embedder
from distilvec.teachers.graph_embedder import open_exported
from distilvec.teachers.indexes.copy import local_table
from distilvec.teachers.model_embedder import ModelEmbedder, load_embedder
from distilvec.teachers.routed import RoutedEmbedder
from distilvec.teachers.sources import NAMES, Kind, shown, source_kind
from distilvec.teachers.table_embedder import TableEmbedder
from distilvec.teachers.teacher import plain_settings

CACHE_VARIABLE = "DISTILVEC_CACHE"
Source: TypeAlias = str | os.PathLike[str] | SentenceTransformer


def open_embedder(
    source: Source, *, key: str = "model", device: str = "auto", trust_remote_code: bool = False
) -> Embedder:
    """Open whatever `source` names.

    - a model: a folder, a hub id, a SentenceTransformer
    - the file of an export: .onnx or .xml, below its model's folder
    - a table of vectors: Parquet, Arrow, NumPy, FAISS, Lance; or the address of an index: qdrant://, postgresql://.
      Other forms than whole Parquet files are copied to the cache folder first.
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
        return has_routes(str(source), None)
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
        check_model(model, "the model", key)
        return ModelEmbedder(model, key, key=key)
    if not isinstance(source, (str, os.PathLike)):
        problem = f"expected a folder, an id or a SentenceTransformer; found {type(source).__name__}."
        raise DistilvecError(problem, key=key)
    name = str(source)
    preset = PRESETS.get(find_preset(None, name) or "")
    settings = ModelSettings(trust_remote_code=trust_remote_code, plain=plain_settings(preset))
    prompts: Any = None if preset is None else dict(preset.prompts)
    embedder = load_embedder(name, key, device, settings, prompts=prompts, role=role)
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
        if isinstance(error, ColumnError):
            fix = "Rename the columns, or use `distilvec check` with --column."
        elif error.key == "teacher.texts":
            fix = "Give a table with a column of texts, or use `distilvec check` with --texts."
        raise DistilvecError(error.problem, fix, key=key) from error
