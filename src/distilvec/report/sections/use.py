"""Code that loads the student, and commands to try next."""

from __future__ import annotations

import shlex

from distilvec.report.model_card import loading_call
from distilvec.report.section import Block, Section, get, make_section
from distilvec.report.tables import Part

LOADING = """{imported}

student = {call}("student")  # the folder next to this page
queries = student.encode_query(["a text to search for"])
documents = student.encode_document(["a text", "another one"])
print(student.similarity(queries, documents))
"""
PREDICTING = """from distilvec import predict

print(predict("student", texts))  # labels or scores; pairs of texts are tuples
"""
NEXT = """distilvec evaluate student --suite YOUR-SUITE.yaml
distilvec speed {teacher} student
distilvec compare THIS-RUN ANOTHER-RUN --out comparison.html
"""
COMPATIBLE = "Teacher-compatible: queries embedded by the student search documents that the teacher embedded."


def section(report: Part) -> Section | None:
    """Return snippets for a run that has a student."""
    record, teacher = get(report, "record"), get(report, "record.teacher.name") or "TEACHER"
    if not record.get("student"):
        return None
    imported, call = loading_call(record["student"])
    return make_section(
        "Use the student",
        COMPATIBLE if record.get("teacher_compatible") else "",
        Block("code", PREDICTING if record.get("supervised") else "", "Predict"),
        Block("code", LOADING.format(imported=imported, call=call), "Load the student"),
        Block("code", NEXT.format(teacher=shlex.quote(teacher)), "Next, in the run's folder"),
    )
