"""Code that loads the student, and commands to try next."""

from __future__ import annotations

import shlex

from distilvec.report.model_card import loading_call, read_teachers
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


def section(report: Part) -> Section | None:
    """Return snippets for a run that has a student."""
    record = get(report, "record")
    teacher = next((one["name"] for one in read_teachers(record) if one.get("name")), "TEACHER")
    if not record.get("student"):
        return None
    imported, call = loading_call(record["student"])
    task = record.get("supervised") or {}
    predicting = PREDICTING + ("" if task.get("type") == "sts" else PROBABLE)
    return make_section(
        "Use the student",
        Block("code", predicting if task else "", "Predict"),
        Block("code", LOADING.format(imported=imported, call=call), "Load the student"),
        Block("code", NEXT.format(teacher=shlex.quote(teacher)), "Next, in the run's folder"),
    )
