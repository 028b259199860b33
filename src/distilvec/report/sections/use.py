"""Code that loads the student. It runs as it is printed, where the run was started."""

from __future__ import annotations

from pathlib import Path

from distilvec.core.escape import quoted
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.report.model_card import loading_call, shorter_reading
from distilvec.report.next_step import next_commands, read_recipe
from distilvec.report.section import Block, PageSection, make_section
from distilvec.report.tables import lookup
from distilvec.report.values import Report

LOADING = """{imported}

student = {call}({folder})
queries = student.encode_query(["a text to search for"])
documents = student.encode_document(["a text", "another one"])
print(student.similarity(queries, documents))
"""
SEARCHING = """{imported}

student = {call}({folder})
# search your index with these vectors; its documents stay as they are
queries = student.encode_query(["a text to search for"])
print(queries.shape)
"""
PREDICTING = """from distilvec import TaskModel

model = TaskModel({folder})
texts = [{example}]
print(model.predict(texts))
"""
PROBABLE = "print(model.classes, model.predict_proba(texts))  # [texts, classes]\n"


def section(report: Report) -> PageSection | None:
    """Return snippets for a run that has a student."""
    record = report.record
    if record is None or record.student is None:
        return None
    folder = RunFolder(Path(report.folder)).student
    imported, call = loading_call(record.student)
    teacher_length = None if record.teacher is None else record.teacher.max_length
    shorter = shorter_reading(record.student.max_length, teacher_length)
    loading = SEARCHING if lookup(read_recipe(report), "teacher.vectors") else LOADING
    return make_section(
        "Use the student",
        f"The student reads {shorter}." if shorter else "",
        Block("code", prediction(record.supervised, folder), "Predict"),
        Block("code", loading.format(imported=imported, call=call, folder=quoted(str(folder))), "Load the student"),
        Block("code", "\n".join(next_commands(report, folder)) + "\n", "Next"),
    )


def prediction(supervised: LabelledScores | None, student: Path) -> str:
    """Return code that predicts labels or scores; "" for a student without a head."""
    if supervised is None:
        return ""
    example = '"a text"' if supervised.type in ("classification", "multilabel") else '("a text", "another one")'
    code = PREDICTING.format(folder=quoted(str(student)), example=example)
    return code if supervised.type == "sts" else code + PROBABLE
