"""The command line: parses, calls, prints. Heavy imports stay inside the verbs so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distilvec.cli.cache import cache_app
from distilvec.cli.corpus import corpus_app
from distilvec.cli.data import data_app
from distilvec.cli.demo import demo
from distilvec.cli.index import index_app
from distilvec.cli.layout import Grouped, example
from distilvec.cli.measure import compare, evaluate, speed
from distilvec.cli.models import align, export, finetune, push, transplant
from distilvec.cli.options import (
    JsonFile,
    Out,
    Overrides,
    RecipeFile,
    Restart,
    Variant,
    check_outputs,
    check_recipe_paths,
    combined,
    option,
)
from distilvec.cli.output import write_result
from distilvec.cli.recipes import recipes_app
from distilvec.cli.serve import serve
from distilvec.core.errors import DistilvecError
from distilvec.verbs.classify.command import classify
from distilvec.verbs.doctor.command import doctor
from distilvec.verbs.report.command import report
from distilvec.verbs.runs.command import runs

app = typer.Typer(cls=Grouped, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def quickstart(overrides: Overrides = None, out: Out = None) -> None:
    """Distil all-MiniLM-L6-v2 to three layers on Python's own docstrings: offline, minutes on a laptop."""
    run("quickstart", overrides, None, out, False)


def run(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    restart: Restart = False,
    processes: Annotated[int, option("Train in this many processes, one per GPU, or on the CPU.", min=1)] = 1,
    json_file: JsonFile = None,
) -> None:
    """Plan, cache, train, evaluate and save what a recipe (or its sweep) describes; run again to resume."""
    check_outputs([("--json", json_file)])

    from distilvec.config.builtin import recipe_file
    from distilvec.pipeline.sweep import load_runs, run_sweep

    runs = load_runs(recipe_file(recipe), overrides or [], combined(variant))
    loaded = runs.first.recipe
    check_recipe_paths(loaded)
    if processes > 1:
        from distilvec.cli.launch import launch

        given = [*(overrides or []), *(f"--variant={name}" for name in variant or [])]
        given += [] if out is None else [f"--out={out}"]
        given += [] if json_file is None else [f"--json={json_file}"]
        raise SystemExit(launch(processes, ["run", recipe, *given, *(["--restart"] if restart else [])]))

    from distilvec.cli.terminal import print_result, show_comparison, show_finished
    from distilvec.core.log import log
    from distilvec.core.processes import is_main
    from distilvec.pipeline.compare import compare_runs  # takes seconds: a mistake in a recipe is reported before
    from distilvec.pipeline.run import run as run_recipe
    from distilvec.report.write import draw_sweep

    if not runs.is_sweep:
        result = run_recipe(loaded, out or loaded.output / loaded.name, restart)
        if result is not None:
            write_result(json_file, result.to_json())
        show_finished(result)
        return
    folder = out or loaded.output / Path(recipe).stem

    def report(name: str, done: int, total: int) -> None:
        log(f"sweep {done}/{total}: {name}")

    run_sweep(runs.members, folder, run_recipe, report, restart)
    if is_main():
        comparison = compare_runs([folder])
        write_result(json_file, comparison)
        show_comparison(comparison)
        if page := draw_sweep(folder, comparison):
            print_result(str(page), link=page)


def plan(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    workers: Annotated[
        int | None, option("Show disk, time and cost with n workers, also for 100 M and 1 B texts.", min=1)
    ] = None,
    hourly_price: Annotated[float | None, option("The price of a worker for an hour, for --workers.", min=0)] = None,
    json_file: JsonFile = None,
) -> None:
    """Show what a recipe will do and cost (rows, tokens, disk, time) before any work."""
    check_outputs([("--json", json_file)])

    from distilvec.config.builtin import recipe_file
    from distilvec.pipeline.sweep import load_runs

    if hourly_price is not None and workers is None:
        raise DistilvecError("--hourly-price", "needs the number of workers.", "Give --workers.")
    runs = load_runs(recipe_file(recipe), overrides or [], combined(variant))
    loaded = runs.first.recipe
    check_recipe_paths(loaded)

    from distilvec.cli.terminal import show_table
    from distilvec.pipeline.fleet import Fleet
    from distilvec.pipeline.plan import make_plan
    from distilvec.pipeline.resolve import resolve

    fleet = None if workers is None else Fleet(workers, hourly_price)
    if runs.is_sweep:
        folder = (out or loaded.output / Path(recipe).stem) / runs.first.name
    else:
        folder = out or loaded.output / loaded.name
    lines = make_plan(resolve(loaded, folder), fleet)
    if runs.is_sweep:
        lines.append(["sweep", f"{len(runs.members)} runs; the lines above are of the first, {runs.first.name}"])
    rows = [{"item": item, "value": value} for item, value in lines]
    write_result(json_file, {"name": loaded.name, "rows": rows})
    show_table(["", loaded.name], lines)


@app.callback(invoke_without_command=True)
def options(
    show: Annotated[bool, option("Print the version.", "--version")] = False,
    quiet: Annotated[bool, option("Errors and results only.", "--quiet")] = False,
    verbose: Annotated[bool, option("Progress as lines, and warnings of other libraries.", "--verbose")] = False,
    debug: Annotated[bool, option("Show the traceback of an error.", "--debug")] = False,
) -> None:
    """Distil large text-embedding models into small ones people can ship. Start with: distilvec quickstart.

    --quiet, --verbose and --debug may be anywhere in the command.
    """
    if show:
        from distilvec import __version__

        print(__version__)
        raise typer.Exit


VERBS = (
    quickstart, classify, run, plan, runs, report, doctor, finetune, align, evaluate, compare, speed, transplant,
    export, push, demo, serve,
)  # fmt: skip
for verb in VERBS:
    app.command(epilog=example(verb.__name__))(verb)
app.add_typer(recipes_app, name="recipes")
app.add_typer(cache_app, name="cache")
app.add_typer(data_app, name="data")
app.add_typer(corpus_app, name="corpus")
app.add_typer(index_app, name="index")
