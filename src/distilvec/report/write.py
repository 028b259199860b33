"""A run's report: the last parts of report.json, the figures as files, and the page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.escape import visible_tree
from distilvec.core.extras import require_extra
from distilvec.core.files import SEAL, write_json
from distilvec.core.log import log
from distilvec.evaluation.evaluator import read_score
from distilvec.report.page import write_page
from distilvec.report.run_files import REPORT, RUN_AGAIN, read_run_file
from distilvec.report.sharpness_report import read_sharpness
from distilvec.report.verdict import make_verdict
from distilvec.train.metrics import read_metrics, validation_metric

HISTORY_LINES = 400  # training lines kept for the curves; longer runs are thinned


def write_report(folder: Path, found: dict[str, Any], record: Mapping[str, Any], recipe: str) -> Path | None:
    """Complete report.json, draw the figures and write report.html; its path, or None where matplotlib is not installed."""
    scores = {name: [read_score(score) for score in column] for name, column in found["scores"].items()}
    found |= {
        "verdict": make_verdict(scores, found.get("intervals"), found.get("speed"), record),
        "history": history(folder / "metrics.jsonl"),
        "warnings": warnings(folder),
        "sharpness": read_sharpness(folder),
        "record": dict(record),
        "recipe": recipe,
    }
    write_json(folder / REPORT, found, sealed=True, key=REPORT)
    return draw_report(folder, found)


def refresh_report(folder: Path) -> Path | None:
    """Make the page anew of a run that has one, with a sharpness.json that was measured since; None for a run without.

    Errors: DistilvecError for a report.json that is damaged or was changed by hand.
    """
    content = read_run_file(folder, REPORT)
    if content is None:
        return None
    found = content | {"sharpness": read_sharpness(folder)}
    try:
        page = draw_report(folder, found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if SEAL in content:  # then the file is as we wrote it, and the mistake is ours
            raise
        raise DistilvecError(
            f"[{REPORT}] {folder / REPORT} lacks a part of a report ({first_line(error)}). {RUN_AGAIN}"
        ) from None
    write_json(folder / REPORT, found, sealed=True, key=REPORT)
    return page


def draw_report(folder: Path, found: Mapping[str, Any]) -> Path | None:
    """The figures of a complete report.json (SVG and PNG, in figures/) and report.html."""
    from distilvec.report.figures import all_figures

    try:
        require_extra("report", "report.html")
    except DistilvecError as error:
        log(f"no report.html: {error}")
        return None
    found = visible_tree(found)
    figures = all_figures(found, folder / "figures")
    path = folder / "report.html"
    write_page(found, figures, path)
    return path


def draw_comparison(path: Path, comparison: Mapping[str, Any]) -> Path:
    """A comparison as a page at `path`, its figures as files in `<path without ending>-figures/`."""
    from distilvec.report.figure_style import write_figure
    from distilvec.report.figure_text import describe_leaderboard
    from distilvec.report.figures import leaderboard_figure

    comparison = visible_tree(comparison)
    figures = []
    for against, title in (
        ("parameters", "What is kept against size"),
        ("texts_per_second", "What is kept against speed"),
    ):
        known = [row for row in comparison["rows"] if row.get(against) and "average" in row["retention"]]
        rows = [{**row, "name": row["run"], "retention": row["retention"]["average"]} for row in known]
        if rows:
            figure, text = leaderboard_figure(rows, against), describe_leaderboard(rows, against)
            figures.append(write_figure(figure, path.with_name(f"{path.stem}-figures"), against, text, title, "--out"))
    return write_page(comparison, figures, path, "--out")


def history(metrics: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, training lines thinned evenly; every held-out distance stays."""
    lines = [line for line in read_metrics(metrics) if "warning" not in line]
    training = [line for line in lines if validation_metric(line) is None]
    every = max(1, -(-len(training) // HISTORY_LINES))
    kept = {id(line) for line in training[::every]}
    return [line for line in lines if validation_metric(line) or id(line) in kept]


def warnings(folder: Path) -> list[dict[str, Any]]:
    """What training warned of, stage by stage: step, epoch, warning."""
    files = [*sorted(folder.glob("stages/*/metrics.jsonl")), folder / "metrics.jsonl"]
    return [line for file in files for line in read_metrics(file) if "warning" in line]
