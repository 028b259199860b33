"""The command `distilvec runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from distilvec.cli.options import JsonFile, argument, check_outputs
from distilvec.cli.output import write_result

if TYPE_CHECKING:
    from distilvec.verbs.runs.runs import RunInfo


def runs(
    folder: Annotated[Path, argument("The folder with run folders, at any depth.")] = Path("runs"),
    json_file: JsonFile = None,
) -> None:
    """List run folders: state, size, scores, date."""
    check_outputs([("--json", json_file)])

    from dataclasses import asdict

    from distilvec.cli.terminal import print_result, show_table
    from distilvec.verbs.runs.runs import runs as list_runs

    listed = list_runs(folder)
    write_result(json_file, [asdict(run) for run in listed])
    if not listed:
        print_result(f"no runs in {folder}")
        return
    header = ["run", "state", "score", "% of teacher", "overlap@10", "alone", "student", "disk", "changed"]
    show_table(header, [cells(run, folder) for run in listed])
    for run in listed:
        if run.problem:
            print_result(f"distilvec: {run.problem}", error=True)


def cells(run: RunInfo, root: Path) -> list[str]:
    """Return a run's line, its folder relative to `root`; a dash where it has no such number."""
    return [
        run.folder.name if run.folder == root else str(run.folder.relative_to(root)),
        run.state_text,
        number_or_dash(run.score, "{:.1f}"),
        number_or_dash(run.retention, "{:.1f}"),
        number_or_dash(run.overlap_among, "{:.2f}"),
        number_or_dash(run.overlap_alone, "{:.2f}"),
        "-" if run.parameters is None else f"{run.parameters / 1e6:.1f} M",
        f"{run.bytes / 1e6:,.0f} MB",
        f"{run.changed.astimezone():%Y-%m-%d %H:%M}",
    ]


def number_or_dash(value: float | None, form: str) -> str:
    """Return a number as text."""
    return "-" if value is None else form.format(value)
