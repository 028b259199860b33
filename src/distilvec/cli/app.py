"""The command line: parses, calls, prints. Heavy imports stay inside the verbs so that --help answers at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from distilvec.cli.layout import GROUPS, Listed, example
from distilvec.cli.options import App, option

VERBS = {  # where each verb's function or app is, below distilvec.verbs
    "distill": "distill.command:distill",
    "quickstart": "distill.command:quickstart",
    "classify": "classify.command:classify",
    "check": "check.command:check",
    "run": "run.command:run",
    "plan": "plan.command:plan",
    "runs": "runs.command:runs",
    "report": "report:report",
    "doctor": "doctor:doctor",
    "finetune": "finetune:finetune",
    "align": "align:align",
    "evaluate": "evaluate.command:evaluate",
    "compare": "compare.command:compare",
    "speed": "speed:speed",
    "transplant": "transplant.command:transplant",
    "export": "export.command:export",
    "push": "push.command:push",
    "demo": "demo.command:demo",
    "serve": "serve.command:serve",
    "help": "help:help",
    "recipes": "recipes:recipes_app",
    "cache": "cache.command:cache_app",
    "data": "data:data_app",
    "corpus": "corpus:corpus_app",
}


class VerbsByName(Mapping[str, Any]):
    """The commands of VERBS. A file is imported when its verb is asked for: a command loads its own verb alone."""

    def __getitem__(self, name: str) -> Any:
        return verb_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


@cache
def verb_command(name: str) -> Any:
    """Import a verb and make its command."""
    verb = resolve_name(f"distilvec.verbs.{VERBS[name]}")
    verb_app = verb
    if not isinstance(verb, App):
        verb_app = App()
        verb_app.command(epilog=example(name))(verb)
    command: Any = typer.main.get_command(verb_app)
    command.name = name
    return command


class Verbs(Listed):
    """All verbs, by GROUPS."""

    groups = GROUPS

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = VerbsByName()


app = App(cls=Verbs, no_args_is_help=True, add_completion=True)


@app.callback(invoke_without_command=True)
def options(
    show: Annotated[bool, option("Print the version.", "--version")] = False,
    quiet: Annotated[bool, option("Errors and results only.", "--quiet")] = False,
    verbose: Annotated[bool, option("Progress as lines, and warnings of other libraries.", "--verbose")] = False,
    debug: Annotated[bool, option("Show the traceback of an error.", "--debug")] = False,
) -> None:
    """Distil text-embedding models into small ones.

    Start with: distilvec quickstart, or distilvec distill TEACHER TEXTS.

    --quiet, --verbose and --debug may be anywhere in the command.
    """
    if show:
        from distilvec import __version__

        print(__version__)
        raise typer.Exit
