"""The report as one HTML file that needs nothing else; sections are found by name."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from distilvec.report.section import Figure, get
from distilvec.report.tables import Part, number, templates

ORDER = (
    "problems", "use", "scores", "queries", "compression", "margin", "speed", "exports", "vocabulary", "experts",
    "projections", "training", "sharpness", "record",
)  # fmt: skip
TILES = {  # key of the verdict: unit, label
    "retention": (" %", "of the teacher's average"),
    "asymmetric_retention": (" %", "of it with the teacher's documents"),
    "retrieval": (" %", "of the teacher's retrieval score"),
    "asymmetric_retrieval": (" %", "of it with the teacher's documents"),
    "speedup": (" times", "the teacher's speed on queries"),
    "document_speedup": (" times", "the teacher's speed on documents"),
    "smaller": (" times", "fewer parameters"),
    "worst_change": (" %", "on {worst_task}, the lowest task"),
}
Draw = Callable[[Figure], str]


def render_page(report: Part, draw: Draw) -> str:
    """Return a run's page from its report.json; `draw` returns the `<svg>` of a figure. Missing parts are left out."""
    record, verdict = get(report, "record"), get(report, "verdict")
    teachers = [record.get("teacher") or {}, *(record.get("more_teachers") or ())]
    origin = [f"teacher: {teacher['name']}" for teacher in teachers if teacher.get("name")]
    origin += [f"method: {name}" for name in [get(record, "method.name")] if name] + [
        str(report.get("created") or "")[:10]
    ]
    sections = {name: import_module(f"distilvec.report.sections.{name}").section(report) for name in ORDER}
    title = report.get("name") or record.get("name") or "student"
    return render(title, origin, verdict.get("text"), tiles(verdict), sections, draw)


def tiles(verdict: Part) -> list[dict[str, Any]]:
    """Return the verdict's numbers for the top of the page: key of report.json, value, text, unit, label."""
    found = []
    for key, (unit, label) in TILES.items():
        if (value := verdict.get(key)) is not None:
            shown, label = (
                number(value, 1, sign=key == "worst_change"),
                label.format(worst_task=verdict.get("worst_task")),
            )
            found.append({"key": key, "value": value, "shown": shown, "unit": unit, "label": label})
    return found


def render(
    title: str, origin: Sequence[str], verdict: Any, numbers: Any, sections: Mapping[str, Any], draw: Draw
) -> str:
    """Return a page of sections."""
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown = {name: section for name, section in sections.items() if section}
    page = templates().get_template("page.html.jinja").render(
        title=title, subtitle=", ".join(filter(None, origin)), verdict=verdict, tiles=numbers, sections=shown,
        draw=draw, style=style, script=script, digest=digest,
    )  # fmt: skip
    return page.strip() + "\n"
