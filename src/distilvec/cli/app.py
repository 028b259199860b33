"""The command line: parses, calls, prints. Heavy imports stay inside the verbs so that --help answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from distilvec.cli.layout import Grouped, example
from distilvec.cli.options import App, option
from distilvec.verbs.align import align
from distilvec.verbs.cache.command import cache_app
from distilvec.verbs.check.command import check
from distilvec.verbs.classify.command import classify
from distilvec.verbs.compare.command import compare
from distilvec.verbs.corpus import corpus_app
from distilvec.verbs.data import data_app
from distilvec.verbs.demo.command import demo
from distilvec.verbs.distill.command import distill, quickstart
from distilvec.verbs.doctor import doctor
from distilvec.verbs.evaluate.command import evaluate
from distilvec.verbs.export.command import export
from distilvec.verbs.finetune import finetune
from distilvec.verbs.help import help
from distilvec.verbs.plan.command import plan
from distilvec.verbs.push.command import push
from distilvec.verbs.recipes import recipes_app
from distilvec.verbs.report import report
from distilvec.verbs.run.command import run
from distilvec.verbs.runs.command import runs
from distilvec.verbs.serve.command import serve
from distilvec.verbs.speed import speed
from distilvec.verbs.transplant.command import transplant

app = App(cls=Grouped, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


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


VERBS = (
    distill, quickstart, classify, check, run, plan, runs, report, doctor, finetune, align, evaluate, compare, speed,
    transplant, export, push, demo, serve, help,
)  # fmt: skip
for verb in VERBS:
    app.command(epilog=example(verb.__name__))(verb)
app.add_typer(recipes_app, name="recipes")
app.add_typer(cache_app, name="cache")
app.add_typer(data_app, name="data")
app.add_typer(corpus_app, name="corpus")
