"""The model card of a student, made of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, Template

from distilvec.core.escape import code_block, code_span, markdown, markdown_cell, quoted
from distilvec.core.info import UNLIMITED
from distilvec.report.card_data import card_data, eval_results
from distilvec.report.exports import export_note, export_table
from distilvec.report.overlap import compatibility_note
from distilvec.report.record import DataRecord, RunRecord, StudentRecord, TeacherRecord
from distilvec.report.scores import left_out_text, score_table, task_table
from distilvec.report.tables import Table, json_text, make_table, to_markdown
from distilvec.report.values import ExportedForm

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
    environment.filters.update(count=_count, json=json_text, table=to_markdown)
    return environment.from_string(Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8"))


def model_card(record: RunRecord, exports: Mapping[str, ExportedForm] | None = None) -> str:
    """Return the student's README.md: YAML front matter and text; missing parts are left out.

    `exports` are those of exports.json.
    """
    student = record.student
    teacher = None if record.teacher is None or record.teacher.unread else record.teacher
    student_length = None if student is None else student.max_length
    teacher_length = None if teacher is None else teacher.max_length
    return _template().render(
        record=record,
        student=student,
        teacher=teacher,
        data=record.data or DataRecord(),
        method=record.method,
        training=record.training,
        supervised=record.supervised,
        front=front_matter(record),
        name=record.name or (student.name if student is not None else None) or "student",
        teachers=teachers_table([teacher or TeacherRecord(), *record.more_teachers]),
        loading=loading_call(student),
        from_folder=FROM_FOLDER,
        compatibility=compatibility_note(record),
        prompts={} if student is None else {role: text for role, text in student.prompts.items() if text},
        scores=score_table(record.scores),
        asymmetric=bool(record.scores.get("asymmetric")),
        languages=languages_of(record),
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


def front_matter(record: RunRecord) -> str:
    """Return the card's metadata as YAML; base models, data, languages and license only if they are known."""
    languages = languages_of(record)
    name = record.name or "student"
    return str(card_data(record.hub, ["knowledge-distillation"], languages, name, eval_results(record)).to_yaml())


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


def _count(number: int) -> str:
    """12345678 as 12.3M, with the exact number below a thousand."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return str(number)
