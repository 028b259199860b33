"""The command `distilvec run`, also in several processes of this machine (`--processes`)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distilvec.cli.boundary import LOST
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
from distilvec.core.errors import Interrupted
from distilvec.core.log import Level, level
from distilvec.core.run_folder import RunFolder

if TYPE_CHECKING:
    from distilvec.config.schema import Recipe

GRACE = 10.0  # seconds to end by itself, for a process that lost another one


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

    Or all runs of its sweep. The same command resumes.
    """
    from distilvec.config.builtin import recipe_file
    from distilvec.verbs.run.sweep import check_methods, load_runs, run_sweep

    runs = load_runs(recipe_file(recipe), overrides or [], combined(variant))
    loaded = runs.first.recipe
    earlier = earlier_recipes(recipe_file(recipe), [member.recipe for member in runs.members], overrides or [])
    check_recipe_paths(next(iter(earlier.values()), loaded))
    read = files_of_recipes([*earlier.values(), *(member.recipe for member in runs.members)])
    check_outputs([("--json", json_file)], [recipe_file(recipe), *read])
    check_methods(runs.members)
    if processes > 1:
        from distilvec.verbs.run.command import launch

        words = [*(overrides or []), *(f"--variant={name}" for name in variant or [])]
        if out is not None:
            words += [f"--out={out}"]
        if json_file is not None:
            words += [f"--json={json_file}"]
        raise SystemExit(launch(processes, ["run", recipe, *words, *(["--restart"] if restart else [])]))

    # These imports take seconds: a mistake in a recipe is reported before
    from distilvec.cli.terminal import show_comparison, show_end
    from distilvec.core.log import log
    from distilvec.core.processes import is_main
    from distilvec.pipeline.run import run as run_recipe
    from distilvec.report.comparison import draw_sweep
    from distilvec.verbs.compare.compare import compare_runs, next_of_best

    for folder, before in earlier.items():
        log(f"first {before.name}, from whose student a later run begins")
        run_recipe(before, folder)
    if not runs.is_sweep:
        result = run_recipe(loaded, out or loaded.output / loaded.name, restart)
        if result is not None:
            write_result(json_file, result.to_json())
            show_end(result)
        return
    folder = out or loaded.output / Path(recipe).stem

    def report(name: str, done: int, total: int) -> None:
        log(f"sweep {done}/{total}: {name}")

    run_sweep(runs.members, folder, run_recipe, report, restart)
    if is_main():
        comparison = compare_runs([folder])
        write_result(json_file, comparison.to_json())
        page = draw_sweep(RunFolder(folder), comparison)
        show_comparison(comparison, page, next_of_best(comparison))


def earlier_recipes(path: Path, recipes: Sequence[Recipe], overrides: list[str]) -> dict[Path, Recipe]:
    """Return the variants, by run folder, that train the students which recipes begin with and that are not finished.

    Changes of the command line hold in both runs, but for those of the student and of a sweep.
    """
    from distilvec.config.recipe import load

    kept = [change for change in overrides if not change.startswith(("student.", "sweep."))]
    earlier = {}
    for recipe in recipes:
        if recipe.after is None or recipe.student.model is None:
            continue
        student = Path(recipe.student.model)
        run = RunFolder.of_student(student) or RunFolder(student.parent)
        # A run saves its student before the first step, so that the folder alone says nothing. A model that lies in no
        # run folder, such as a copy from another machine, is taken as it is
        is_finished = student.exists() and (run.record.exists() or not run.is_ours())
        if not is_finished:
            earlier[run.path] = load(path, recipe.after, kept)
    return earlier


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `distilvec arguments` in `count` processes; return the exit status of the first that failed, else 0.

    Signals go on to all processes: each finishes its step, the first writes a checkpoint. If a process fails, the
    others end too. Standard error of the others is shown only if one of them fails and the first one did not.
    """
    flag = {Level.QUIET: ["--quiet"], Level.VERBOSE: ["--verbose"]}.get(level(), [])
    # -P: without it Python imports a yaml.py or typer.py of the current folder instead of the library
    line = [sys.executable, "-P", "-m", "distilvec", *arguments, *flag]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    threads = os.environ.get("OMP_NUM_THREADS", max(1, (os.cpu_count() or 1) // count))
    with tempfile.TemporaryDirectory(prefix="distilvec-run-") as folder:
        outputs = [Path(folder) / str(rank) for rank in range(count)]
        children = []
        for rank, output in enumerate(outputs):
            of_rank = {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": threads}
            environment = os.environ | {name: str(value) for name, value in {**shared, **of_rank}.items()}
            with output.open("wb") as file:
                to = {} if rank == 0 else {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
                # sessions of their own: Ctrl-C reaches them through this process alone, once
                children.append(subprocess.Popen(line, env=environment, start_new_session=True, **to))  # type: ignore[call-overload]
        failed = _wait(children)
        return _report(children, failed, outputs)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for the end of all processes; return the numbers of those that failed by themselves, the first one first.

    If one fails, the others have `GRACE` seconds. After a signal they have the time that they need.
    """
    failed: list[int] = []
    since, is_signaled = 0.0, False
    while any(child.poll() is None for child in children):
        try:
            time.sleep(0.05)
            failed += [number for number, child in enumerate(children) if child.poll() and number not in failed]
            since = since or (time.monotonic() if failed and not is_signaled else 0.0)
            if since and time.monotonic() - since > GRACE:
                _send(children, signal.SIGKILL)
        except Interrupted as signaled:
            is_signaled = True
            _send(children, signaled.number)
    return failed + [number for number, child in enumerate(children) if child.returncode and number not in failed]


def _send(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def _report(children: Sequence[subprocess.Popen[bytes]], failed: Sequence[int], outputs: Sequence[Path]) -> int:
    """Show the error of the process that failed first, unless the first process has shown its own; its exit status."""
    causes = [number for number in failed if children[number].returncode != LOST] or list(failed)
    if not causes:
        return 0
    cause = causes[0] if children[0].returncode in (0, LOST, -signal.SIGKILL) else 0
    status = int(children[cause].returncode)
    if cause != 0:
        sys.stderr.write(outputs[cause].read_text(encoding="utf-8", errors="backslashreplace")[-3000:])
    if status < 0:
        name = signal.Signals(-status).name
        print(
            f"distilvec: [processes] process {cause} of {len(children)} ended by {name}; the others were stopped. Run "
            "the same command again to go on from the last checkpoint.",
            file=sys.stderr,
        )
    return status if status >= 0 else 128 - status
