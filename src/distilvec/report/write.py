"""A run's report: the last parts of report.json, the figures as files, and the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from distilvec.core.errors import about
from distilvec.core.files import write_file
from distilvec.core.run_folder import RunFolder
from distilvec.report.advice import advice, reason
from distilvec.report.exports import read_exports
from distilvec.report.figures import can_draw, write_figure
from distilvec.report.html import render_page
from distilvec.report.record import RunRecord
from distilvec.report.values import MetricsLine, Report, read_report
from distilvec.report.verdicts import make_verdict
from distilvec.train.metrics import read_metrics

HISTORY_LINES = 400  # training lines kept for the curves


def write_report(run: RunFolder, report: Report, record: RunRecord, recipe: str) -> None:
    """Complete and write report.json; `draw_report` makes the page of it."""
    report.history = history(run.metrics)
    report.warnings = warnings(run)
    report.record = record
    report.recipe = recipe
    _complete(run, report)


def refresh_report(run: RunFolder) -> Path | None:
    """Write the page of a run again, with exports.json as it is; None without a report."""
    report = read_report(run)
    if report is None:
        return None
    _complete(run, report)
    return draw_report(run, report)


def _complete(run: RunFolder, report: Report) -> None:
    """Make the verdict and its advice, and write report.json."""
    report.folder = str(run.path)
    report.exports = read_exports(run.student)
    changes = report.intervals.get("student")
    report.verdict = make_verdict(report.scores, changes, report.speed, report.record, report.vocabulary)
    report.verdict.advice, report.verdict.reason = advice(report), reason(report)
    report.write(run)


def draw_report(run: RunFolder, report: Report) -> Path | None:
    """Write the figures of a complete report (SVG and PNG) and report.html; None without matplotlib."""
    if not can_draw(run.report_page.name):
        return None
    page = render_page(report.visible(), partial(write_figure, folder=run.figures))
    with about(run.report_page.name, run.report_page):
        write_file(run.report_page, page)
    return run.report_page


def draw_vocabulary(path: Path, report: Report) -> None:
    """Write the page of a model with another vocabulary; nothing without matplotlib."""
    if can_draw(path.name):
        page = render_page(report.visible(), partial(write_figure, folder=None))
        with about("--out", path):
            write_file(path, page)


def history(metrics: Path) -> list[MetricsLine]:
    """Return the lines of metrics.jsonl, training lines thinned evenly; every validation stays."""
    lines = [line for line in read_metrics(metrics) if "warning" not in line]
    training = [number for number, line in enumerate(lines) if "watched" not in line]
    with_loss = [number for number in training if "train/loss" in lines[number]]
    of_gradients = [number for number in training if "train/loss" not in lines[number]]
    chosen = {*_thinned(with_loss), *_thinned(of_gradients)}
    return [line for number, line in enumerate(lines) if number in chosen or "watched" in line]


def _thinned(numbers: Sequence[int]) -> Sequence[int]:
    """Return at most HISTORY_LINES of the numbers, evenly spread."""
    return numbers[:: max(1, math.ceil(len(numbers) / HISTORY_LINES))]


def warnings(run: RunFolder) -> list[MetricsLine]:
    """Return the training's warnings, stage by stage: step, epoch, warning."""
    files = [stage.metrics for stage in (*run.earlier_stages, run.training)]
    return [line for file in files for line in read_metrics(file) if "warning" in line]
