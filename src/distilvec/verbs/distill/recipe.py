"""The recipe of `distilvec distill`: the arguments that the user gives, and defaults that are right for the teacher."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.cli.options import names_by_key, option_keys
from distilvec.config.base import as_name, excerpt
from distilvec.config.paths import resolve_key
from distilvec.config.recipe import (
    SectionType,
    check_stated_once,
    override,
    recipe_from,
    section_of,
    set_key,
    stated_sizes,
)
from distilvec.config.schema import CacheSection, Recipe, TeacherSection
from distilvec.core.errors import DistilvecError, about, user_error
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.formats.replace import read_record
from distilvec.models.load import load_tokenizer, resolve_model
from distilvec.pipeline.inputs import Model, Texts, saved_model_name, teacher_keys
from distilvec.students.design import SMALL, WIDE, parse_size
from distilvec.students.shape import read_shape, read_width
from distilvec.teachers.indexes.stores import read_address, store_of
from distilvec.teachers.sources import check_source_kind, index_keys, source_kind
from distilvec.verbs.distill.command import distill as command
from distilvec.verbs.distill.texts import text_sources, with_column, with_pieces
from distilvec.verbs.distill.words import STANDARD_INPUT, check_content, check_has_texts

KEYS = option_keys(command)  # of the recipe, by the names of arguments
TEACHER = "teacher"  # student.model: the teacher's own backbone
METHOD = "redact"
QUARTER = "25%"  # of the teacher's parameters, without `size` and `layers`

# A teacher that is no model on this machine has no layers to take: the student is a small model that everybody can get
SMALL_MODEL = "all-MiniLM-L6-v2"  # of 384 dimensions, English
SMALL_MULTILINGUAL_MODEL = "intfloat/multilingual-e5-small"
SHARED = 0.9  # of its tokens, from which on a teacher's vocabulary is taken for the same one

# The stage of `pairs`, after the distillation
CLICKS = {
    "method.name": "clicks",
    "method.options": {},
    "method.weights": {},
    "train.epochs": 5,
    "train.minutes": None,
    "train.learning_rate": 1e-4,
}

INDEX_QUERIES = 500  # stored texts that the student of an index is judged on, and that it is not trained on

TeacherKind = Literal["model", "table", "api", "array"]


@dataclass(frozen=True)
class Request:
    """The arguments of `distilvec.distill`. `queries` are sources of a recipe: standard input can be read once only."""

    teacher: Model | np.ndarray[Any, Any]
    texts: Texts | Sequence[Path] | None = None
    student: Model | None = None
    size: str | None = None
    layers: int | list[int] | None = None
    dims: Sequence[int] | None = None
    language: str | None = None
    minutes: float | None = None
    epochs: int | None = None
    test: Path | None = None
    method: str | None = None
    queries: Sequence[dict[str, Any]] | None = None
    pairs: Path | None = None
    api_model: str | None = None
    columns: Mapping[str, str] | None = None
    where: Mapping[str, Any] | None = None
    limit: int | None = None
    similarity: Literal["cosine", "dot", "euclidean"] | None = None
    repeats: Literal["first", "drop"] | None = None
    made_by: str | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    built_in_prompt: str | None = None
    out: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> TeacherKind:
        """What kind of teacher it is."""
        if isinstance(self.teacher, np.ndarray):
            return "array"
        kind = source_kind(self.teacher)
        if kind == "export":
            raise DistilvecError(f"{self.teacher} is the file of an export.", "Name its model's folder.", key="teacher")
        return kind

    @property
    def prompts(self) -> dict[str, str]:
        """What the model of an index or behind an API was given before texts, by role."""
        prompts = {"query": self.query_prompt, "document": self.document_prompt}
        return {role: prompt for role, prompt in prompts.items() if prompt is not None}

    @property
    def folder(self) -> Path:
        """The run folder: `out`, else runs/TEACHER-SIZE, so that the same command resumes its run."""
        if self.out is not None:
            return self.out
        parts = [_short_name(self.teacher)]
        layers = self.overrides.get("student.layers") if self.layers is None else self.layers
        if isinstance(layers, dict):
            layers = layers.get("count")
        if layers is not None:
            kept = "-".join(map(str, layers)) if isinstance(layers, list) else layers
            parts.append(f"{kept}-layers")
        if self.student is not None:
            parts.append(_short_name(self.student))
        size = self.chosen_size
        if size is not None and not stated_sizes(self.overrides):
            parts.append(size.replace("%", "-percent"))
        if self.language is not None:
            parts.append(self.language)
        return Path("runs") / "-".join(parts)

    @property
    def chosen_size(self) -> str | None:
        """The size that the student is designed for: None for a whole model, and where its layers are named."""
        if self.size is not None:
            return self.size
        if "student.size" in self.overrides:
            size = self.overrides["student.size"]
            return None if size is None else str(size)
        named = self.overrides.get("student.model", TEACHER)  # as `student`: a model that is trained whole
        takes_own_layers = self.kind == "model" and self.student is None and named == TEACHER
        return QUARTER if takes_own_layers and self.layers is None else None


def argument_names(request: Request, recipe: Recipe | None = None) -> dict[str, str]:
    """Return the arguments of a request by the keys of its recipe that they set; see `set_by` (core/errors.py).

    A key that the user has stated in `overrides` is its own name.
    """
    names = names_by_key(command)
    names |= {"teacher.vectors": "teacher", "teacher.api": "teacher", "teacher.prompts": "query_prompt"}
    names |= {"suite": "test", "corpus.sources": "texts", "teacher.texts": "texts"}
    names["evaluation.stored"] = "teacher" if request.limit is None else "limit"
    if request.language is not None:
        names["student.vocabulary"] = "language"
    sources = recipe.corpus.sources if recipe is not None and recipe.corpus is not None else []
    for row, source in enumerate(sources):
        key = f"corpus.sources.{row}"
        names[key] = "queries" if source.role == "query" else "texts"
        for column in (f"{key}.column", f"{key}.origin"):
            # The columns of an index are its own: a column of other texts is named by the recipe's key
            names[column] = column if request.kind == "table" else "columns"
    return names | {key: key for key in request.overrides}


def check_texts_of(request: Request, recipe: Recipe) -> None:
    """Refuse texts of documents that are too few, or cannot be read, before a model is loaded."""
    if request.kind not in ("model", "api") or recipe.corpus is None:
        return
    documents = [source for source in recipe.corpus.sources if source.role != "query" and source.pieces is None]
    paths = [STANDARD_INPUT if source.path is None else str(source.path) for source in documents]
    check_content(paths, request.columns.get("text") if request.columns else None)


def make_recipe(request: Request, root: Path) -> Recipe:
    """Return the recipe of a request.

    Args:
        root: the cache's folder, in which texts and models that are in no file are stored

    Errors: DistilvecError with the name of the argument that is wrong.
    """
    _check_request(request)
    check_stated_once(KEYS, vars(request), request.overrides)
    tree: dict[str, Any] = {
        "name": as_name(re.sub(r"[^\w.-]+", "-", request.folder.resolve().name), "distilled"),
        "teacher": _teacher_section(request, root),
        "student": _student_section(request, root),
        "corpus": {"sources": _corpus_sources(request, root)},
        "method": {"name": METHOD},
        "evaluation": _evaluation_section(request, root),
    }
    for name in ("layers", "dims", "epochs", "minutes", "method", "pairs", "built_in_prompt"):
        value = getattr(request, name)
        if value is not None:
            set_key(tree, KEYS[name], str(value) if isinstance(value, Path) else value)
    if request.pairs is not None:
        tree["stages"] = [{"name": "distil"}, {"name": "clicks", "set": CLICKS}]
    return recipe_from(tree, request.overrides, "distilvec distill")


def _check_request(request: Request) -> None:
    """Refuse a teacher of no known kind, and arguments that contradict each other."""
    with about("teacher"):
        check_source_kind(request.teacher)
    # A static student has a size as well: that of its table
    if request.size is not None and request.layers not in (None, 0):
        raise DistilvecError("size and layers both say how small the student is.", "Give one of them.", key="size")
    sizes = stated_sizes(request.overrides)
    if request.size is not None and sizes:
        raise DistilvecError(f"decides on {sizes[0]}, which is set as well.", "Give one of them.", key="size")
    if request.minutes is not None and request.epochs is not None:
        raise DistilvecError("minutes and epochs both say how long to train.", "Give one of them.", key="minutes")
    if request.api_model is not None and request.kind != "api":
        raise DistilvecError(f"{request.teacher} is not an API.", "Leave it out.", key="api_model")
    columns = request.columns or {}
    foreign = [part for part in columns if part not in ("text", "origin")]
    if foreign and request.kind != "table":
        problem = f"found {foreign[0]}={columns[foreign[0]]}; {_short_name(request.teacher)} is not an index."
        raise DistilvecError(problem, "Give it text=NAME, the column of the texts, or origin=NAME.", key="columns")
    if request.kind != "table":
        for name in ("where", "limit", "similarity", "repeats", "pairs"):
            if getattr(request, name) is not None:
                problem = f"is for an index; {_short_name(request.teacher)} is not one."
                raise DistilvecError(problem, "Leave it out.", key=name)
    if request.kind == "array":
        for name in ("document_prompt", "query_prompt", "built_in_prompt", "queries"):
            if getattr(request, name) is not None:
                raise DistilvecError("an array of vectors has no model.", "Leave it out.", key=name)
    several = isinstance(request.texts, (list, tuple)) and len(request.texts) != 1
    if has_texts_elsewhere(request) and several:
        problem = f"the texts of {request.teacher} are in one file, a row for each vector."
        raise DistilvecError(problem, "Name that file.", key="texts")
    if request.kind != "table":
        check_has_texts(request.teacher, request.texts)


def _teacher_section(request: Request, root: Path) -> dict[str, Any]:
    """Return the recipe's teacher section."""
    if request.kind == "api":
        section = _api_teacher(request)
    elif request.kind == "table":
        section = _index_teacher(request)
    else:
        section = teacher_keys(request.teacher, cast(Texts, request.texts), root)
    if request.made_by is not None:
        section["made_by"] = request.made_by
    # With the model that made the index its prompts are known, even where it has none
    if request.prompts or request.made_by is not None:
        section["prompts"] = request.prompts
    return section


def _index_teacher(request: Request) -> dict[str, Any]:
    """Return how the recipe's teacher section names an index and reads it."""
    texts = request.texts if has_texts_elsewhere(request) else None
    if isinstance(texts, (list, tuple)):
        (texts,) = texts
    with about("teacher"):
        return index_keys(
            str(request.teacher),
            columns=request.columns,
            texts=None if texts is None else str(texts),
            where=request.where,
            limit=request.limit,
            similarity=request.similarity,
            repeats=request.repeats,
        )


def index_section(request: Request) -> TeacherSection:
    """Return the validated section of a request's index, as it is in the recipe."""
    return _stated_section(TeacherSection, "teacher", _teacher_section(request, Path()), request.overrides)


def stated_root(overrides: Mapping[str, Any]) -> Path | None:
    """Return the cache's folder that overrides state: `cache.root`."""
    return _stated_section(CacheSection, "cache", {}, overrides).root


def _stated_section(
    section: type[SectionType], name: str, values: dict[str, Any], overrides: Mapping[str, Any]
) -> SectionType:
    """Return a validated section of the recipe from its values and the overrides of its keys."""
    changes = {}
    for key, value in overrides.items():
        if key.split(".")[0] == name:
            changes[key] = resolve_key(key, value, Path.cwd(), Recipe)
    tree = {name: values}
    override(tree, changes)
    if not isinstance(tree[name], dict):
        raise DistilvecError(f"expected keys with their values; found {excerpt(tree[name])}.", key=name)
    return section_of(section, name, tree[name])


def has_texts_elsewhere(request: Request) -> bool:
    """Return whether the teacher is a file of vectors alone, so that TEXTS names the file of their texts."""
    if request.kind != "table":
        return False
    with about("teacher"):
        return not store_of(read_address(str(request.teacher))).reader_class.has_texts


def _api_teacher(request: Request) -> dict[str, Any]:
    """Return the section of a model behind an API: the named one, else the only one that the server lists."""
    from distilvec.teachers.api_embedder import named_api

    address = str(request.teacher) if request.api_model is None else f"{request.teacher}#{request.api_model}"
    # The server is asked with the key, or the limits, that the command states
    stated_api = _stated_section(TeacherSection, "teacher", {"model": "unknown", "api": {}}, request.overrides).api
    api_keys = {} if stated_api is None else stated_api.model_dump(mode="json", exclude_unset=True)
    with about("teacher"):
        return named_api(address, api_keys).model_dump(mode="json", exclude_unset=True)


def _student_section(request: Request, root: Path) -> dict[str, Any]:
    """Return the recipe's student section."""
    section: dict[str, Any] = {"model": TEACHER}
    student = request.student
    is_our_student = isinstance(student, (str, Path)) and read_record(Path(student)) is not None
    if student is not None:
        section["model"] = saved_model_name(student, root, "student")
    elif request.kind != "model":
        is_english = request.language in (None, "en")
        section["model"] = SMALL_MODEL if is_english else SMALL_MULTILINGUAL_MODEL
    elif _may_be_narrower(request):
        teacher = saved_model_name(cast(Model, request.teacher), root, "teacher")
        revision = request.overrides.get("teacher.revision")
        trusted = bool(request.overrides.get("teacher.trust_remote_code"))
        narrower = narrower_model(ModelName(teacher, revision, trusted), cast(str, request.chosen_size))
        section["model"] = narrower or TEACHER
    if request.chosen_size is not None:
        section["size"] = request.chosen_size
    elif request.language is not None and not is_our_student:
        # Without a size every token that the texts use stays. A student of an earlier run was cut to its language then
        section["vocabulary"] = {"kind": "trim", "letters": "seen"}
    return section


def narrower_model(teacher: ModelName, size: str) -> str | None:
    """Return a narrower model whose layers suit this size better than the teacher's; None to take the teacher's.

    Below SMALL parameters, layers of WIDE dimensions leave one of them or two, with few tokens. all-mpnet-base-v2 at
    5M keeps far more with layers of SMALL_MODEL (docs/sizes.md). That model reads English alone, so it is only for a
    teacher with its vocabulary, BERT's. Where it cannot be had, a line says so.

    Errors: DistilvecError for a teacher or size that cannot be read.
    """
    with about("student.size"):
        budget = parse_size(size)
    with about("teacher", teacher.name):
        width = read_width(teacher)
        if width < WIDE or budget.of(read_shape(teacher)) >= SMALL:
            return None
    if not Path(resolve_model(SMALL_MODEL)).is_dir():  # without a network this takes minutes
        log(f"student: looking for {SMALL_MODEL} on the hub, whose layers suit {size} better than the teacher's")
    try:
        with about("student", SMALL_MODEL):
            small = load_tokenizer(ModelName(SMALL_MODEL)).get_vocab()
    except Exception as error:
        problem = user_error(error)
        if problem is None:
            raise
        log(
            f"student: {SMALL_MODEL} cannot be loaded ({problem.problem.rstrip('.')}), so the student has layers of "
            f"the teacher. distilvec's extra quickstart installs it"
        )
        return None
    with about("teacher", teacher.name):
        vocabulary = load_tokenizer(teacher).get_vocab()
    shared = sum(token in vocabulary for token in small)
    if shared < SHARED * len(small):
        return None
    log(
        f"student: layers of {SMALL_MODEL}; the teacher's layers, of {width} dimensions, are too wide for "
        f"{size} (student.model=teacher takes them)"
    )
    return SMALL_MODEL


def _may_be_narrower(request: Request) -> bool:
    """Whether the student may begin with the layers of another model: the user has not said whose, nor how many.

    Measured for the default method alone; others may compare layers or tokens, which have to be the teacher's then.
    """
    names_layers = request.layers is not None or "student.model" in request.overrides
    states_size = request.size is not None or request.overrides.get("student.size") is not None
    return states_size and not names_layers and request.method in (None, METHOD)


def _corpus_sources(request: Request, root: Path) -> list[dict[str, Any]]:
    """Return the recipe's sources: documents, their pieces, queries."""
    sources: list[dict[str, Any]] = []
    text_columns = request.columns or {}
    if request.kind == "table":
        text_columns = {}  # the columns are those of the index
    if _is_query_side(request):
        return list(request.queries or ()) or [{"builtin": "teacher"}]  # without queries it is refused
    if request.kind == "table" and (request.texts is None or has_texts_elsewhere(request)):
        sources.append({"builtin": "teacher"})
    elif request.texts is not None:
        documents = text_sources(request.texts, root, role="document", language=request.language)
        if "text" in text_columns:
            documents = with_column(documents, text_columns["text"])
        if "origin" in text_columns:
            documents = [{**source, "origin": text_columns["origin"]} for source in documents]
        # A table has no vectors of pieces, and an array none of other texts than its own
        if request.kind in ("table", "array"):
            sources += documents
        else:
            sources += with_pieces(documents)
    if request.queries is not None:
        queries = list(request.queries)
        if "text" in text_columns:
            queries = with_column(queries, text_columns["text"], where_there=True)
        sources += queries
    return sources


def _is_query_side(request: Request) -> bool:
    """Return whether the student embeds queries of an index alone: it has no vectors of documents."""
    stated = request.built_in_prompt or request.overrides.get("student.built_in_prompt")
    return request.kind == "table" and stated is not None


def _evaluation_section(request: Request, root: Path) -> dict[str, Any]:
    """Return the recipe's evaluation section; overlap@10 of held-out texts is measured in every run."""
    section: dict[str, Any] = {}
    if request.kind == "table" and not _is_query_side(request):
        section = {"stored": INDEX_QUERIES, "columns": ["teacher", "asymmetric"], "parts": ["agreement"]}
    if request.test is not None:
        from distilvec.verbs.distill.evaluation_data import suite_of

        section["suite"] = str(suite_of(request.test, root))
    return section


def _short_name(model: Any) -> str:
    """Return a short name of a teacher or student for the run folder."""
    if isinstance(model, np.ndarray):
        return "vectors"
    if isinstance(model, SentenceTransformer):
        return "model"
    text = str(model).rstrip("/")
    if text.startswith(("http://", "https://")):
        return re.sub(r"\W+", "-", text.partition("://")[2].partition("/")[0])
    last = re.split(r"[/:]", text)[-1]
    return re.sub(r"[^\w.-]+", "-", last.partition("?")[0]) or "student"
