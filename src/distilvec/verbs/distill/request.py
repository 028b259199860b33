"""The arguments of `distilvec distill`, and what is wrong with them without a look at a model. No torch is imported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distilvec.cli.options import names_by_key, option_keys
from distilvec.config.recipe import check_stated_once, recipe_from, set_key, stated_sizes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError, about
from distilvec.teachers.indexes.stores import read_address, store_of
from distilvec.teachers.sources import check_source_kind, source_kind
from distilvec.verbs.distill.command import distill as command
from distilvec.verbs.distill.words import BUILT_IN, check_has_texts

if TYPE_CHECKING:
    from distilvec.pipeline.inputs import Model, Texts

KEYS = option_keys(command)  # of the recipe, by the names of arguments
TEACHER = "teacher"  # student.model: the teacher's own backbone
METHOD = "redact"
QUARTER = "25%"  # of the teacher's parameters, without `size` and `layers`

TeacherKind = Literal["model", "table", "api", "array"]


@dataclass(frozen=True)
class Request:
    """The arguments of `distilvec.distill`. Standard input can be read only once: `queries` are sources of a recipe."""

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
    query_texts: Texts | Sequence[Path] | None = None
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
        parts = [short_name(self.teacher)]
        layers = self.overrides.get("student.layers") if self.layers is None else self.layers
        if isinstance(layers, dict):
            layers = layers.get("count")
        if layers is not None:
            kept = "-".join(map(str, layers)) if isinstance(layers, list) else layers
            parts.append(f"{kept}-layers")
        if self.student is not None:
            parts.append(short_name(self.student))
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


def check_request(request: Request) -> None:
    """Refuse a teacher of no known kind, and arguments that are wrong by themselves or contradict each other."""
    with about("teacher"):
        check_source_kind(request.teacher)
    check_stated_once(KEYS, vars(request), request.overrides)
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
        problem = f"found {foreign[0]}={columns[foreign[0]]}; {short_name(request.teacher)} is not an index."
        raise DistilvecError(problem, "Give it text=NAME, the column of the texts, or origin=NAME.", key="columns")
    if request.kind != "table":
        for name in ("where", "limit", "similarity", "repeats", "pairs"):
            if getattr(request, name) is not None:
                problem = f"is for an index; {short_name(request.teacher)} is not one."
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
    _check_training(request)


def _check_training(request: Request) -> None:
    """Refuse sections of no recipe, and wrong keys and values of `train`, which depends on no other argument."""
    sections = {*Recipe.model_fields} - {"train"}
    changes = {key: value for key, value in request.overrides.items() if key.split(".")[0] not in sections}
    tree: dict[str, Any] = {
        "name": "any",
        "teacher": {"model": "any"},
        "student": {"model": TEACHER},
        "corpus": {"sources": [{"builtin": BUILT_IN}]},
        "method": {"name": METHOD},
    }
    for name in ("epochs", "minutes"):
        if getattr(request, name) is not None:
            set_key(tree, KEYS[name], getattr(request, name))
    recipe_from(tree, changes, "distilvec distill")


def has_texts_elsewhere(request: Request) -> bool:
    """Return whether the teacher is a file of vectors alone, so that TEXTS names the file of their texts."""
    if request.kind != "table":
        return False
    with about("teacher"):
        return not store_of(read_address(str(request.teacher))).reader_class.has_texts


def short_name(model: Any) -> str:
    """Return a short name of a teacher or student for the run folder."""
    if isinstance(model, np.ndarray):
        return "vectors"
    if not isinstance(model, (str, Path)):
        return "model"
    text = str(model).rstrip("/")
    if text.startswith(("http://", "https://")):
        return re.sub(r"\W+", "-", text.partition("://")[2].partition("/")[0])
    last = re.split(r"[/:]", text)[-1]
    return re.sub(r"[^\w.-]+", "-", last.partition("?")[0]) or "student"
