"""Code that loads the student, and commands to try next."""

from __future__ import annotations

import shlex

from distilvec.report.model_card import loading_call, shorter_reading
from distilvec.report.section import Block, Section, get, make_section
from distilvec.report.tables import Part

LOADING = """{imported}

student = {call}("student")  # the folder next to this page
queries = student.encode_query(["a text to search for"])
documents = student.encode_document(["a text", "another one"])
print(student.similarity(queries, documents))
"""
PREDICTING = """from distilvec import TaskModel

model = TaskModel("student")  # texts: a list; pairs of texts are tuples
print(model.predict(texts))  # labels or scores
"""
PROBABLE = "print(model.classes, model.predict_proba(texts))  # [texts, classes]\n"
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
    task = record.get("supervised") or {}
    shorter = shorter_reading(record["student"].get("max_length"), get(report, "record.teacher").get("max_length"))
    notes = [COMPATIBLE if record.get("teacher_compatible") else "", f"The student reads {shorter}." if shorter else ""]
    predicting = PREDICTING + ("" if task.get("type") == "sts" else PROBABLE)
    return make_section(
        "Use the student",
        " ".join(filter(None, notes)),
        Block("code", predicting if task else "", "Predict"),
        Block("code", LOADING.format(imported=imported, call=call), "Load the student"),
        Block("code", NEXT.format(teacher=shlex.quote(teacher)), "Next, in the run's folder"),
    )
