"""The verbs of `distilvec cache`: fill, merge, verify, inspect, export and import the teacher cache."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from distilvec.cli.layout import Listed, example
from distilvec.cli.options import (
    App,
    Overrides,
    RecipeFile,
    Variant,
    argument,
    check_input,
    check_outputs,
    check_recipe_paths,
    combined,
    files_of_recipes,
    option,
)
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra

if TYPE_CHECKING:
    from distilvec.config.schema import Recipe
    from distilvec.pipeline.job import Job, Teacher
    from distilvec.verbs.run.sweep import Runs

CacheFolder = Annotated[Path, argument("The cache's folder.")]
_FOLDER = "~/.cache/distilvec/teachers/FOLDER"


class FillByDefault(Listed):
    """`distilvec cache RECIPE` is short for `distilvec cache fill RECIPE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Treat an unknown subcommand as a recipe."""
        is_recipe = bool(args) and args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, ["fill", *args] if is_recipe else args)


cache_app = App(
    cls=FillByDefault,
    no_args_is_help=True,
    help="Fill, verify, inspect and move the teacher cache.",
    epilog=example("cache", "talas --variant local", f"verify {_FOLDER} --repair"),
)


@cache_app.command(
    "fill",
    epilog=example(
        "cache fill",
        "talas --variant local",
        "talas --variant local --ray local --workers 2",
        "talas --variant local --shard 3/8",
    ),
)
def cache_fill(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    ray: Annotated[str | None, option("Compute on Ray: 'local', or a cluster's address (docs/cluster.md).")] = None,
    workers: Annotated[int, option("Worker processes on Ray.", min=1)] = 1,
    gpus_per_worker: Annotated[float, option("GPUs per worker on Ray; may be a fraction, such as 0.5.", min=0)] = 0.0,
    shard: Annotated[
        str | None, option("Compute only share i/n of the shards; `cache merge` joins the shares.")
    ] = None,
) -> None:
    """Compute the teacher's vectors of a recipe's texts.

    For a sweep, the vectors of all its runs. The same command resumes.
    """
    if ray is not None and shard is not None:
        raise DistilvecError("--shard and --ray cannot be combined: Ray divides the shards itself.", key="--shard")
    if ray is None and (workers > 1 or gpus_per_worker):
        raise DistilvecError(
            "--workers and --gpus-per-worker need --ray.", "Add --ray local, or a cluster's address.", key="--workers"
        )
    if ray is not None:
        require_extra("ray", "--ray")
    runs = _load_runs(recipe, variant, overrides)

    from distilvec.pipeline.prepare import fill_whole_cache
    from distilvec.teachers.cache.parts import Share
    from distilvec.teachers.ray_workers import RayOptions
    from distilvec.verbs.cache.cluster import fill_on_ray, fill_one_share

    share = None if shard is None else Share.parse(shard)
    for job, teacher in _distinct_caches(runs):
        if share is not None:
            print(fill_one_share(job, teacher, share).folder)
        elif ray is not None:
            print(fill_on_ray(job, teacher, RayOptions(ray, workers, gpus_per_worker)).folder)
        else:
            print(fill_whole_cache(job, teacher).folder)


@cache_app.command("merge", epilog=example("cache merge", "talas --variant local"))
def cache_merge(recipe: RecipeFile, overrides: Overrides = None, variant: Variant = None) -> None:
    """Join the shares that `cache fill --shard` computed.

    The files are the same as from one process. For a sweep, it joins the shares of all runs.
    """
    runs = _load_runs(recipe, variant, overrides)

    from distilvec.verbs.cache.cluster import merge_shares

    for job, teacher in _distinct_caches(runs):
        print(merge_shares(job, teacher).folder)


@cache_app.command("verify", epilog=example("cache verify", f"{_FOLDER} --repair"))
def cache_verify(
    folder: CacheFolder,
    repair: Annotated[bool, option("Drop damaged shards; the next run computes them again.")] = False,
) -> None:
    """Check every shard of a cache against its checksum."""
    check_input(folder, "cache.path")
    from distilvec.teachers.cache.store import TeacherCache

    problems = TeacherCache.verify_folder(folder, repair=repair)
    for problem in problems:
        print(problem)
    if problems and not repair:
        command = shlex.join(["distilvec", "cache", "verify", str(folder), "--repair"])
        fix = f"`{command}` drops them."
        raise DistilvecError(f"{len(problems)} damaged shard(s) in {folder}.", fix, key="cache.path")
    print("repaired" if problems else "every shard matches its checksum")


@cache_app.command("inspect", epilog=example("cache inspect", _FOLDER))
def cache_inspect(folder: CacheFolder) -> None:
    """Show a cache's rows, bytes, manifest and rounding."""
    check_input(folder, "cache.path")
    from distilvec.cli.terminal import show_table
    from distilvec.teachers.cache.store import TeacherCache

    show_table(["", str(folder)], _flat_rows(TeacherCache.open(folder).inspect()))


@cache_app.command("export", epilog=example("cache export", "talas --variant local --out vectors.parquet"))
def cache_export(
    recipe: RecipeFile,
    out: Annotated[Path, option("The Parquet file.")],
    overrides: Overrides = None,
    variant: Variant = None,
) -> None:
    """Write a recipe's texts and vectors as Parquet.

    The vectors are from its first teacher.
    """
    from distilvec.config.builtin import recipe_file

    loaded = _load_single_run(recipe, variant, overrides)
    check_outputs([("--out", out)], [recipe_file(recipe), *files_of_recipes([loaded])])

    from distilvec.pipeline.prepare import cached_teachers, fill_whole_cache
    from distilvec.pipeline.resolve import resolve
    from distilvec.teachers.cache.parquet import export_parquet

    job = resolve(loaded, Path())
    teacher = cached_teachers(job)[0]
    export_parquet(fill_whole_cache(job, teacher), teacher.corpus, out)
    print(out)


@cache_app.command("import", epilog=example("cache import", "talas --table vectors.parquet --variant local"))
def cache_import(
    recipe: RecipeFile,
    table: Annotated[Path, option("Parquet with columns text, teacher_embedding_final.")],
    overrides: Overrides = None,
    variant: Variant = None,
) -> None:
    """Import vectors from Parquet into a recipe's cache.

    The recipe's first teacher computed them elsewhere.
    """
    check_input(table, "--table")
    loaded = _load_single_run(recipe, variant, overrides)

    from distilvec.pipeline.caches import own_cache
    from distilvec.pipeline.prepare import cached_teachers
    from distilvec.pipeline.resolve import resolve
    from distilvec.teachers.cache.parquet import import_parquet

    job = resolve(loaded, Path())
    cache = own_cache(job, cached_teachers(job)[0])
    print(f"{import_parquet(table, cache):,} vectors imported into {cache.folder}")


def _load_runs(name: str, variant: list[str] | None, overrides: list[str] | None) -> Runs:
    """The runs of a recipe by file or built-in name, with its variants and changes applied."""
    from distilvec.config.builtin import recipe_file
    from distilvec.verbs.run.sweep import load_runs

    runs = load_runs(recipe_file(name), overrides or [], combined(variant))
    for member in runs.members:
        check_recipe_paths(member.recipe)
    return runs


def _distinct_caches(runs: Runs) -> Iterator[tuple[Job, Teacher]]:
    """The cached teachers of all runs, each cache once, with the first run that reads it."""
    from distilvec.pipeline.caches import folder_of_cache
    from distilvec.pipeline.prepare import cached_teachers
    from distilvec.pipeline.resolve import resolve

    groups = {member.group: member.recipe for member in runs.members}  # runs that differ by their seed read the same
    seen = set()
    for recipe in groups.values():
        job = resolve(recipe, Path())
        for teacher in cached_teachers(job):
            cache = (folder_of_cache(job, teacher), teacher.manifest.fingerprint, teacher.corpus.fingerprint)
            if cache not in seen:
                seen.add(cache)
                yield job, teacher


def _load_single_run(name: str, variant: list[str] | None, overrides: list[str] | None) -> Recipe:
    """The same of a recipe with a single run; DistilvecError for several, which may have caches of their own."""
    runs = _load_runs(name, variant, overrides)
    if len(runs.members) > 1:
        problem = f"{name} is a sweep of {len(runs.members)} runs, which may have different caches."
        raise DistilvecError(problem, "Name one run: sweep=null, with its --variant and its keys.", key="sweep")
    return runs.first.recipe


def _flat_rows(tree: Mapping[str, object], prefix: str = "") -> list[list[str]]:
    rows: list[list[str]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            rows += _flat_rows(value, f"{prefix}{key}.")
        else:
            rows += [[prefix + key, str(value)]]
    return rows
