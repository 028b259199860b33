"""The recipe of `distilvec distill`: the arguments that the user gives, and defaults that are right for the teacher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from distilvec.config.base import as_name, excerpt
from distilvec.config.paths import resolve_key
from distilvec.config.recipe import (
    SectionType,
    override,
    recipe_from,
    section_of,
    set_key,
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
from distilvec.teachers.sources import index_keys
from distilvec.verbs.distill.request import KEYS, METHOD, TEACHER, Request, check_request, has_texts_elsewhere
from distilvec.verbs.distill.texts import text_sources, with_column, with_pieces
from distilvec.verbs.distill.words import ENOUGH_TEXTS, STANDARD_INPUT, check_content

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


def check_texts_of(request: Request, recipe: Recipe) -> None:
    """Refuse texts of documents that are too few, or cannot be read, before a model is loaded."""
    if request.kind not in ("model", "api") or recipe.corpus is None:
        return
    documents = [source for source in recipe.corpus.sources if source.role != "query" and source.pieces is None]
    paths = [STANDARD_INPUT if source.path is None else str(source.path) for source in documents]
    count = check_content(paths, request.columns.get("text") if request.columns else None)
    if count < ENOUGH_TEXTS:
        log(f"{count} different texts: the student will know few words; give at least {ENOUGH_TEXTS:,}")


def make_recipe(request: Request, root: Path) -> Recipe:
    """Return the recipe of a request.

    Args:
        root: the cache's folder, in which texts and models that are in no file are stored

    Errors: DistilvecError with the name of the argument that is wrong.
    """
    check_request(request)
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
