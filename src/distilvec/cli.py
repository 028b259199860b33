"""The command line: parses, calls, prints. Heavy imports stay inside the verbs so that --help answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from distilvec.errors import DistilvecError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=__doc__ and ("Distil large text-embedding models into small ones people can ship.\n\nStart with: distilvec quickstart"),
)


class FillByDefault(TyperGroup):
    """`distilvec cache RECIPE` is short for `distilvec cache fill RECIPE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take a first word that is no verb for a recipe."""
        verb = [] if not args or args[0] in self.commands or args[0].startswith("-") else ["fill"]
        return super().resolve_command(ctx, verb + args)


cache_app = typer.Typer(
    cls=FillByDefault, no_args_is_help=True, rich_markup_mode=None, help="The teacher cache: fill it, verify it, look into it, move it."
)
app.add_typer(cache_app, name="cache")

RecipeFile = Annotated[str, typer.Argument(help="A recipe file, or the name of a built-in one (see `distilvec recipes`).")]
Overrides = Annotated[Optional[list[str]], typer.Argument(help="Changes to the recipe, such as train.epochs=3", metavar="[KEY=VALUE]...")]
Variant = Annotated[Optional[str], typer.Option(help="One of the recipe's variants.")]
Out = Annotated[Optional[Path], typer.Option(help="The run folder; <output>/<recipe's name> by default.")]


def main() -> None:
    """Entry point: a DistilvecError becomes its message and exit status 2, Ctrl-C status 130."""
    try:
        app()
    except DistilvecError as error:
        print(f"distilvec: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("distilvec: interrupted; run the same command again to go on.", file=sys.stderr)
        sys.exit(130)


@app.command()
def quickstart(overrides: Overrides = None, out: Out = None) -> None:
    """Distil all-MiniLM-L6-v2 to three layers on Python's own docstrings: offline, minutes on a laptop."""
    run("quickstart", overrides, None, out, False)


@app.command()
def run(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    restart: Annotated[bool, typer.Option(help="Throw away the training that is in the run folder.")] = False,
) -> None:
    """Plan, cache, train, evaluate and save what a recipe describes; run again to resume."""
    from distilvec.report.terminal import show_result
    from distilvec.run import Run

    loaded = _load(recipe, variant, overrides)
    result = Run(loaded, out or loaded.output / loaded.name, restart).execute()
    if result is not None:
        show_result(result)


@app.command()
def plan(recipe: RecipeFile, overrides: Overrides = None, variant: Variant = None, out: Out = None) -> None:
    """What a recipe will do and cost (rows, tokens, disk, time) before any work."""
    from distilvec.plan import make_plan
    from distilvec.report.terminal import show_table
    from distilvec.run import Run

    loaded = _load(recipe, variant, overrides)
    show_table(["", loaded.name], make_plan(Run(loaded, out or loaded.output / loaded.name)))


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A SentenceTransformer folder or id.")],
    suite: Annotated[Path, typer.Option(help="A suite file (YAML list of tasks).")],
    teacher: Annotated[
        Optional[str], typer.Option(help="Compare with this model, also asymmetrically (model's queries, teacher's documents).")
    ] = None,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Score a model on local tasks: STS, classification, pairs, retrieval."""
    from dataclasses import asdict

    from distilvec.evaluation.suite import load_suite
    from distilvec.report.terminal import show_scores
    from distilvec.run import compare
    from distilvec.schema import TeacherSection
    from distilvec.teachers.local import load_teacher

    tasks = load_suite(suite)
    student = load_teacher(TeacherSection(model=model))
    scores = compare(tasks, student, teacher=load_teacher(TeacherSection(model=teacher)) if teacher else None)
    if json_file:
        content = {name: [asdict(score) for score in column] for name, column in scores.items()}
        json_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    show_scores(scores)


@app.command("recipes")
def recipes_command(
    action: Annotated[Optional[str], typer.Argument(help="'show' to print a recipe.")] = None,
    name: Annotated[Optional[str], typer.Argument(help="The recipe's name.")] = None,
) -> None:
    """List the built-in recipes, or print one: `distilvec recipes show redact`."""
    from distilvec.builtin import recipe_file, recipe_files
    from distilvec.recipe import read_tree

    if action == "show" and name:
        print(recipe_file(name).read_text(encoding="utf-8"), end="")
    elif action is None:
        for path in recipe_files():
            tree = read_tree(path)
            print(f"{path.stem:24} {' '.join(str(tree.get('description', '')).split())}")
            if tree.get("variants"):
                print(f"{'':24} variants: {', '.join(tree['variants'])}")
    else:
        raise DistilvecError("expected `distilvec recipes` or `distilvec recipes show NAME`.")


@cache_app.command("fill")
def cache_fill(recipe: RecipeFile, overrides: Overrides = None, variant: Variant = None) -> None:
    """Compute the teacher's vectors for a recipe's corpus; run again after a kill to resume."""
    from distilvec.run import Run

    print(Run(_load(recipe, variant, overrides), Path()).fill().folder)


@cache_app.command("verify")
def cache_verify(
    folder: Path, repair: Annotated[bool, typer.Option(help="Drop damaged shards; the next run computes them again.")] = False
) -> None:
    """Check every shard of a cache against its checksum."""
    from distilvec.teachers.cache import TeacherCache

    problems = TeacherCache.verify_folder(folder, repair=repair)
    for problem in problems:
        print(problem)
    if problems and not repair:
        raise DistilvecError(f"{len(problems)} damaged shard(s) in {folder}. `distilvec cache verify {folder} --repair` drops them.")
    print("repaired" if problems else "every shard matches its checksum")


@cache_app.command("inspect")
def cache_inspect(folder: Path) -> None:
    """What a cache holds: rows, bytes, the manifest, the loss of its number format."""
    from distilvec.report.terminal import show_table
    from distilvec.teachers.cache import TeacherCache

    show_table(["", str(folder)], _flat(TeacherCache.open(folder).inspect()))


@cache_app.command("export")
def cache_export(
    recipe: RecipeFile, out: Annotated[Path, typer.Option(help="The Parquet file.")], overrides: Overrides = None, variant: Variant = None
) -> None:
    """Write a recipe's texts and their teacher vectors as Parquet."""
    from distilvec.run import Run
    from distilvec.teachers.parquet import export_parquet

    loaded = Run(_load(recipe, variant, overrides), Path())
    export_parquet(loaded.fill(), loaded.corpus, out)
    print(out)


@cache_app.command("import")
def cache_import(
    recipe: RecipeFile,
    table: Annotated[Path, typer.Option(help="Parquet with columns text, teacher_embedding_final.")],
    overrides: Overrides = None,
    variant: Variant = None,
) -> None:
    """Take vectors that were computed elsewhere by the recipe's teacher into its cache."""
    from distilvec.run import Run
    from distilvec.teachers.parquet import import_parquet

    loaded = Run(_load(recipe, variant, overrides), Path())
    print(f"{import_parquet(table, loaded.cache):,} vectors imported into {loaded.cache.folder}")


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Distil large text-embedding models into small ones people can ship. Start with: distilvec quickstart."""
    if show:
        from distilvec import __version__

        print(__version__)
        raise typer.Exit


def _load(name: str, variant: str | None, overrides: list[str] | None) -> Any:
    from distilvec.builtin import recipe_file
    from distilvec.recipe import load

    return load(recipe_file(name), variant, overrides)


def _flat(tree: dict[str, Any], prefix: str = "") -> list[list[str]]:
    rows: list[list[str]] = []
    for key, value in tree.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [[prefix + key, str(value)]]
    return rows
