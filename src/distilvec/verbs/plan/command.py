"""The command `distilvec plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from distilvec.cli.options import (
    JsonFile,
    Out,
    Overrides,
    RecipeFile,
    Variant,
    check_outputs,
    check_recipe_paths,
    combined,
    files_of_recipes,
    option,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError


def plan(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    workers: Annotated[
        int | None, option("Show disk, time and cost with n workers, also for 100 M and 1 B texts.", min=1)
    ] = None,
    hourly_price: Annotated[float | None, option("The price of a worker an hour, for --workers.", min=0)] = None,
    json_file: JsonFile = None,
) -> None:
    """Show what a recipe will take: texts, disk, time."""
    from distilvec.config.builtin import recipe_file
    from distilvec.verbs.run.command import earlier_recipes
    from distilvec.verbs.run.sweep import check_methods, load_runs

    if hourly_price is not None and workers is None:
        raise DistilvecError("needs the number of workers.", "Give --workers.", key="--hourly-price")
    runs = load_runs(recipe_file(recipe), overrides or [], combined(variant))
    loaded = runs.first.recipe
    earlier = earlier_recipes(recipe_file(recipe), [loaded], overrides or [])
    if earlier and not Path(str(loaded.student.model)).exists():
        (before,) = earlier.values()
        problem = f"`distilvec run` first trains {before.name}, from whose student this run begins."
        raise DistilvecError(problem, f"Plan that: --variant {loaded.after}.", key="after")
    check_recipe_paths(loaded)
    read = files_of_recipes(member.recipe for member in runs.members)
    check_outputs([("--json", json_file)], [recipe_file(recipe), *read])

    check_methods(runs.members)

    from distilvec.cli.terminal import show_table
    from distilvec.pipeline.resolve import resolve
    from distilvec.verbs.plan.plan import Fleet, make_plan

    fleet = None if workers is None else Fleet(workers, hourly_price)
    if runs.is_sweep:
        folder = (out or loaded.output / Path(recipe).stem) / runs.first.name
    else:
        folder = out or loaded.output / loaded.name
    lines = make_plan(resolve(loaded, folder), fleet).lines
    if runs.is_sweep:
        lines.append(["sweep", f"{len(runs.members)} runs; the lines above are of the first, {runs.first.name}"])
    rows = [{"item": item, "value": value} for item, value in lines]
    write_result(json_file, {"name": loaded.name, "rows": rows})
    show_table(["", loaded.name], lines)
