"""Options that verbs share, and the checks before the work. Nothing here imports a model library."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import typer

from distilvec.cli.layout import Command
from distilvec.cli.output import STANDARD_OUTPUT
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import check_output_file, existing_paths
from distilvec.core.run_folder import RunFolder

if TYPE_CHECKING:
    from distilvec.config.schema import Recipe

Verb = TypeVar("Verb", bound=Callable[..., Any])
PARTS = ("text", "embedding", "id", "role", "origin")  # columns of an index
HOME = ("~/", f"~{os.sep}")


class App(typer.Typer):
    """A typer app whose commands get their paths with the home folder in the place of `~`. It imports no rich."""

    def __init__(self, *, add_completion: bool = False, **settings: Any) -> None:
        super().__init__(
            add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **settings
        )

    def command(self, *names: Any, **more: Any) -> Callable[[Verb], Verb]:
        """Register a command."""
        register = super().command(*names, cls=Command, **more)
        return lambda verb: register(_with_home(verb))

    def callback(self, *names: Any, **more: Any) -> Callable[[Verb], Verb]:
        """Register the function of the app itself."""
        register = super().callback(*names, **more)
        return lambda verb: register(_with_home(verb))


def _with_home(verb: Verb) -> Verb:
    @wraps(verb)  # typer reads the signature of the verb
    def call(**values: Any) -> Any:
        return verb(**{name: with_home(value) for name, value in values.items()})

    return cast(Verb, call)


def with_home(value: Any) -> Any:
    """Return the value of an argument or option, with the home folder in the place of `~` in paths.

    A shell leaves `~` in '~/texts.txt' and in --out=~/run as it is. Models and texts are plain text, since they may be
    ids of the hub: in them `~/` alone begins a path.
    """
    if isinstance(value, (list, tuple)):
        return [with_home(item) for item in value]
    is_path = isinstance(value, Path) or (isinstance(value, str) and value.startswith(HOME))
    if not is_path:
        return value
    try:
        return type(value)(Path(value).expanduser())
    except RuntimeError:  # a file whose name begins with "~", or a user without a home folder
        return value


def argument(text: str, key: str = "", **more: Any) -> Any:
    """A positional argument; `key` as for an option."""
    declaration: Any = typer.Argument(help=text, **more)
    declaration.recipe_key = key
    return declaration


def option(text: str, *names: str, key: str = "", **more: Any) -> Any:
    """An option. `key` is the recipe's key that it sets; see `recipe_keys`."""
    declaration: Any = typer.Option(*names, help=text, **more)
    declaration.recipe_key = key
    return declaration


def option_keys(verb: Callable[..., Any]) -> dict[str, str]:
    """Return the recipe's key of every option of a verb that sets one, by the option's name: {"size": "student.size"}.

    The verb's signature is the only declaration of an option: its name, kind, help and key. What it sets is found under
    this key, errors about the key name the option (`names_by_key`), and a change of the key beside it is refused
    (config/recipe.py: check_stated_once).
    """
    keys = {}
    for name, annotation in get_type_hints(verb, include_extras=True).items():
        for declaration in getattr(annotation, "__metadata__", ()):
            if getattr(declaration, "recipe_key", ""):
                keys[name] = declaration.recipe_key
    return keys


def names_by_key(verb: Callable[..., Any]) -> dict[str, str]:
    """Return the names of a verb's options by the recipe's keys that they set, for `set_by` (core/errors.py)."""
    return {key: name for name, key in option_keys(verb).items()}


RecipeFile = Annotated[str, argument("A recipe file, or a built-in recipe (see `distilvec recipes`).")]
Overrides = Annotated[list[str] | None, argument("Changes to the recipe, such as train.epochs=3", metavar="KEY=VALUE")]
Variant = Annotated[list[str] | None, option("A variant of the recipe; repeat to combine several.")]
Out = Annotated[Path | None, option("The run folder; <output>/<recipe's name> by default.")]
Restart = Annotated[bool, option("Move the earlier run aside (<name>.old-<time>) and start over.", "--restart")]
JsonFile = Annotated[Path | None, option("Write the result here as JSON; - is standard output.", "--json")]
Model = Annotated[str, argument("A SentenceTransformer folder or id.")]
ModelOrFile = Annotated[str, argument("A SentenceTransformer folder or id, or a file of `distilvec export`.")]
TextColumns = Annotated[list[str] | None, option("The column(s) with texts; found by name when left out.")]
TextLimit = Annotated[int | None, option("Read only the first n texts of each file.", min=1)]
TrustRemoteCode = Annotated[
    bool, option("Run code that comes with the model; only if you trust its authors.", "--trust-remote-code")
]


def combined(variant: list[str] | None) -> str | None:
    """Several variants as one name: "first+second"."""
    return "+".join(variant) if variant else None


def check_recipe_paths(recipe: Recipe) -> None:
    """DistilvecError for a teacher, student or corpus file that does not exist, before any model library is loaded."""
    from distilvec.data.readers import check_readable

    if recipe.teacher.local_model is not None:
        check_model_path(recipe.teacher.local_model, "teacher.model")
    if recipe.student.model is not None:
        check_model_path(recipe.student.model, "student.model")
    for position, source in enumerate(recipe.corpus.sources if recipe.corpus is not None else ()):
        if source.path is not None and not source.path.is_dir():
            with about(f"corpus.sources.{position}.path"):
                check_readable(source.path)


# -- checks ------------------------------------------------------------------------------------------------------------


def source_names(count: int, texts: str = "texts", column: str = "column") -> dict[str, str]:
    """The arguments that name the texts of a recipe's first sources, and their columns, by key; see `set_by`."""
    names = {}
    for position in range(count):
        names[f"corpus.sources.{position}"] = texts
        names[f"corpus.sources.{position}.column"] = column
    return names


def check_model_path(name: str, key: str) -> None:
    """DistilvecError for the path of a model that does not exist. Ids and addresses are left to the loader."""
    is_address = "://" in name or name.startswith("openai:")
    looks_like_a_path = name.startswith((".", "~", os.sep, "runs/")) or name.count("/") > 1 or name.endswith("/")
    if looks_like_a_path and not is_address and not Path(name).exists():
        raise DistilvecError(f"{name} does not exist.", "Check the path.", key=key)


def check_input(path: Path | None, key: str) -> None:
    """DistilvecError for a file or folder that does not exist; None is fine."""
    if path is not None and not path.exists():
        raise DistilvecError(f"{path} does not exist.", "Check the path.", key=key)


def check_outputs(files: Sequence[tuple[str, Path | None]], inputs: Iterable[str | Path | None] = ()) -> None:
    """DistilvecError unless every (option, file) can be written, is named once, and replaces nothing that is read.

    `inputs` are files, folders and names of models; what is no path among them is passed over. A folder that is read,
    of a model or of texts, gets no new file either. Files of runs are never replaced.
    """
    input_paths = existing_paths(path for path in inputs if path is not None)
    options: dict[Path, str] = {}
    for key, path in files:
        if path is None or path == STANDARD_OUTPUT:
            continue
        with about(key, path):
            check_output_file(path)
        file = path.resolve()
        if file in options:
            raise DistilvecError(
                f"{path} is written by {options[file]} as well.", "Choose two different files.", key=key
            )
        link = path.parent.resolve() / path.name  # a link itself would be replaced, not the file that it leads to
        if not input_paths.isdisjoint({file, link}) or _is_file_of_a_run(link):
            raise DistilvecError(f"{path} is read here, and would be lost.", "Choose another path.", key=key)
        folder = next((parent for parent in (*file.parents, *link.parents) if parent in input_paths), None)
        if folder is not None:
            raise DistilvecError(f"{path} is in {folder}, which is read here.", "Choose another folder.", key=key)
        options[file] = key


def _is_file_of_a_run(file: Path) -> bool:
    """Whether a run or a sweep has, or will have, this file in its folder."""
    for folder in file.parents:
        run = RunFolder(folder)
        if not run.recipe.exists() and not run.sweep.exists():
            continue
        parts = (run.recipe, run.report_page, run.student, run.students, run.projected, run.router, run.details)
        if any(file.is_relative_to(part) for part in parts):
            return True
    return False


def check_dry_run(dry_run: bool, json_file: Path | None) -> None:
    """DistilvecError for --json with --dry-run, which has no result to write."""
    if dry_run and json_file is not None:
        raise DistilvecError(
            "writes the result, which a dry run does not have.", "Leave out one of the two.", key="--json"
        )


def files_of_recipes(recipes: Iterable[Recipe]) -> set[Path]:
    """The files and folders that recipes read, for `check_outputs`."""
    from distilvec.pipeline.claim import recipe_inputs

    paths = set()
    for recipe in recipes:
        paths |= recipe_inputs(recipe)
    return paths


def changed_files(changes: Mapping[str, Any]) -> set[Path]:
    """The files and folders that are read for changed keys of a recipe, for `check_outputs`."""
    from distilvec.pipeline.claim import changed_inputs

    return changed_inputs(changes)


def check_positive(value: float, key: str) -> None:
    """DistilvecError for a number that is not above 0, or not finite."""
    if not (math.isfinite(value) and value > 0):
        raise DistilvecError(f"found {value:g}.", "Give a number above 0.", key=key)


def read_where(words: Sequence[str]) -> dict[str, list[str | int | None]]:
    """Read NAME=VALUE of the option --where: the values of each column; null is no value."""
    where: dict[str, list[str | int | None]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise DistilvecError(
                f"{word!r} is not NAME=VALUE, as in lang=en.", "Name a column and a value.", key="--where"
            )
        where.setdefault(name, []).append(None if value == "null" else value)
    return where


def read_columns(words: Sequence[str]) -> dict[str, str]:
    """Read PART=NAME of the option --column: how an index calls its columns."""
    columns: dict[str, str] = {}
    for word in words:
        part, equals, name = word.partition("=")
        if not equals or not name or part not in PARTS:
            problem = f"{word!r} is not PART=NAME. Parts: {', '.join(PARTS)}; as in text=content."
            raise DistilvecError(problem, key="--column")
        if part in columns:
            raise DistilvecError(f"{part} is given twice: {columns[part]}, {name}.", "Give it once.", key="--column")
        columns[part] = name
    return columns
