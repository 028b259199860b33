"""Parity of the student's exported files with PyTorch."""

from __future__ import annotations

from distilvec.report.exports import export_note, export_table
from distilvec.report.section import Section, make_section
from distilvec.report.values import Report


def section(report: Report) -> Section | None:
    """Return the table of `distilvec export`, for a run whose student was exported."""
    return make_section("Exported files", export_table(report.exports), export_note(report.exports))
