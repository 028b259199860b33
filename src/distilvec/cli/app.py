"""The command line: parses, calls, prints. Heavy imports stay inside the verbs so that --help answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.cli.align import align
from distilvec.cli.cache import cache_app
from distilvec.cli.export import export
from distilvec.cli.finetune import finetune
from distilvec.cli.layout import Grouped, example
from distilvec.cli.options import Out, Overrides, RecipeFile, Restart, Variant, load_recipe
from distilvec.cli.outputs import check_outputs, check_page, check_positive
from distilvec.cli.recipes import recipes_app
from distilvec.cli.sharpness import sharpness
from distilvec.cli.transplant import transplant
from distilvec.core.errors import DistilvecError, nearest
from distilvec.core.extras import require_extra
from distilvec.core.files import write_file, write_json

app = typer.Typer(
    cls=Grouped,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command(epilog=example("distilvec quickstart --out runs/first"))
def quickstart(overrides: Overrides = None, out: Out = None) -> None:
    """Distil all-MiniLM-L6-v2 to three layers on Python's own docstrings: offline, minutes on a laptop."""
    run("quickstart", overrides, None, out, False)


@app.command(epilog=example("distilvec run talas --variant local train.epochs=2"))
def run(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    restart: Restart = False,
) -> None:
    """Plan, cache, train, evaluate and save what a recipe (or its sweep) describes; run again to resume."""
    from distilvec.config.builtin import recipe_file
    from distilvec.pipeline.sweep import expand, has_sweep, refuse_run, run_sweep

    swept = has_sweep(recipe_file(recipe), overrides or [])
    members = expand(recipe_file(recipe), overrides or [], variant) if swept else []
    loaded = members[0].recipe if swept else load_recipe(recipe, variant, overrides)

    from distilvec.cli.terminal import show_comparison, show_problems, show_result
    from distilvec.pipeline.compare import compare_runs  # which take seconds: a mistake in a recipe is told at once
    from distilvec.pipeline.run import Run

    if swept:
        folder = out or loaded.output / Path(recipe).stem
        refuse_run(folder)
        run_sweep(members, folder, lambda member, place: Run(member, place).execute(), _say_member, restart)
        show_comparison(compare_runs([folder]))
        return
    result = Run(loaded, out or loaded.output / loaded.name, restart).execute()
    if result is not None:
        show_result(result)
        show_problems(result.problems)


@app.command(epilog=example("distilvec plan talas --variant local"))
def plan(recipe: RecipeFile, overrides: Overrides = None, variant: Variant = None, out: Out = None) -> None:
    """What a recipe will do and cost (rows, tokens, disk, time) before any work."""
    loaded = load_recipe(recipe, variant, overrides)

    from distilvec.cli.terminal import show_table
    from distilvec.pipeline.plan import make_plan
    from distilvec.pipeline.run import Run

    show_table(["", loaded.name], make_plan(Run(loaded, out or loaded.output / loaded.name)))


@app.command(epilog=example("distilvec evaluate runs/first/student --suite suite.yaml --teacher all-MiniLM-L6-v2"))
def evaluate(
    model: Annotated[str, typer.Argument(help="A SentenceTransformer folder or id.")],
    suite: Annotated[Optional[Path], typer.Option(help="A suite file (YAML list of local tasks).")] = None,
    mteb: Annotated[Optional[str], typer.Option(help="Tasks of MTEB, separated by commas.")] = None,
    benchmark: Annotated[Optional[str], typer.Option(help="A benchmark of MTEB, such as 'MTEB(eng, v2)'.")] = None,
    data: Annotated[
        Optional[Path], typer.Option(help="Folder with <MTEB task>/ folders, read instead of the hub.")
    ] = None,
    teacher: Annotated[
        Optional[str],
        typer.Option(help="Compare with this model, also asymmetrically (model's queries, teacher's documents)."),
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="Whose main figures to show: mteb-like, talas, distillmoe, emo.")
    ] = "mteb-like",
    json_file: Annotated[Optional[Path], typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Score a model on local tasks or on MTEB: STS, classification, pairs, retrieval."""
    check_outputs([("--json", json_file)], [suite])

    from dataclasses import asdict

    from distilvec.pipeline.scores import score_models

    scores = score_models(model, suite, teacher, mteb, benchmark, data, protocol, prefix="--")

    from distilvec.cli.terminal import show_problems, show_scores

    if json_file and scores.columns:
        write_json(json_file, asdict(scores)["columns"], key="--json")
    if any(scores.columns.values()):
        show_scores(scores.columns)
    show_problems(scores.problems, "suite" if suite is not None else "--mteb")


@app.command(epilog=example("distilvec compare runs/first runs/second --out comparison.html"))
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of sweeps.")],
    reference: Annotated[
        Optional[str], typer.Option(help="The run the others are compared with; the first by default.")
    ] = None,
    column: Annotated[str, typer.Option(help="student, or asymmetric.")] = "student",
    out: Annotated[
        Optional[Path], typer.Option(help="Write a page here, and its figures in a folder next to it.")
    ] = None,
    csv: Annotated[Optional[Path], typer.Option(help="Write the leaderboard as CSV.")] = None,
    markdown: Annotated[Optional[Path], typer.Option(help="Write the leaderboard as Markdown.")] = None,
    latex: Annotated[Optional[Path], typer.Option(help="Write the leaderboard as LaTeX (booktabs).")] = None,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Runs side by side: means and deviations over seeds, differences with confidence intervals, costs."""
    from distilvec.report.scores import MODELS

    check_outputs([("--out", out), ("--csv", csv), ("--markdown", markdown), ("--latex", latex), ("--json", json_file)])
    check_page(out, "--out")
    if out is not None:
        require_extra("report", "--out")
    if column not in MODELS:
        raise DistilvecError(f"[--column] no column '{column}'{nearest(column, MODELS)}. Columns: {', '.join(MODELS)}.")

    from distilvec.cli.terminal import print_result, show_comparison
    from distilvec.pipeline.compare import compare_runs
    from distilvec.report.comparison import comparison_csv, leaderboard
    from distilvec.report.tables import to_latex, to_markdown
    from distilvec.report.write import draw_comparison

    comparison = compare_runs(runs, reference, column)
    board, notes = leaderboard(comparison), comparison["notes"]
    for key, path, text in (
        ("--csv", csv, comparison_csv(comparison)),
        ("--markdown", markdown, to_markdown(board, notes)),
        ("--latex", latex, to_latex(board, notes)),
    ):
        if path is not None:
            write_file(path, text, key)
    if json_file:
        write_json(json_file, comparison, key="--json")
    show_comparison(comparison)
    if out is not None:
        print_result(str(draw_comparison(out, comparison)))


@app.command(epilog=example("distilvec speed all-MiniLM-L6-v2 runs/first/student"))
def speed(
    models: Annotated[
        list[str],
        typer.Argument(help="SentenceTransformer folders or ids; the first is the one others are compared with."),
    ],
    full: Annotated[
        bool, typer.Option(help="The papers' 20 warm-ups and 200 repeats of every setting, however long it takes.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Time for each setting otherwise.")] = 2.0,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Latency and throughput by batch size and length, PyTorch and ONNX Runtime, size and memory."""
    check_outputs([("--json", json_file)])
    check_positive(seconds, "--seconds")
    if twice := next((name for name in models if models.count(name) > 1), None):
        raise DistilvecError(f"[models] {twice} is named twice. Name each model once.")

    from distilvec.cli.terminal import print_result, show_table
    from distilvec.config.schema import TeacherSection
    from distilvec.core.log import progress
    from distilvec.evaluation.speed import measure_speed, speed_tables
    from distilvec.teachers.model import load_teacher

    loaded = {name: load_teacher(TeacherSection(model=name), device="cpu", key="models").model for name in models}
    with progress("speed", 100, "%") as advance:
        report = measure_speed(
            loaded,
            budget_seconds=seconds,
            full=full,
            progress=lambda what, done, total: advance(100 * done // max(1, total), what),
        )
    if json_file:
        write_json(json_file, report, key="--json")
    for title, header, rows in speed_tables(report):
        print_result(f"\n{title}")
        show_table(header, rows)
    for note in report["notes"]:
        print_result(f"note: {note}")


@app.callback(invoke_without_command=True)
def options(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Errors and results only.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Progress as lines with the time, and warnings of other libraries.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Distil large text-embedding models into small ones people can ship. Start with: distilvec quickstart.

    --quiet, --verbose and --debug may be anywhere in the command.
    """
    if show:
        from distilvec import __version__

        print(__version__)
        raise typer.Exit


def _say_member(name: str, done: int, total: int) -> None:
    from distilvec.core.log import log

    log(f"sweep {done}/{total}: {name}")


app.add_typer(recipes_app, name="recipes")
app.add_typer(cache_app, name="cache")
app.command(
    epilog=example("distilvec finetune BAAI/bge-m3 --task intents.csv --type classification --out runs/teacher")
)(finetune)
app.command(epilog=example("distilvec align --teacher BAAI/bge-m3 --student bert-base-uncased --texts texts.txt"))(
    align
)
app.command(epilog=example("distilvec sharpness runs/first --figure sharpness.svg"))(sharpness)
app.command(
    epilog=example("distilvec transplant BAAI/bge-m3 --texts texts.txt --vocab-size 16000 --out small-vocabulary")
)(transplant)
app.command(epilog=example("distilvec export runs/first/student --to onnx"))(export)
