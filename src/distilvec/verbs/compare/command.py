"""The command `distilvec compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from distilvec.cli.options import (
    JsonFile,
    argument,
    check_input,
    check_outputs,
    option,
)
from distilvec.cli.output import write_result
from distilvec.config.score_columns import SCORE_COLUMNS
from distilvec.core.errors import about
from distilvec.core.extras import require_extra
from distilvec.core.files import check_output_folder, write_file


def compare(
    runs: Annotated[list[Path], argument("Run folders, or folders of sweeps.")],
    reference: Annotated[str | None, option("The run to compare the others with; the first by default.")] = None,
    column: Annotated[
        str | None, option(f"One of {', '.join(SCORE_COLUMNS)}. By default student, of an index asymmetric.")
    ] = None,
    out: Annotated[Path | None, option("Write a page here, and its figures in a folder next to it.")] = None,
    markdown: Annotated[Path | None, option("Write the leaderboard as Markdown.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare runs, with confidence intervals.

    Which one leads, and the best; means and deviations over seeds, differences and costs are on the page (--out) and in
    the other files.
    """
    check_outputs([("--out", out), ("--markdown", markdown), ("--json", json_file)])
    for run in runs:
        check_input(run, "run folder")
    if out is not None:
        with about("--out", out):
            check_output_folder(out.with_name(f"{out.stem}-figures"))
        require_extra("report", "--out")

    from distilvec.cli.terminal import show_comparison
    from distilvec.report.comparison import draw_comparison, leaderboard
    from distilvec.report.tables import to_markdown
    from distilvec.verbs.compare.compare import compare_runs, next_of_best

    comparison = compare_runs(runs, reference, column)
    if markdown is not None:
        with about("--markdown", markdown):
            markdown.parent.mkdir(parents=True, exist_ok=True)
            write_file(markdown, to_markdown(leaderboard(comparison), comparison.notes))
    write_result(json_file, comparison.to_json())
    if out is not None:
        show_comparison(comparison, draw_comparison(out, comparison), next_of_best(comparison))
        return
    options = ["--reference", reference] if reference is not None else []
    if column is not None:
        options += ["--column", column]
    whole = shlex.join(["distilvec", "compare", *map(str, runs), *options, "--out", "comparison.html"])
    show_comparison(comparison, None, whole)
