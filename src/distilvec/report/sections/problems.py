"""Failed measurements and warnings of the training."""

from __future__ import annotations

from distilvec.report.section import Block, Section, make_section
from distilvec.report.values import Report


def section(report: Report) -> Section | None:
    """Return failures by task and model, and warnings by step."""
    failures = [f"{failure.task} ({failure.column or 'all'}): {failure.message}" for failure in report.failures]
    warnings = [f"{line['warning']} (step {line['step']:,})" for line in report.warnings]
    return make_section("Problems", Block("list", failures), Block("list", warnings))
