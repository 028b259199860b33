"""Recipe and record of the run: teacher, student, method, data, versions."""

from __future__ import annotations

from distilvec.report.model_card import read_teachers
from distilvec.report.section import Block, Section, get, make_section, pairs
from distilvec.report.tables import Part, make_table

SOURCES = {"Source": "name", "Role": "role", "Language": "language", "texts": ("rows", 0)}


def section(report: Part) -> Section | None:
    """Return names and values of the record, group by group, the recipe and the method's citation."""
    record = get(report, "record")
    method, data = get(record, "method"), get(record, "data")
    return make_section(
        "Recipe and provenance",
        *(
            pairs(teacher, f"Teacher {number}" if number > 1 else "Teacher")
            for number, teacher in enumerate(read_teachers(record), 1)
        ),
        pairs(get(record, "student"), "Student"),
        pairs({**method, "citation": None}, "Method"),
        pairs({**data, "sources": None}, "Data"),
        make_table("source-table", "Training texts", data.get("sources") or (), SOURCES),
        pairs(get(record, "versions"), "Versions"),
        Block("code", report.get("recipe"), "Recipe"),
        Block("code", method.get("citation"), "Citation"),
        pairs({key: report.get(key) for key in ("fingerprint", "created", "format")}, "This report"),
    )
