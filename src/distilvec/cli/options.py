"""Options that verbs share, options made of config fields, and the checks before the work."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from distilvec.cli.output import STANDARD_OUTPUT
from distilvec.core.errors import ColumnError, DistilvecError
from distilvec.core.files import check_output_file

_OF_A_RUN = (
    "recipe.yaml", "train.fingerprint", "metrics.jsonl", "distillation.json", "report.json", "report.html",
    "samples.npz", "sweep.json",
)  # fmt: skip
_SOURCE = re.compile(r"corpus\.sources\.[0-9]+\.(\w+)")


def argument(text: str, **more: Any) -> Any:
    """A positional argument with its help."""
    return typer.Argument(help=text, **more)


def option(text: str, *names: str, **more: Any) -> Any:
    """An option with its help."""
    return typer.Option(*names, help=text, **more)


RecipeFile = Annotated[str, argument("A recipe file, or a built-in recipe (see `distilvec recipes`).")]
Overrides = Annotated[list[str] | None, argument("Changes to the recipe, such as train.epochs=3", metavar="KEY=VALUE")]
Variant = Annotated[list[str] | None, option("A variant of the recipe; repeat to combine several.")]
Out = Annotated[Path | None, option("The run folder; <output>/<recipe's name> by default.")]
Restart = Annotated[
    bool,
    option(
        "Move the earlier run aside (<name>.old-<time>) and start over; of a sweep, the runs that the command names.",
        "--restart",
    ),
]
JsonFile = Annotated[Path | None, option("Write the result here as JSON; - is standard output.", "--json")]
Model = Annotated[str, argument("A SentenceTransformer folder or id.")]
ModelOrFile = Annotated[str, argument("A SentenceTransformer folder or id, or a file of `distilvec export`.")]
TextColumns = Annotated[list[str] | None, option("The column(s) with texts; found by name when left out.")]
TextLimit = Annotated[int | None, option("Read only the first n texts of each file.", min=1)]
TrustRemoteCode = Annotated[
    bool, option("Run code that comes with the model; only if you trust its authors.", "--trust-remote-code")
]


def combined(variant: list[str] | None) -> str | None:
    """The variants of a command line as the one name that Python takes: "first+second"."""
    return "+".join(variant) if variant else None


def load_recipe(name: str, variant: list[str] | None, overrides: list[str] | None) -> Any:
    """A recipe by file or built-in name, with its variants and changes applied."""
    from distilvec.config.builtin import recipe_file
    from distilvec.config.recipe import load

    return load(recipe_file(name), combined(variant), overrides)


# -- options made of config fields -------------------------------------------------------------------------------------


def config_options(
    section: str, fields: Mapping[str, str], defaults: Mapping[str, Any] | None = None
) -> Callable[[Any], Any]:
    """Decorator: `fields` (option: field) gives a verb options with config fields' types, defaults and descriptions.

    The verb takes the values as keywords (`**given`). Config is imported when the verb is used: --help stays fast.
    """

    def decorate(verb: Any) -> Any:
        signature = inspect.signature(verb)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        verb.__signature__ = signature.replace(parameters=named)
        verb.config = [*getattr(verb, "config", ()), (section, fields, defaults or {})]
        return verb

    return decorate


def with_config_options(command: Any) -> Any:
    """A command, with the options that `config_options` gave its verb."""
    if not hasattr(getattr(command, "callback", None), "config"):
        return command
    from distilvec.config import student, synthesis, training
    from distilvec.config.base import kinds

    verb = inspect.unwrap(command.callback)

    def complete(**given: Any) -> Any:
        return verb(**given)

    signature, types = inspect.signature(verb), get_type_hints(verb, include_extras=True)
    parameters = [one.replace(annotation=types[one.name]) for one in signature.parameters.values()]
    sections = vars(student) | vars(training) | vars(synthesis)
    for section, fields, defaults in verb.config:
        for name, field in fields.items():
            info = sections[section].model_fields[field]
            default, (kind, *_) = defaults.get(name, info.default), kinds(info.annotation)
            about = option(f"{info.description[0].upper()}{info.description[1:]}.")
            annotation: Any = Annotated[kind | None if default is None else kind, about]
            added = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            parameters.append(added)
    complete.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(command.name, help=command.help, epilog=command.epilog)(complete)
    return typer.main.get_command(app)


# -- checks ------------------------------------------------------------------------------------------------------------


@contextmanager
def named_options(options: Mapping[str, str]) -> Iterator[None]:
    """Errors inside name options: `options` by the recipe's key; keys of corpus.sources are --column and --texts."""
    try:
        yield
    except ColumnError as error:
        raise DistilvecError(_option_of(error.key, options), error.problem, error.option_fix) from error
    except DistilvecError as error:
        raise error.renamed(_option_of(error.key, options)) from error


def _option_of(key: str, options: Mapping[str, str]) -> str:
    """Return the option that sets a recipe's key; the key itself where there is none."""
    if key in options:
        return options[key]
    source = _SOURCE.match(key)
    if source is None:
        return key
    return "--column" if source[1] == "column" else "--texts"


def check_outputs(files: Sequence[tuple[str, Path | None]], inputs: Iterable[Path | None] = ()) -> None:
    """DistilvecError unless every (option, file) could be written, is named once, and is no input or file of a run."""
    read = {path.resolve() for path in inputs if path is not None}
    known: dict[Path, str] = {}
    for key, path in files:
        if path is None or path == STANDARD_OUTPUT:
            continue
        check_output_file(path, key)
        file = path.resolve()
        if file in known:
            raise DistilvecError(key, f"{path} is written by {known[file]} as well.", "Give each a file of its own.")
        in_a_run = any((file.parent / name).exists() for name in ("recipe.yaml", "sweep.json"))
        if file in read or (file.name in _OF_A_RUN and in_a_run):
            raise DistilvecError(key, f"{path} is read here, and would be lost.", "Choose another path.")
        known[file] = key


def check_positive(value: float, key: str) -> None:
    """DistilvecError for a number that is not above 0, or not finite."""
    if not (math.isfinite(value) and value > 0):
        raise DistilvecError(key, f"found {value:g}.", "Give a number above 0.")
