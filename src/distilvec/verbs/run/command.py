"""The command `distilvec run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distilvec.cli.options import (
    JsonFile,
    Out,
    Overrides,
    RecipeFile,
    Variant,
    check_outputs,
    check_recipe_paths,
    combined,
    option,
    recipe_files,
)
from distilvec.cli.output import write_result
from distilvec.core.run_folder import RunFolder

if TYPE_CHECKING:
    from distilvec.config.schema import Recipe


def run(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    restart: Annotated[
        bool,
        option(
            "Move the earlier run aside (<name>.old-<time>) and start over; of a sweep, those that the command names.",
            "--restart",
        ),
    ] = False,
    processes: Annotated[int, option("Train in this many processes, one per GPU, or on the CPU.", min=1)] = 1,
    json_file: JsonFile = None,
) -> None:
    """Train and evaluate what a recipe describes.

    Or all runs of its sweep. The same command again resumes.
    """
    from distilvec.config.builtin import recipe_file
    from distilvec.verbs.run.sweep import check_methods, load_runs, run_sweep

    runs = load_runs(recipe_file(recipe), overrides or [], combined(variant))
    loaded = runs.first.recipe
    earlier = earlier_recipes(recipe_file(recipe), [member.recipe for member in runs.members], overrides or [])
    check_recipe_paths(next(iter(earlier.values()), loaded))
    read = recipe_files([*earlier.values(), *(member.recipe for member in runs.members)])
    check_outputs([("--json", json_file)], [recipe_file(recipe), *read])
    check_methods(runs.members)
    if processes > 1:
        from distilvec.verbs.run.launch import launch

        given = [*(overrides or []), *(f"--variant={name}" for name in variant or [])]
        given += [] if out is None else [f"--out={out}"]
        given += [] if json_file is None else [f"--json={json_file}"]
        raise SystemExit(launch(processes, ["run", recipe, *given, *(["--restart"] if restart else [])]))

    from distilvec.cli.terminal import print_result, show_comparison, show_finished
    from distilvec.core.log import log
    from distilvec.core.processes import is_main
    from distilvec.pipeline.run import run as run_recipe
    from distilvec.report.write import draw_sweep
    from distilvec.verbs.compare.compare import compare_runs  # takes seconds: a mistake in a recipe is reported before

    for folder, before in earlier.items():
        log(f"first {before.name}, from whose student a later run begins")
        run_recipe(before, folder)
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
        write_result(json_file, comparison.to_json())
        show_comparison(comparison)
        if page := draw_sweep(RunFolder(folder), comparison):
            print_result(str(page), link=page)


def earlier_recipes(path: Path, recipes: Sequence[Recipe], overrides: list[str]) -> dict[Path, Recipe]:
    """Return the variants, by run folder, that train the students which recipes begin with and that are not finished.

    Changes of the command line hold in both runs, but for those of the student and of a sweep. Errors: DistilvecError
    for a variant that the recipe's file does not have.
    """
    from distilvec.config.recipe import load

    kept = [change for change in overrides if not change.startswith(("student.", "sweep."))]
    earlier = {}
    for recipe in recipes:
        if recipe.after is None or recipe.student.model is None:
            continue
        student = Path(recipe.student.model)
        if not is_finished(student):
            earlier[run_of_student(student).path] = load(path, recipe.after, kept)
    return earlier


def is_finished(student: Path) -> bool:
    """Whether a student is there and its run is finished.

    A run saves its student before the first step, so that the folder alone says nothing. A model that lies in no run
    folder, such as a copy from another machine, is taken as it is.
    """
    run = run_of_student(student)
    return student.exists() and (run.record.exists() or not run.is_ours())


def run_of_student(student: Path) -> RunFolder:
    """Return the folder of the run that trains this student."""
    return RunFolder.of_student(student) or RunFolder(student.parent)
