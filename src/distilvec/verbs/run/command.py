"""The commands `distilvec run` and `distilvec quickstart`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    from distilvec.verbs.run.sweep import load_runs, run_sweep

    runs = load_runs(recipe_file(recipe), overrides or [], combined(variant))
    loaded = runs.first.recipe
    check_recipe_paths(loaded)
    if processes > 1:
        from distilvec.verbs.run.launch import launch

        given = [*(overrides or []), *(f"--variant={name}" for name in variant or [])]
        given += [] if out is None else [f"--out={out}"]
        given += [] if json_file is None else [f"--json={json_file}"]
        raise SystemExit(launch(processes, ["run", recipe, *given, *(["--restart"] if restart else [])]))

    from distilvec.cli.terminal import print_result, show_comparison, show_finished
    from distilvec.core.log import log
    from distilvec.core.processes import is_main
    from distilvec.core.run_folder import RunFolder
    from distilvec.pipeline.run import run as run_recipe
    from distilvec.report.write import draw_sweep
    from distilvec.verbs.compare.compare import compare_runs  # takes seconds: a mistake in a recipe is reported before

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
