"""Code that loads the student, and commands to try next. Both run as they are printed, where the run was started."""

from __future__ import annotations

import shlex
from pathlib import Path

from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.errors import DistilvecError
from distilvec.core.escape import quoted
from distilvec.report.model_card import loading_call, shorter_reading
from distilvec.report.section import Block, Section, get, make_section
from distilvec.report.tables import Part

LOADING = """{imported}

student = {call}({folder})
queries = student.encode_query(["a text to search for"])
documents = student.encode_document(["a text", "another one"])
print(student.similarity(queries, documents))
"""
PREDICTING = """from distilvec import TaskModel

model = TaskModel({folder})
texts = [{example}]
print(model.predict(texts))
"""
PROBABLE = "print(model.classes, model.predict_proba(texts))  # [texts, classes]\n"


def section(report: Part) -> Section | None:
    """Return snippets for a run that has a student."""
    record = get(report, "record")
    if not record.get("student"):
        return None
    student = Path(report.get("folder") or ".") / "student"
    imported, call = loading_call(record["student"])
    shorter = shorter_reading(record["student"].get("max_length"), get(report, "record.teacher").get("max_length"))
    return make_section(
        "Use the student",
        f"The student reads {shorter}." if shorter else "",
        Block("code", prediction(record, student), "Predict"),
        Block("code", LOADING.format(imported=imported, call=call, folder=quoted(str(student))), "Load the student"),
        Block("code", "\n".join(next_commands(report, student)) + "\n", "Next"),
    )


def prediction(record: Part, student: Path) -> str:
    """Return code that predicts labels or scores; "" for a student without a head."""
    kind = (record.get("supervised") or {}).get("type")
    if kind is None:
        return ""
    example = '"a text"' if kind in ("classification", "multilabel") else '("a text", "another one")'
    code = PREDICTING.format(folder=quoted(str(student)), example=example)
    return code if kind == "sts" else code + PROBABLE


def next_commands(report: Part, student: Path) -> list[str]:
    """Return commands for the student, with the paths of this run."""
    try:
        recipe = load_yaml(report.get("recipe") or "{}", "recipe", "the report's recipe")
    except DistilvecError:
        recipe = {}
    if not isinstance(recipe, dict):  # a report.json that was changed by hand
        recipe = {}
    teacher = get(recipe, "teacher.model") if get(report, "record.teacher.parameters") else None
    suite = get(recipe, "evaluation.suite")
    commands = [["speed", *([teacher] if teacher else []), student], ["export", student, "--to", "onnx-int8"]]
    if suite:
        against = ["--teacher", teacher] if teacher else []
        commands.insert(0, ["evaluate", student, "--suite", suite, *against])
    return [shlex.join(["distilvec", *map(str, words)]) for words in commands]
