"""Failed measurements and warnings of the training."""

from __future__ import annotations

from distilvec.report.section import Block, Section, get, make_section
from distilvec.report.tables import Part


def section(report: Part) -> Section | None:
    """Return failures by task and model, and warnings by step."""
    failures = [f"{one['task']} ({one.get('column') or 'all'}): {one['message']}" for one in get(report, "failures")]
    warnings = [f"{line['warning']} (step {line['step']:,})" for line in get(report, "warnings")]
    return make_section("Problems", Block("list", failures), Block("list", warnings))
