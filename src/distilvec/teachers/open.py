"""The one door to embedders: models, files of exports, tables of vectors, indexes, APIs; and to a recipe's teacher."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sentence_transformers import SentenceTransformer

from distilvec.config.recipe import section_of
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError, about, set_by, user_error
from distilvec.core.files import user_cache
from distilvec.core.info import Role, TeacherInfo
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.data.corpus import Corpus
from distilvec.models.checks import check_model
from distilvec.models.load import has_routes, one_route
from distilvec.teachers.cache.fill import FillSteps
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.embedder import Embedder, is_api, kept_dims
from distilvec.teachers.indexes.stores import read_address
from distilvec.teachers.model_embedder import ModelEmbedder, RoutedEmbedder, load_embedder
from distilvec.teachers.sources import NAMES, Kind, source_kind, source_name

if TYPE_CHECKING:
    from distilvec.teachers.api_embedder import ApiEmbedder
    from distilvec.teachers.table_embedder import TableEmbedder

Source: TypeAlias = str | os.PathLike[str] | SentenceTransformer


@contextmanager
def _by_name() -> Iterator[None]:
    """Leave errors inside to the argument that named the source: a name has no section whose keys they could be about.

    So that `about("model")` around makes "model" of ".api.base_url", which is a key of a recipe's section.
    """
    try:
        yield
    except Exception as error:
        problem = user_error(error)
        if problem is None or not problem.key.startswith((".", "teacher.")):
            raise
        problem.key = ""
        raise problem from (None if problem is error else error)


@_by_name()
def open_embedder(source: Source, *, device: str = "auto", trust_remote_code: bool = False) -> Embedder:
    """Open whatever `source` names.

    - a model: a folder, a hub id, a SentenceTransformer
    - the file of an export: .onnx or .xml, below its model's folder
    - a table or index of vectors by its path or address (docs/index_formats.md). Other forms than whole Parquet files
      are copied to the cache folder first.
    - an API: `openai:MODEL` with the key in OPENAI_API_KEY; or the URL of a server with OpenAI's interface, with
      #MODEL behind it if the server has several models, and the key, if it needs one, in DISTILVEC_API_KEY

    An API holds connections until it is closed: `with opened(...)` closes it.
    """
    kind = source_kind(source)
    if kind == "export":
        from distilvec.teachers.graph_embedder import open_exported  # with ONNX and OpenVINO

        return open_exported(Path(str(source)), trust_remote_code)
    if kind == "table":
        read_address(str(source))  # before the section, whose errors are about its keys
        return open_table(section_of(TeacherSection, "teacher", {"vectors": str(source)}))
    if kind == "api":
        from distilvec.teachers.api_embedder import ApiEmbedder, named_api

        api = ApiEmbedder(named_api(str(source)))
        try:
            assert api.dim  # asks the server once, so that one that does not answer is found out here
        except BaseException:
            api.client.close()
            raise
        return api
    open_route = partial(open_model, source, device=device, trust_remote_code=trust_remote_code)
    if _is_routed(source):
        return RoutedEmbedder(open_route(role="query"), open_route(role="document"))
    return open_route()


@contextmanager
def opened(source: Source, *, device: str = "auto", trust_remote_code: bool = False) -> Iterator[Embedder]:
    """Open an embedder, and close the connections of an API at the end; arguments as `open_embedder`."""
    embedder = open_embedder(source, device=device, trust_remote_code=trust_remote_code)
    if is_api(embedder):
        with embedder:
            yield embedder
    else:
        yield embedder


def _is_routed(source: Source) -> bool:
    if isinstance(source, SentenceTransformer):
        return one_route(source, "query") is not source
    with suppress(OSError, ValueError):  # a name without a model: opening it says so
        return has_routes(ModelName(str(source)))
    return False


@_by_name()
def open_model(
    source: Source, *, device: str = "auto", trust_remote_code: bool = False, role: Role = "document"
) -> ModelEmbedder:
    """Open a folder, hub id or SentenceTransformer, where the model itself is needed: to time it, to try prompts.

    Of a Router the model for this role is opened. Another kind of source is refused, and not opened.
    """
    expect_kind(source, ("model",))
    if isinstance(source, SentenceTransformer):
        model = one_route(source, role)
        check_model(model, "the model")
        return ModelEmbedder(model, "model")
    if not isinstance(source, (str, os.PathLike)):
        raise DistilvecError(f"expected a folder, an id or a SentenceTransformer; found {type(source).__name__}.")
    named = {"model": str(source), "trust_remote_code": trust_remote_code}
    with about("", str(source)):
        embedder = load_embedder(section_of(TeacherSection, "teacher", named), device, role=role)
    for note in embedder.notes:
        log(f"{embedder.name}: {note}.")
    return embedder


def open_table(section: TeacherSection, refresh: bool = False, root: Path | None = None) -> TableEmbedder:
    """Open a table or index with settings, through its copy in the cache folder unless it is Parquet and read whole.

    Args:
        refresh: make the copy again
        root: the cache's folder; by default the user's
    """
    from distilvec.teachers.indexes.copy import local_table
    from distilvec.teachers.table_embedder import TableEmbedder

    if root is not None:
        return TableEmbedder(local_table(section, root, refresh))
    with set_by({"cache.root": "DISTILVEC_CACHE"}):
        table = local_table(section, user_cache(), refresh)
    return TableEmbedder(table)


def open_maker(name: str, device: str = "auto") -> ModelEmbedder | ApiEmbedder:
    """Open a model or an API that may have made a table."""
    expect_kind(name, ("model", "api"))
    embedder = open_embedder(name, device=device)
    if isinstance(embedder, RoutedEmbedder):  # a table holds documents
        return embedder.document
    if is_api(embedder):
        return embedder
    assert isinstance(embedder, ModelEmbedder)
    return embedder


def expect_kind(source: Source, kinds: Sequence[Kind]) -> None:
    """Raise DistilvecError for a source of another kind."""
    kind = source_kind(source)
    if kind not in kinds:
        expected = " or ".join(NAMES[kind] for kind in kinds)
        raise DistilvecError(f"{source_name(source)} is {NAMES[kind]}; expected {expected}.", "Name another one.")


def log_similarity(section: TeacherSection, normalized: bool) -> None:
    """Log how vectors are read that state no similarity; where all have length 1, every similarity ranks alike.

    The section is one that `local_table` returned, which has what an index states, and its name.
    """
    if section.similarity is not None or section.local_model is not None or normalized:
        return
    origin = section.name or section.vectors or "the API"
    log(
        f"{origin}: no similarity is stated, and not all vectors have length 1: they are compared by cosine. "
        "If your search takes the inner product or the distance, state it: teacher.similarity (--similarity) is dot or "
        "euclidean."
    )


class TeacherEmbedder(Embedder, Protocol):
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

    def __enter__(self) -> TeacherEmbedder:
        """The teacher itself."""
        ...

    def __exit__(self, *error: object) -> None:
        """Free the memory."""
        ...


OpenTeacher: TypeAlias = "ModelEmbedder | TableEmbedder | ApiEmbedder"


def open_teacher(
    section: TeacherSection, device: str = "auto", counts: Path | None = None, sharded: bool = False
) -> OpenTeacher:
    """Open the teacher that a recipe names; an API's requests are counted in the file `counts`.

    `sharded`: a model stays on the CPU, since it is going to be sharded. Keys of errors are relative to the section.
    """
    if section.api is not None:
        from distilvec.teachers.api_embedder import ApiEmbedder

        return ApiEmbedder(section, counts)
    if section.vectors is None:
        return load_teacher(section, device, sharded)

    from distilvec.teachers.table_embedder import TableEmbedder

    if section.made_by is None:
        return TableEmbedder(section)
    return TableEmbedder(section, partial(open_maker, section.made_by, device=device))


def load_teacher(section: TeacherSection, device: str = "auto", sharded: bool = False) -> ModelEmbedder:
    """Load the model that a recipe names as its teacher."""
    model = section.named_model
    assert model is not None
    with about(".model", model.name):
        teacher = load_embedder(section, device, sharded=sharded)
    kept_dims(section.truncate_dim, int(teacher.model.get_embedding_dimension() or 0))
    # Also after a cut of the folder's own, which loses the length: students normalise after their last layer
    teacher.normalized = type(teacher.model[-1]).__name__ == "Normalize"
    if has_routes(model):
        teacher.notes = (*teacher.notes, "it is a Router: all texts go through its model for documents")
    return teacher
