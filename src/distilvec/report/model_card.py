"""The model card of a student, made of its record."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, Template

from distilvec.core.escape import code_block, code_span, markdown, markdown_cell, one_line, quoted
from distilvec.core.info import UNLIMITED
from distilvec.report.exports import export_note, export_table
from distilvec.report.record import DataRecord, RunRecord, StudentRecord, TeacherRecord
from distilvec.report.scores import left_out_text, score_table, task_table
from distilvec.report.tables import Table, make_table, to_markdown, value_text
from distilvec.report.values import ExportedForm
from distilvec.report.verdicts import compatibility_note

TAGS = ["sentence-transformers", "feature-extraction", "sentence-similarity", "distilvec"]
_LANGUAGE = re.compile(r"[a-z]{2,3}|code|multilingual")  # ISO 639 and the hub's special values
_TASKS = {
    "sts": ("semantic-similarity", "Semantic Similarity"),
    "retrieval": ("information-retrieval", "Information Retrieval"),
    "classification": ("text-classification", "Text Classification"),
    "pair": ("binary-classification", "Binary Classification"),
}  # of ours: task type and name in sentence-transformers' own cards
FROM_FOLDER = "  # start Python in this folder, or give its path"  # a pushed card has the hub's id instead


def shorter_reading(student: int | None, teacher: int | None) -> str:
    """Compare the maximum lengths in tokens of student and teacher; "" unless the student reads less of a text."""
    if student is None or teacher is None or not student < teacher < UNLIMITED:
        return ""
    return f"{student:,} tokens, fewer than the teacher's {teacher:,}"


def loading_call(student: StudentRecord | None) -> tuple[str, str]:
    """Return import and function that load a student: sentence-transformers' unless it has experts."""
    if student is not None and student.experts:
        return "import distilvec", "distilvec.load"
    return "from sentence_transformers import SentenceTransformer", "SentenceTransformer"


@cache
def _template() -> Template:
    """Compile the card's template, once per process."""
    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(cell=markdown_cell, md=markdown, code=code_span, block=code_block, quoted=quoted)
    environment.filters.update(count=_count_text, json=value_text, table=to_markdown)
    return environment.from_string(Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8"))


def model_card(record: RunRecord, exports: Mapping[str, ExportedForm] | None = None) -> str:
    """Return the student's README.md: YAML front matter and text; missing parts are left out.

    `exports` are those of exports.json.
    """
    student = record.student
    teacher = None if record.teacher is None or record.teacher.unread else record.teacher
    student_length = None if student is None else student.max_length
    teacher_length = None if teacher is None else teacher.max_length
    name = record.name or (student.name if student is not None else None) or "student"
    languages = languages_of(record)
    metadata = card_data(
        record.hub, ["knowledge-distillation"], languages, record.name or "student", eval_results(record)
    )
    return _template().render(
        record=record,
        student=student,
        teacher=teacher,
        data=record.data or DataRecord(),
        method=record.method,
        training=record.training,
        supervised=record.supervised,
        front=str(metadata.to_yaml()),
        name=name,
        teachers=teachers_table([teacher or TeacherRecord(), *record.more_teachers]),
        loading=loading_call(student),
        from_folder=FROM_FOLDER,
        compatibility=compatibility_note(record),
        prompts={} if student is None else {role: text for role, text in student.prompts.items() if text},
        scores=score_table(record.scores),
        asymmetric=bool(record.scores.get("asymmetric")),
        languages=languages,
        unmeasured=unmeasured(record),
        cuts_note=left_out_text(record.cut_tasks, record.scores),
        shorter=shorter_reading(student_length, teacher_length),
        tasks=task_table(record.supervised),
        exports=export_table(exports or {}),
        exports_note=export_note(exports or {}),
    )


def languages_of(record: RunRecord) -> list[str]:
    """Return the languages that the training texts are stated to be in."""
    sources = [] if record.data is None else record.data.sources
    return sorted({source.language for source in sources if source.language})


def unmeasured(record: RunRecord) -> list[str]:
    """Return what nothing in the record speaks of."""
    gaps = {
        "scores on tasks": bool(record.scores) or record.supervised is not None,
        "overlap@10 with the teacher": record.overlap is not None,
        "speed": record.speed is not None,
    }
    return [*(name for name, is_known in gaps.items() if not is_known), "other languages", "biases of its teacher"]


def teachers_table(teachers: Sequence[TeacherRecord]) -> Table | None:
    """Return several teachers with their share of the weights; None for a single teacher."""
    if len(teachers) < 2:
        return None
    weights = [1.0 if teacher.weight is None else teacher.weight for teacher in teachers]
    rows = [
        {"teacher": teacher, "share": weight / sum(weights)} for teacher, weight in zip(teachers, weights, strict=True)
    ]
    columns = {
        "teacher": "teacher.name",
        "width": ("teacher.width", 0),
        "parameters": ("teacher.parameters", 0),
        "share": ("share", None),
    }
    return make_table("teachers", "Teachers", rows, columns)


def _count_text(number: int) -> str:
    """12345678 as 12.3M, with the exact number below a thousand."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)


# -- metadata for the hub ----------------------------------------------------------------------------------------------


def card_data(
    hub: Mapping[str, Any],
    tags: Iterable[str] = (),
    languages: Iterable[str] = (),
    name: str | None = None,
    results: list[EvalResult] | None = None,
) -> ModelCardData:
    """Return a card's metadata. `hub` has base_model, datasets and license, as far as they are known.

    `languages` that are no codes of the hub are left out. `results` belong to the model `name`.
    """
    metadata = {**({"base_model_relation": "finetune"} if hub.get("base_model") else {}), **hub}
    codes = sorted({code for code in languages if _LANGUAGE.fullmatch(code)})
    return ModelCardData(
        language=codes or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=[*TAGS, *tags],
        model_name=one_line(name) if results else None,
        eval_results=results or None,
        **metadata,
    )


@dataclass(frozen=True)
class _Result:
    """A score on the card: kind and name of its task, metric, value times 100."""

    kind: str
    task: str
    metric: str
    value: float | None


def eval_results(record: RunRecord) -> list[EvalResult]:
    """Return a student's scores, times 100; of two towers those of the student's queries and teacher's documents."""
    results: dict[tuple[str, str, str], EvalResult] = {}
    for result in _results(record):
        if result.value is None or not math.isfinite(result.value):
            continue
        task_type, task_name = _TASKS.get(result.kind, (result.kind or "sentence-similarity", None))
        results[task_type, result.task, result.metric] = EvalResult(
            task_type=task_type,
            task_name=task_name,
            dataset_type=one_line(result.task),
            dataset_name=one_line(result.task),
            metric_type=result.metric.replace("@", "_at_"),
            metric_name=result.metric,
            metric_value=round(result.value, 4),
        )
    return list(results.values())


def _results(record: RunRecord) -> list[_Result]:
    """Return the scores of the card's model, then the metrics on a labelled task's test split."""
    model = "asymmetric" if record.documents else "student"
    results = [_Result(score.type, score.task, score.metric, score.value) for score in record.scores.get(model, ())]
    supervised = record.supervised
    if supervised is not None:
        for metric, value in supervised.scores.get("student", {}).items():
            percent = None if value is None else 100 * value
            results.append(_Result(supervised.type, supervised.task, metric, percent))
    return results
