"""Recipe and record of the run: teacher, student, method, data, versions."""

from __future__ import annotations

import re
from dataclasses import replace

from distilvec.report.json_values import to_json
from distilvec.report.record import DataRecord, MethodRecord, RunRecord, StudentRecord
from distilvec.report.section import Block, PageSection, folded, make_section, pairs
from distilvec.report.tables import make_table
from distilvec.report.values import REPORT_FORMAT, Report

SOURCES = {"Source": "name", "Role": "role", "Language": "language", "texts": ("rows", 0)}
_NULL = re.compile(r" *\w+: null")


def section(report: Report) -> PageSection | None:
    """Return names and values of the record, group by group, the recipe and the method's citation."""
    record = report.record or RunRecord()
    data = record.data or DataRecord()
    method = record.method or MethodRecord()
    teachers = [
        pairs(to_json(teacher), f"Teacher {number}" if number > 1 else "Teacher")
        for number, teacher in enumerate(record.teachers, 1)
    ]
    report_identity = {}
    if report.fingerprint:
        report_identity = {"fingerprint": report.fingerprint, "created": report.created, "format": REPORT_FORMAT}
    return make_section(
        "Recipe and provenance",
        Block("code", stated_keys(report.recipe), "Recipe"),
        Block("code", method.citation, "Citation"),
        folded(
            "Teacher, student, method, data, versions",
            *teachers,
            pairs(to_json(record.student or StudentRecord()), "Student"),
            pairs(to_json(replace(method, citation=None)), "Method"),
            pairs(to_json(replace(data, sources=[])), "Data"),
            make_table("source-table", "Training texts", data.sources, SOURCES),
            pairs(record.versions, "Versions"),
            pairs(report_identity, "This report"),
        ),
    )


def stated_keys(recipe: str | None) -> str:
    """Return a saved recipe without the keys that are null; the file in the run's folder has all of them.

    An empty value may be a choice: no prompts, where the model has some, or no parts of the report.
    """
    lines = (recipe or "").splitlines(keepends=True)
    return "".join(line for line in lines if not _NULL.fullmatch(line.rstrip()))
