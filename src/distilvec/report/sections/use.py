"""Code that loads the student, and commands to try next. Both run as they are printed, where the run was started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilvec.config.yaml_dialect import load_yaml
from distilvec.core.errors import DistilvecError
from distilvec.core.escape import quoted
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.diagnostics import LabelledScores
from distilvec.report.model_card import loading_call, shorter_reading
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
# of a recipe's teacher: with any of them the commands, which take its name alone, would open another model
TEACHER_SETTINGS = (
    "revision", "preset", "prompts", "pooling", "normalize", "max_length", "truncate_dim", "similarity", "adapters",
    "quantize",
)  # fmt: skip


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


def next_commands(report: Report, student: Path) -> list[str]:
    """Return commands for the student, with the paths of this run."""
    recipe = read_recipe(report)
    teacher = None
    if report.record is not None and report.record.teacher is not None and report.record.teacher.parameters:
        teacher = teacher_by_name(recipe)
    suite = lookup(recipe, "evaluation.suite")
    trusts_student = bool(lookup(recipe, "student.trust_remote_code"))
    trusts_teacher = teacher is not None and bool(lookup(recipe, "teacher.trust_remote_code"))
    of_student = ["--trust-remote-code"] if trusts_student else []
    of_both = ["--trust-remote-code"] if trusts_student or trusts_teacher else []

    commands: list[list[object]] = []
    if suite:
        compared = ["--teacher", teacher] if teacher else []
        commands.append(["evaluate", student, "--suite", suite, *compared, *of_both])
    if lookup(recipe, "teacher.vectors"):
        commands.append([*check_words(student, lookup(recipe, "teacher")), *of_student])
    commands.append(["speed", *([teacher] if teacher else []), student, *of_both])
    if report.record is None or report.record.student is None or report.record.student.layers != 0:
        commands.append(["export", student, "--to", "onnx-int8", *of_student])
    return [shlex.join(["distilvec", *map(str, words)]) for words in commands]


def teacher_by_name(recipe: Mapping[str, Any]) -> str | None:
    """Return the folder or id of a recipe's teacher; None for one that is another model with the recipe's settings."""
    settings = lookup(recipe, "teacher") or {}
    if settings.get("attention", "own") != "own" or any(settings.get(name) is not None for name in TEACHER_SETTINGS):
        return None
    name: str | None = settings.get("model")
    return name


def check_words(student: Path, teacher: Mapping[str, Any]) -> list[object]:
    """Return the words of a check against the index of a recipe's section `teacher`, read as for the training."""
    return ["check", student, *index_words(teacher)]


def index_words(teacher: Mapping[str, Any]) -> list[object]:
    """Return the words that name the index of a recipe's section `teacher`, read as it is there."""
    words: list[object] = [teacher["vectors"]]
    for part, name in (teacher.get("columns") or {}).items():
        words += ["--column", f"{part}={name}"]
    for name, values in (teacher.get("where") or {}).items():
        for value in values if isinstance(values, list) else [values]:
            words += ["--where", f"{name}={'null' if value is None else value}"]
    for key in ("texts", "similarity", "repeats"):
        if teacher.get(key) is not None:
            words += [f"--{key}", teacher[key]]
    return words


def read_recipe(report: Report) -> dict[str, Any]:
    """Return the report's recipe; empty where it is none that distilvec wrote."""
    try:
        recipe = load_yaml(report.recipe or "{}", "the report's recipe")
    except DistilvecError:
        return {}
    return recipe if isinstance(recipe, dict) else {}
