"""The report as one HTML file that needs nothing else; sections are found by name."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from distilvec.report.model_card import read_teachers
from distilvec.report.section import Figure, get
from distilvec.report.tables import Part, number, templates

ORDER = (
    "problems", "use", "neighbors", "scores", "mistakes", "queries", "texts", "compression", "margin", "speed",
    "exports", "vocabulary", "experts", "projections", "training", "record",
)  # fmt: skip
TILES = {  # key of the verdict: what follows the number; the first key of a group is its tile, the others its notes
    "task_score": ("", "{task_metric} on {task}"),
    "retention": ("%", "of the teacher's average"),
    "asymmetric_retention": ("%", "with the teacher's documents"),
    "retrieval": ("%", "of the teacher's retrieval score"),
    "asymmetric_retrieval": ("%", "with the teacher's documents"),
    "neighbors": ("", "{neighbors_label}"),
    "neighbors_alone": ("", "with its own vectors"),
    "speedup": (" times", "the teacher's speed on queries"),
    "document_speedup": (" times", "on documents"),
    "megabytes": (" MB", "of weights in float32"),
    "smaller": (" times", "fewer parameters than the teacher"),
    "worst_change": ("%", "on {worst_task}, the lowest task"),
    "teacher_cost": ("", "paid for the teacher's vectors"),
    "teacher_tokens": ("", "tokens sent to the teacher"),
    "teacher_requests": ("", "requests to the teacher"),
}
NOTES = {
    "asymmetric_retention",
    "asymmetric_retrieval",
    "neighbors_alone",
    "document_speedup",
    "smaller",
    "teacher_requests",
}
DIGITS = {"teacher_cost": 2, "teacher_tokens": 0, "teacher_requests": 0, "neighbors": 2, "neighbors_alone": 2}
Draw = Callable[[Figure], str]


def render_page(report: Part, draw: Draw) -> str:
    """Return a run's page from its report.json; `draw` returns the `<svg>` of a figure. Missing parts are left out."""
    record, verdict = get(report, "record"), get(report, "verdict")
    origin = [f"teacher: {teacher['name']}" for teacher in read_teachers(record) if teacher.get("name")]
    origin += [f"method: {name}" for name in [get(record, "method.name")] if name] + [
        str(report.get("created") or "")[:10]
    ]
    names: tuple[str, ...] = ORDER
    if report.get("mistakes"):  # of a classifier its accuracy and its mistakes are what one looks for
        names = tuple(dict.fromkeys(("problems", "scores", "mistakes", *ORDER)))
    sections = {name: import_module(f"distilvec.report.sections.{name}").section(report) for name in names}
    title = report.get("name") or record.get("name") or "student"
    return render(title, origin, verdict, sections, draw)


def tiles(verdict: Part) -> list[list[dict[str, Any]]]:
    """Return the verdict's numbers in groups, a tile each: key of report.json, value, text, unit, label.

    A note without its tile's number gets a tile of its own.
    """
    found = list[list[dict[str, Any]]]()
    group = False  # whether the tile of the next note is there
    for key, (unit, label) in TILES.items():
        if key not in NOTES:
            group = verdict.get(key) is not None
        if (value := verdict.get(key)) is None:
            continue
        shown = number(value, DIGITS.get(key, 1), sign=key == "worst_change")
        one = {"key": key, "value": value, "shown": shown, "unit": unit, "label": label.format(**verdict)}
        if key in NOTES and group:
            found[-1].append(one)
        else:
            found.append([one])
            group = True
    return found


def render(title: str, origin: Sequence[str], verdict: Part, sections: Mapping[str, Any], draw: Draw) -> str:
    """Return a page of sections; of `verdict` are shown `text`, `advice` and the numbers of TILES."""
    style, script = (_page_files(ending) for ending in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown = {name: section for name, section in sections.items() if section}
    page = templates().get_template("page.html.jinja").render(
        title=title, subtitle=", ".join(filter(None, origin)), verdict=verdict.get("text"), tiles=tiles(verdict),
        advice=verdict.get("advice") or (), sections=shown,
        draw=draw, style=style, script=script, digest=digest,
    )  # fmt: skip
    return page.strip() + "\n"


def _page_files(ending: str) -> str:
    """The style or the scripts of the page."""
    files = sorted((Path(__file__).parent / "page").glob(f"*.{ending}"))
    return "\n".join(path.read_text(encoding="utf-8").strip() for path in files)
