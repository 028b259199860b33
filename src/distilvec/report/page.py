"""The report as one HTML file that needs nothing else: of a run (report.json) and of a comparison of runs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from distilvec.core.errors import DistilvecError, explained
from distilvec.core.files import write_file
from distilvec.report.page_cells import number
from distilvec.report.page_sections import Section, comparison_sections, report_sections

Part = Mapping[str, Any]


def render_page(report: Part, figures: Sequence[Part]) -> str:
    """A run's page from its report.json. Figures have `name`, `title`, `description` and `svg`, which is put in as it is.

    Parts that are missing are left out, with their headings. Errors: DistilvecError for a figure without a description.
    """
    record = report.get("record") or {}
    name = report.get("name") or record.get("name") or "student"
    verdict = report.get("verdict") or {}
    method = (record.get("method") or {}).get("name")
    names = [(part or {}).get("name") for part in (record.get("teacher"), *record.get("more_teachers", ()))]
    teachers = " and ".join(name for name in names if name)
    origin = [
        f"distilled from {teachers}" if teachers else "",
        f"with {method}" if method else "",
        str(report.get("created") or "")[:10],
    ]
    return _render(
        name,
        ", ".join(part for part in origin if part),
        verdict.get("text"),
        tiles(verdict),
        report_sections(report, figures),
        figures,
    )


def render_comparison(comparison: Part, figures: Sequence[Part]) -> str:
    """The page of a comparison of runs (`rows`, `tasks`, `reference`, `differences`, `notes`), with the look of a run's page."""
    rows, reference = comparison["rows"], comparison.get("reference")
    kind = f"{len(rows)} run{'' if len(rows) == 1 else 's'} compared"
    under = f"on {len(tasks)} task{'' if len(tasks) == 1 else 's'}" if (tasks := comparison.get("tasks") or []) else ""
    against = f"reference: {reference}" if reference and len(rows) > 1 else ""
    sections = comparison_sections(comparison, figures)
    return _render(
        kind,
        ", ".join(part for part in (under, against) if part),
        comparison_verdict(comparison),
        [],
        sections,
        figures,
    )


def write_page(report: Part, figures: Sequence[Part], path: Path, key: str = "report.html") -> Path:
    """Write a run's page, or a comparison's where `report` has `rows`, whole or not at all; `key` is for messages."""
    page = render_comparison(report, figures) if "rows" in report else render_page(report, figures)
    with explained(key, path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, page, key)
    return path


def tiles(verdict: Part) -> list[dict[str, Any]]:
    """The verdict's numbers, large: key of report.json, value, what is shown, what it means."""
    worst, times = verdict.get("worst_change"), " \N{MULTIPLICATION SIGN}"
    where = " on queries" if verdict.get("document_speedup") is not None else ""
    gained = worst is not None and worst >= 0
    labels = {
        "retention": (" %", "of the teacher kept"),
        "asymmetric_retention": (" %", "kept with the teacher's documents"),
        "speedup": (times, f"the teacher's speed{where}"),
        "document_speedup": (times, "the teacher's speed on documents"),
        "smaller": (
            times,
            "fewer parameters" if (verdict.get("smaller") or 1) >= 1 else "of the student's parameters in the teacher",
        ),
        "worst_change": (" %", f"{'worst change' if gained else 'largest loss'}, on {verdict.get('worst_task')}"),
    }
    return [
        {
            "key": key,
            "value": verdict[key],
            "shown": number(verdict[key], 1, sign=key == "worst_change"),
            "unit": unit,
            "label": label,
        }
        for key, (unit, label) in labels.items()
        if verdict.get(key) is not None
    ]


def comparison_verdict(comparison: Part) -> str:
    """The best run on average in a sentence, with its lead over the reference (or the next one) and whether it is more than chance."""
    scored = [row for row in comparison["rows"] if (row.get("mean") or {}).get("average") is not None]
    if not scored:
        return ""
    best, *others = sorted(scored, key=lambda row: -row["mean"]["average"])
    text = f"best on average: {best['run']} with {best['mean']['average']:.1f}"
    reference = (
        comparison.get("reference")
        if best["run"] != comparison.get("reference")
        else others[0]["run"]
        if others
        else None
    )
    pair = {best["run"], reference}
    found = (
        item
        for item in comparison.get("differences") or ()
        if item["task"] == "average" and {item["a"], item["b"]} == pair
    )
    lead = next(found, None)
    if lead is None:
        return text
    change = lead["difference"] if lead["a"] == best["run"] else -lead["difference"]
    chance = "" if lead.get("p") is None else " (p < 0.05)" if lead["p"] < 0.05 else ", which may be chance"
    return f"{text}, {number(change, 2, sign=True)} points against {reference}{chance}"


def _render(
    title: str, subtitle: str, verdict: str | None, numbers: Any, sections: Sequence[Section], figures: Sequence[Part]
) -> str:
    for figure in figures:
        if not str(figure.get("description") or "").strip():
            raise DistilvecError(
                f"[figure] '{figure.get('name')}' has no description. Describe every image of the page in words."
            )
    script = _text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _template().render(
        title=title, subtitle=subtitle, verdict=verdict, tiles=numbers, sections=sections,
        style=_text("page.css"), script=script, digest=digest,
    )  # fmt: skip
    return page.strip() + "\n"


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, autoescape=True, undefined=StrictUndefined)
    return environment.from_string(_text("page.html.jinja"))
