"""Parity of the student's exported files with PyTorch."""

from __future__ import annotations

from distilvec.report.exports import export_note, export_table
from distilvec.report.section import Section, get, make_section
from distilvec.report.tables import Part


def section(report: Part) -> Section | None:
    """Return the table of `distilvec export`, for a run whose student was exported."""
    forms = get(report, "exports")
    return make_section("Exported files", export_table(forms), export_note(forms)) if forms else None
