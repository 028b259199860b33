"""Errors about a recipe's keys, in the words of the one who did not write a recipe: arguments and options."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from distilvec.core.errors import ColumnError, DistilvecError

if TYPE_CHECKING:
    from distilvec.config.schema import Recipe
    from distilvec.verbs.distill.recipe import Request

# The argument of `distilvec.distill` that sets a key of the recipe
ARGUMENTS: Mapping[str, str] = {
    "teacher": "teacher",
    "teacher.model": "teacher",
    "teacher.vectors": "teacher",
    "teacher.api": "teacher",
    "teacher.api.base_url": "teacher",
    "teacher.columns": "columns",
    "teacher.limit": "limit",
    "teacher.similarity": "similarity",
    "teacher.repeats": "repeats",
    "teacher.texts": "texts",
    "teacher.made_by": "made_by",
    "teacher.prompts": "query_prompt",
    "student.model": "student",
    "student.size": "size",
    "student.layers": "layers",
    "student.dims": "dims",
    "student.vocabulary": "language",
    "corpus.sources": "texts",
    "train.epochs": "epochs",
    "train.minutes": "minutes",
    "evaluation.suite": "test",
    "suite": "test",
    "method.name": "method",
}
_SOURCE = re.compile(r"corpus\.sources\.\d+\.(\w+)")
STORED = "evaluation.stored"
_POSITIONAL = ("teacher", "texts")


@contextmanager
def arguments_named(stated_keys: Collection[str] = ()) -> Iterator[None]:
    """Rename errors inside from the recipe's key to the argument; `stated_keys` were named by the user as keys."""
    try:
        yield
    except DistilvecError as error:
        from distilvec.config.messages import with_keys  # imports pydantic, which `--help` does not need

        raise with_keys(error, lambda key: key if key in stated_keys else _argument(key)) from error


@contextmanager
def queries_named(recipe: Recipe) -> Iterator[None]:
    """Rename errors inside from the recipe's sources of queries to the argument `queries`."""
    try:
        yield
    except DistilvecError as error:
        from distilvec.config.messages import with_keys

        sources = [] if recipe.corpus is None else recipe.corpus.sources
        of_queries = [f"corpus.sources.{row}." for row, source in enumerate(sources) if source.role == "query"]
        rename = partial(_query_key, of_queries)
        raise with_keys(error, rename) from error


def _query_key(sources: Sequence[str], key: str) -> str:
    is_column = key.endswith((".column", ".origin"))  # has an option of its own
    return "queries" if key.startswith(tuple(sources)) and not is_column else key


@contextmanager
def columns_named(recipe: Recipe) -> Iterator[None]:
    """Let errors about a column of texts advise the recipe's key where --column names the columns of an index."""
    try:
        yield
    except ColumnError as error:
        if recipe.teacher.vectors is None or recipe.corpus is None or _SOURCE.fullmatch(error.key) is None:
            raise
        source = recipe.corpus.sources[int(error.key.split(".")[2])]
        argument = "queries" if source.role == "query" else "texts"
        raise DistilvecError(error.problem, f"Name the right one: {error.key}=NAME.", key=argument) from error


@contextmanager
def small_index_named(request: Request) -> Iterator[None]:
    """Name the index, or its limit, in the error for too few stored texts, unless the user has set that key."""
    try:
        yield
    except DistilvecError as error:
        if error.key != STORED or STORED in request.overrides:
            raise
        from distilvec.evaluation.stored import FEWEST  # imports numpy, which `--help` does not need

        argument = "teacher" if request.index.limit is None else "limit"
        problem = f"{request.teacher} gives too few distinct texts: the student is tested on some of at least {FEWEST}."
        fix = "Give an index with more texts." if argument == "teacher" else "Give a larger number."
        raise DistilvecError(problem, fix, key=argument) from error


@contextmanager
def options_named() -> Iterator[None]:
    """Rename errors inside from the argument to the option of the command line: size to --size."""
    try:
        yield
    except DistilvecError as error:
        from distilvec.config.messages import with_keys  # imports pydantic, which `--help` does not need

        raise with_keys(error, _option, text_column="--column text=NAME") from error


def _argument(key: str) -> str:
    source = _SOURCE.fullmatch(key)
    if source is not None:
        return "columns" if source[1] in ("column", "origin") else "texts"
    return ARGUMENTS.get(key, key)


def _option(argument: str) -> str:
    if argument in _POSITIONAL:
        return argument.upper()
    if argument == "columns":
        return "--column"
    known = {*ARGUMENTS.values(), "queries", "api_model", "document_prompt", "out"}
    return f"--{argument.replace('_', '-')}" if argument in known else argument
