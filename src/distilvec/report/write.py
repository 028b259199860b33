"""A run's report: the last parts of report.json, the figures as files, and the page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, explained
from distilvec.core.escape import visible_tree
from distilvec.core.extras import require_extra
from distilvec.core.files import write_file, write_json
from distilvec.core.log import log
from distilvec.report.advice import advice
from distilvec.report.comparison import render_comparison
from distilvec.report.exports import read_exports
from distilvec.report.figures import write_figure
from distilvec.report.html import render_page
from distilvec.report.run_files import REPORT, read_run_file
from distilvec.report.scores import make_verdict
from distilvec.report.section import get
from distilvec.train.metrics import read_metrics, validation_metric

HISTORY_LINES = 400  # training lines kept for the curves


def write_report(folder: Path, found: dict[str, Any], record: Mapping[str, Any], recipe: str) -> Path | None:
    """Complete report.json, draw the figures and write report.html; return its path, None without matplotlib."""
    found |= {
        "verdict": make_verdict(found.get("scores"), found.get("intervals"), found.get("speed"), record),
        "history": history(folder / "metrics.jsonl"),
        "warnings": warnings(folder),
        "exports": read_exports(folder / "student"),
        "record": dict(record),
        "recipe": recipe,
    }
    found["verdict"]["advice"] = advice({**found, "folder": str(folder)})
    write_json(folder / REPORT, found, sealed=True, key=REPORT)
    return draw_report(folder, found)


def refresh_report(folder: Path) -> Path | None:
    """Write the page of a run again, with exports.json as it is; None without a report.

    Errors: DistilvecError for a report.json that is damaged or was changed by hand.
    """
    content = read_run_file(folder, REPORT)
    if content is None:
        return None
    found = content | {"exports": read_exports(folder / "student")}
    if found.get("verdict"):
        found["verdict"] = make_verdict(
            found.get("scores"), found.get("intervals"), found.get("speed"), found.get("record")
        )
    found["verdict"] = {**get(found, "verdict"), "advice": advice({**found, "folder": str(folder)})}
    page = draw_report(folder, found)
    write_json(folder / REPORT, found, sealed=True, key=REPORT)
    return page


def draw_report(folder: Path, found: Mapping[str, Any]) -> Path | None:
    """Write the figures of a complete report.json (SVG and PNG, in figures/) and report.html."""
    if not _can_draw("report.html"):
        return None
    shown = {**found, "folder": str(folder)}  # for commands on the page; not stored, since a run may move
    page = render_page(visible_tree(shown), partial(write_figure, folder=folder / "figures"))
    return _write(folder / "report.html", page, "report.html")


def draw_sweep(folder: Path, comparison: Mapping[str, Any]) -> Path | None:
    """Write the comparison of a sweep's runs into its folder: comparison.html, and its figures."""
    return draw_comparison(folder / "comparison.html", comparison) if _can_draw("comparison.html") else None


def draw_comparison(path: Path, comparison: Mapping[str, Any]) -> Path:
    """Write a comparison as a page at `path`, its figures in `<path without ending>-figures/`."""
    draw = partial(write_figure, folder=path.with_name(f"{path.stem}-figures"), key="--out")
    return _write(path, render_comparison(visible_tree(comparison), draw), "--out")


def _can_draw(page: str) -> bool:
    """Whether the packages of the extra "report" are there; logs if not."""
    try:
        require_extra("report", page)
    except DistilvecError as error:
        log(f"no {page}: {error}")
        return False
    return True


def history(metrics: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl, training lines thinned evenly; every validation stays."""
    lines = [line for line in read_metrics(metrics) if "warning" not in line]
    training = [line for line in lines if validation_metric(line) is None]
    kept = set[int]()
    for losses in (True, False):  # lines of gradients have none
        own = [line for line in training if ("train/loss" in line) == losses]
        kept |= {id(line) for line in own[:: max(1, -(-len(own) // HISTORY_LINES))]}
    return [line for line in lines if validation_metric(line) or id(line) in kept]


def warnings(folder: Path) -> list[dict[str, Any]]:
    """Return the training's warnings, stage by stage: step, epoch, warning."""
    files = [*sorted(folder.glob("stages/*/metrics.jsonl")), folder / "metrics.jsonl"]
    return [line for file in files for line in read_metrics(file) if "warning" in line]


def _write(path: Path, page: str, key: str) -> Path:
    with explained(key, path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, page, key)
    return path
